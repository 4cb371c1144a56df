"""`migrate`: pre-training that becomes instruction tuning in one process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.migrate_config import MigrateCommandConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.migrate_run import MigrateOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, MigrateCommandConfig)


def run(args: argparse.Namespace) -> int:
    """Train as configured.

    Raises:
        HfGlmCurriculumError: Settings, data, model or folder do not allow the run.
    """
    config = config_from_args(MigrateCommandConfig, args)
    from hf_glm_curriculum.commands.migrate_data import load_migrate_records
    from hf_glm_curriculum.commands.migrate_run import run_migrate
    from hf_glm_curriculum.commands.ranks import plan_together
    from hf_glm_curriculum.commands.run_state import MIGRATION
    from hf_glm_curriculum.commands.scratch_model import SCRATCH

    plan = plan_together(config, MIGRATION)
    records = load_migrate_records(config)
    model = "a new model" if config.model == SCRATCH else config.model
    title = f"From pre-training to instructions: {model}"
    about = {"command": "migrate", "argv": args.argv, "title": title}
    outcome = run_migrate(config, records, plan, about)
    if outcome is not None:
        show_outcome(outcome)
    return 0


def show_outcome(outcome: MigrateOutcome) -> None:
    """Write the summary table and where everything lies."""
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.evaluation.report_style import duration

    rows = summary_rows(outcome)
    if rows:
        show_table("Result", ("", "before", "after"), rows, right=(1, 2))
    for line in switch_lines(outcome.switch):
        say(line)
    say(f"run:    {outcome.folder} ({duration(outcome.seconds)})")
    say(f"report: {outcome.report}")


def summary_rows(outcome: MigrateOutcome) -> list[tuple[str, str, str]]:
    """Held-out losses and answers before and after."""
    rows = []
    for name, stages in outcome.heldout.items():
        if "after" in stages:
            cells = (_figure(stages.get(stage, {}).get("loss")) for stage in ("before", "after"))
            rows.append((f"held-out loss, {name}", *cells))
    before, after = (outcome.answers.get(stage, {}) for stage in ("before", "after"))
    if after.get("checkable"):
        cells = (f"{x.get('correct', '–')} of {x.get('checkable', '–')}" for x in (before, after))
        rows.append(("held-out answers right", *cells))
    return rows


def switch_lines(switch: dict[str, Any]) -> list[str]:
    """What the switch cost."""
    if "seconds" not in switch:
        return []
    words = (
        f"switch at step {switch['step']:,}: {switch['seconds']:.3f} s between two steps (usually "
        f"{switch['usual_seconds']:.3f} s)"
    )
    if "restart_seconds" in switch:
        words += f"; a stop and a new start take {switch['restart_seconds']:.1f} s here"
    return [words]


def _figure(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}"
