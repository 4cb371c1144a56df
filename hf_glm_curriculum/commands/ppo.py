"""`ppo`: a policy trained on rewards by rules or by reward models.

Also reached as ``accelerate launch -m hf_glm_curriculum.commands.ppo --config FILE``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.ppo_run import PpoOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, PpoCommandConfig)


def run(args: argparse.Namespace) -> int:
    """Train as configured.

    Raises:
        HfGlmCurriculumError: Settings, data, models or folder do not allow the run.
    """
    from hf_glm_curriculum.commands.ppo_train import left_out
    from hf_glm_curriculum.errors import MissingDependencyError

    reason = left_out()
    if reason:
        raise MissingDependencyError(reason)
    config = config_from_args(PpoCommandConfig, args)
    from hf_glm_curriculum.commands.ppo_run import STATE, run_ppo
    from hf_glm_curriculum.commands.ranks import plan_together

    plan = plan_together(config, STATE)
    title = f"PPO on {config.model}, rewarded by {', '.join(config.reward) or 'nothing'}"
    outcome = run_ppo(config, plan, {"command": "ppo", "argv": args.argv, "title": title})
    if outcome is not None:
        show_outcome(outcome)
    return 0


def show_outcome(outcome: PpoOutcome) -> None:
    """Write the summary table and where everything lies."""
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.evaluation.report_style import duration

    rows = summary_rows(outcome)
    if rows:
        show_table("Held-out answers", ("", "before", "after"), rows, right=(1, 2))
    kl = outcome.metrics.get("objective/kl")
    if kl is not None:
        say(f"KL to the reference at the last update: {kl:.3g} nats an answer")
    for alarm in outcome.alarms:
        say(f"alarm: {alarm.replace('_', ' ')}; look at the answers before trusting the reward")
    say(f"model:  {outcome.folder / 'model'}")
    say(f"run:    {outcome.folder} ({duration(outcome.seconds)})")
    say(f"report: {outcome.report}")


def summary_rows(outcome: PpoOutcome) -> list[tuple[str, str, str]]:
    """Scores by dimension, answers right and their length, before and after."""
    from hf_glm_curriculum.commands.ppo_evaluation import score_rows

    rows = [(f"score, {name}", *cells) for name, *cells in score_rows(outcome.scores)]
    before, after = (outcome.answers.get(stage, {}) for stage in ("before", "after"))
    if after.get("checkable"):
        cells = (f"{x.get('correct', '–')} of {x.get('checkable', '–')}" for x in (before, after))
        rows.append(("answers right", *cells))
    if after:
        words = (f"{x['mean_words']:.1f}" if x else "–" for x in (before, after))
        rows.append(("words an answer", *words))
    return rows  # type: ignore[return-value]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command as the command line would; for `accelerate launch -m`.

    Args:
        argv: The arguments after the module's name; None takes the process's own.

    Returns:
        The exit status.
    """
    from hf_glm_curriculum.commands.main import main as command_line

    return command_line(["ppo", *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
