"""`sft`: supervised fine-tuning on the user's data, every sample followed and weighted."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.sft_run import SftOutcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, SftCommandConfig)


def run(args: argparse.Namespace) -> int:
    """Fine-tune as configured.

    Raises:
        HfGlmCurriculumError: Settings, data, model or folder do not allow the run.
    """
    config = config_from_args(SftCommandConfig, args)
    from hf_glm_curriculum.commands.ranks import plan_together
    from hf_glm_curriculum.commands.sft_data import load_sft_records
    from hf_glm_curriculum.commands.sft_run import run_sft

    plan = plan_together(config)
    records = load_sft_records(config)
    title = f"Fine-tuning {config.model} on {records.name}"
    about = {"command": "sft", "argv": args.argv, "title": title}
    outcome = run_sft(config, records, plan, about)
    if outcome is not None:
        show_outcome(outcome)
    return 0


def show_outcome(outcome: SftOutcome) -> None:
    """Write the summary table and where everything lies."""
    show_result(outcome)
    show_places(outcome)


def show_places(outcome: SftOutcome) -> None:
    """Write where everything lies and how long it took."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.evaluation.report_style import duration

    say(f"run:    {outcome.folder} ({duration(outcome.seconds)})")
    say(f"report: {outcome.report}")


def show_result(outcome: SftOutcome) -> None:
    """Write the summary table, what was found and what became of the samples."""
    from hf_glm_curriculum.commands.console import say, show_table

    rows = summary_rows(outcome)
    if rows:
        show_table("Result", ("", "before", "after"), rows, right=(1, 2))
    found = detection_lines(outcome.detection)
    for line in [*found, *_state_lines(outcome.states)]:
        say(line)


def summary_rows(outcome: SftOutcome) -> list[tuple[str, str, str]]:
    """Held-out loss and answers before and after."""
    rows = []
    before, after = (outcome.heldout.get(stage, {}) for stage in ("before", "after"))
    if after:
        rows.append(("held-out loss", _figure(before.get("loss")), _figure(after.get("loss"))))
    before, after = (outcome.answers.get(stage, {}) for stage in ("before", "after"))
    if after.get("checkable"):
        cells = (f"{x.get('correct', '–')} of {x.get('checkable', '–')}" for x in (before, after))
        rows.append(("held-out answers right", *cells))
    if after:
        rows.append(
            ("words an answer", _figure(before.get("mean_words")), _figure(after["mean_words"]))
        )
    return rows


def detection_lines(detection: dict[str, Any] | None) -> list[str]:
    """What was found of the faults known beforehand."""
    if not detection or not detection["n_faulty"]:
        return []
    flagged, interval = detection["flagged"], detection["auroc_interval"] or (None, None)
    return [
        f"planted faults: {detection['n_faulty']} in {detection['n']} samples; suspicion ranks "
        f"them at AUROC {_figure(detection['auroc'])} ({_figure(interval[0])}–"
        f"{_figure(interval[1])})",
        f"taken out as wrong: {flagged['size']} samples, {flagged['hits']} of them faulty "
        f"(precision {_figure(flagged['precision'])}, recall {_figure(flagged['recall'])})",
    ]


def _state_lines(states: dict[str, int]) -> list[str]:
    total = sum(states.values())
    if not total:
        return []
    parts = ", ".join(f"{n} {name.lower()}" for name, n in states.items())
    return [f"samples followed: {total} ({parts})"]


def _figure(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}"
