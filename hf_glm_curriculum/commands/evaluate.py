"""`evaluate`: checkpoints and adapters side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.evaluate_config import EvaluateConfig, named_models
from hf_glm_curriculum.config import add_config_flags, config_from_args, to_dict

if TYPE_CHECKING:
    from hf_glm_curriculum.evaluation.measured import Measured

FINDINGS, PAGE, PREFERENCES = "evaluation.json", "evaluation.html", "compliance_preferences.jsonl"
Found = Mapping[str, Mapping[str, "Measured"]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, EvaluateConfig)


def run(args: argparse.Namespace) -> int:
    """Measure every model, compare with the first, and write findings, answers and failures.

    Raises:
        HfGlmCurriculumError: Settings, data, a model or the folder do not allow it.
    """
    config = config_from_args(EvaluateConfig, args)
    from hf_glm_curriculum.commands.console import library_bars
    from hf_glm_curriculum.commands.evaluate_run import read_inputs
    from hf_glm_curriculum.commands.run_state import alone_in, check_writable
    from hf_glm_curriculum.storage import ensure_folder, sweep_temporaries

    folder = Path(config.output_dir).expanduser()
    check_writable(folder)
    with library_bars():
        inputs = read_inputs(config)
        with alone_in(ensure_folder(folder)):
            sweep_temporaries(folder)
            return _measured(config, inputs, folder)


def _measured(config: EvaluateConfig, inputs: Any, folder: Path) -> int:
    """The rest of `run`, in a folder that nobody else writes to."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.environment import git_state, versions
    from hf_glm_curriculum.commands.evaluate_page import render_evaluation
    from hf_glm_curriculum.commands.evaluate_run import measure_models
    from hf_glm_curriculum.evaluation.measured import compare
    from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text

    found = measure_models(config, inputs)
    judged = _judged(config, found)
    table = {
        measure: compare(models, config.draws, config.level, config.seed)
        for measure, models in found.items()
    }
    about = {
        "models": dict(named_models(config.models)),
        "sources": inputs.sources,
        "config": to_dict(config),
        "versions": versions(),
        **git_state(),
    }
    findings = {**about, "measures": table, "judge": judged}
    atomic_write_json(folder / FINDINGS, findings)
    atomic_write_text(folder / PAGE, render_evaluation(about, table, found, judged))
    failures = _write_rows(folder, found)
    _show(table, judged)
    failed = folder / PREFERENCES
    if failures:
        say(f"{failures} answers that should have been refusals, as preferences: {failed}")
    say(f"findings: {folder / FINDINGS}, {folder / PAGE}; answers: {folder / 'answers'}")
    return 0


def _judged(config: EvaluateConfig, found: Found) -> dict[str, Any]:
    """Every other model's answers against the first's, by a judge; {} without one."""
    models = found.get("answers", {})
    if not config.judge or len(models) < 2:
        return {}
    from hf_glm_curriculum.commands.evaluate_run import file_name, judge_key
    from hf_glm_curriculum.commands.run_state import cached
    from hf_glm_curriculum.evaluation.judge import judge_pairs, remembering

    (first, base), *others = models.items()
    prompts, theirs = ([str(row[key]) for row in base.rows] for key in ("prompt", "answer"))
    judged, judge = {}, None
    for name, measured in others:
        answers = [str(row["answer"]) for row in measured.rows]

        place = Path(config.output_dir).expanduser() / "measures" / file_name(name) / "judge.json"
        key = judge_key(config, prompts, answers, theirs)

        def compare_pairs(
            answers: list[str] = answers, place: Path = place, key: str = key
        ) -> dict[str, Any]:
            nonlocal judge
            judge = judge or _judge(config)
            asked = remembering(judge, place.with_name(f"judge.{key[:16]}.replies.jsonl"))
            return judge_pairs(asked, prompts, answers, theirs)

        judged[name] = {"against": first, **cached(place, key, compare_pairs)}
    return judged


def _judge(config: EvaluateConfig) -> Any:
    """The judge that the config names."""
    from hf_glm_curriculum.evaluation.judge import endpoint_judge, local_judge
    from hf_glm_curriculum.models import load_model

    if config.judge_url:
        return endpoint_judge(config.judge_url, str(config.judge), config.judge_key)
    return local_judge(*load_model(str(config.judge), config.dtype))


def _write_rows(folder: Path, found: Found) -> int:
    """Answers of each model as records, and failures as preferences; returns how many."""
    from hf_glm_curriculum.commands.evaluate_run import file_name
    from hf_glm_curriculum.evaluation.safety import compliance_preferences, write_preferences
    from hf_glm_curriculum.storage import atomic_write_text, ensure_folder

    ensure_folder(folder / "answers")
    for name, measured in found.get("answers", {}).items():
        rows = ({"prompt": r["prompt"], "response": r["answer"]} for r in measured.rows)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        atomic_write_text(folder / "answers" / f"{file_name(name)}.jsonl", text)
    failures = [
        preference
        for measure in ("red_team", "refusals")
        for name, measured in found.get(measure, {}).items()
        for preference in compliance_preferences(measured, name)
    ]
    write_preferences(folder / PREFERENCES, failures)
    return len(failures)


def _show(table: Mapping[str, Any], judged: Mapping[str, Any]) -> None:
    """One table a measure; differences whose interval excludes zero are marked."""
    from hf_glm_curriculum.commands.console import say, show_table

    for measure, figures in table.items():
        names = list(dict.fromkeys(name for cells in figures.values() for name in cells))
        rows = [
            (figure, *(shown(cells.get(name)) for name in names))
            for figure, cells in figures.items()
            if "/" not in figure or measure in ("rewards", "tasks")
        ]
        right = tuple(range(1, len(names) + 1))
        show_table(measure.replace("_", " "), ("", *names), rows, right=right)
    for name, one in judged.items():
        say(
            f"judge: {name} against {one['against']}: won {one['wins']}, lost {one['losses']}, "
            f"{one['ties']} ties (both sides asked; {one['consistent']:.0%} the same both ways)"
        )


def shown(cell: Mapping[str, Any] | None) -> str:
    """A figure, and its difference to the first model's."""
    if cell is None or cell["value"] is None:
        return "–"
    text = f"{cell['value']:.3f}"
    if "difference" not in cell:
        return text
    text += f" ({cell['difference']:+.3f}"
    if "difference_low" in cell:
        sure = cell["difference_low"] > 0 or cell["difference_high"] < 0
        text += "*" if sure else ""
    return f"{text})"
