"""`reward`: a structured reward model from preferences and ratings, calibrated and measured."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.reward_run import RewardOutcome

COLUMNS = (
    ("pairs", "pairs", "{:,}"),
    ("pairwise_accuracy", "right", "{:.1%}"),
    ("level_accuracy", "levels", "{:.1%}"),
    ("ece", "ECE", "{:.3f}"),
    ("auroc", "AUROC", "{:.2f}"),
    ("open_share", "open", "{:.0%}"),
    ("errors_flagged", "caught", "{:.0%}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, RewardCommandConfig)


def run(args: argparse.Namespace) -> int:
    """Train as configured.

    Raises:
        HfGlmCurriculumError: Settings, data, model or folder do not allow the run.
    """
    config = config_from_args(RewardCommandConfig, args)
    from hf_glm_curriculum.commands.ranks import plan_together
    from hf_glm_curriculum.commands.reward_run import run_reward

    plan = plan_together(config)
    if config.refresh is not None:
        from hf_glm_curriculum.commands.reward_refresh import run_refresh

        run_refresh(config, plan, {"command": "reward", "argv": args.argv})
        return 0
    title = f"Rewards in {', '.join(config.dimensions)} by {config.model}"
    outcome = run_reward(config, plan, {"command": "reward", "argv": args.argv, "title": title})
    if outcome is not None:
        show_outcome(outcome)
    return 0


def show_outcome(outcome: RewardOutcome) -> None:
    """Write the table of figures and where everything lies."""
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.evaluation.report_style import duration

    for split, title in (("test", "Test prompts"), ("unseen", "Unseen sources")):
        figures = outcome.figures.get("figures", {}).get(split)
        if figures:
            columns = ("dimension", *(title for _, title, _ in COLUMNS))
            show_table(title, columns, table_rows(figures), right=tuple(range(1, len(columns))))
    say(
        "right: pairs in order; levels: scores on their side of 0.5; ECE and AUROC of the "
        "confidence; open: gates at the threshold; caught: wrong scores below it"
    )
    for line in outcome.figures.get("shift", {}).get("warnings", []):
        say(f"warning: {line}")
    say(f"model:  {outcome.folder / 'model'} ({outcome.share:.2%} added to the backbone)")
    say(f"run:    {outcome.folder} ({duration(outcome.seconds)})")
    say(f"report: {outcome.report}")


def table_rows(figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row a dimension, in the columns of the summary."""
    return [
        (name, *(_cell(one.get(key), shape) for key, _, shape in COLUMNS))
        for name, one in figures.items()
    ]


def _cell(value: Any, shape: str) -> str:
    return "–" if value is None else shape.format(value)
