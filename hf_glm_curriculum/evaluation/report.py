"""`report.html`: one self-contained page over a run's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hf_glm_curriculum.errors import HfGlmCurriculumError
from hf_glm_curriculum.evaluation import (
    report_curriculum,
    report_migration,
    report_ppo,
    report_samples,
    report_sections,
)
from hf_glm_curriculum.evaluation.report_style import absent, esc, page, section
from hf_glm_curriculum.evaluation.run_folder import REPORT_FILE, RunFolder, read_run
from hf_glm_curriculum.storage import atomic_write_text

Builder = Callable[[RunFolder], str | None]

_SECTIONS: tuple[tuple[str, str, str, Builder, str], ...] = (
    (
        "detection",
        "Planted faults",
        "Faults were planted into the training data and their labels kept from the trainer. "
        "AUROC is the chance that a faulty sample is more suspicious than a clean one.",
        report_samples.detection,
        "The faults of these data are not known, so there is nothing to compare suspicion with.",
    ),
    (
        "migration",
        "From documents to instructions",
        "How the objective moved: what was asked and drawn, how much each objective counted, and "
        "what became of both losses.",
        report_migration.migration,
        "This run did not migrate from one objective to another.",
    ),
    (
        "curriculum",
        "Lanes and switches",
        "Which effort went into which instructions, and when the monitor fell back on the base "
        "source and why.",
        report_curriculum.curriculum,
        "This run had no lanes and no alignment monitor.",
    ),
    (
        "attention",
        "What queries saw",
        "The position graph's budget in training: how many keys a query saw, of those before it.",
        report_curriculum.attention,
        "This run attended to everything.",
    ),
    (
        "ppo",
        "Policy optimisation",
        "What the policy was rewarded for and what became of it: scores by dimension, distance "
        "from the reference, and whether the reward was gamed.",
        report_ppo.ppo,
        "This run did not optimise a policy.",
    ),
    (
        "answers",
        "Answers before and after",
        "The same held-out prompts, answered greedily by the model before and after training.",
        report_samples.answers,
        "No answers were generated in this run.",
    ),
    (
        "suspicious",
        "Most suspicious samples",
        "Suspicion counts robust deviations above the median of the data. Open a line to read the "
        "sample and its signals.",
        report_samples.suspicious,
        "No sample was observed, or the run ended before its results were written.",
    ),
    (
        "data-map",
        "Data map",
        "Up: the model gives the answer a high probability. Right: that probability changed from "
        "visit to visit. Low and left are samples the model never accepts.",
        report_sections.data_map,
        "The run wrote no samples.csv: it had no SampleLifespanCallback, or was stopped early.",
    ),
    (
        "lives",
        "Weights and states over time",
        "How strongly samples counted in the loss, how many had left training at each step, and "
        "what moved from state to state between the epochs' ends and the judge's verdicts.",
        report_sections.lives,
        "No weights were logged.",
    ),
    (
        "curves",
        "Training curves",
        "The loss that was trained on; held-out loss is measured on samples that were not.",
        report_sections.curves,
        "The run logged no loss.",
    ),
    (
        "pictures",
        "Pictures",
        "What the run's callbacks drew beside the page.",
        report_curriculum.pictures,
        "No callback left a picture.",
    ),
    (
        "configuration",
        "Configuration",
        "Everything needed to repeat the run.",
        report_sections.configuration,
        "There is no run.json: the run was not started by a command of this package.",
    ),
)


def write_report(
    run_dir: str | os.PathLike[str], path: str | os.PathLike[str] | None = None
) -> Path:
    """Write the report of a run; parts the run does not have are named and left out.

    Args:
        run_dir: The run's folder.
        path: The page to write; `report.html` in the run's folder by default.

    Returns:
        The page's path.

    Raises:
        StateError: The folder is not a run's, or the page cannot be written.
    """
    run = read_run(run_dir)
    target = Path(path) if path is not None else run.path / REPORT_FILE
    atomic_write_text(target, render_report(run))
    return target


def render_report(run: RunFolder) -> str:
    """The page of a run as HTML; never fails on what a run holds."""
    parts, contents, lacking = [], [], []
    for key, title, why, build, note in _SECTIONS:
        body, said = _guarded(build, run, note)
        if body:
            parts.append(section(key, title, why, body))
            contents.append(f'<a href="#{key}">{esc(title)}</a>')
        elif said != note or key not in _foreign_to(run):  # what is damaged is never left unsaid
            lacking.append(absent(key, title, said))
    heading = _guarded(report_sections.header, run, "")[0] or f"<h1>{esc(run.path.name)}</h1>"
    figures = _guarded(report_sections.cards, run, "")[0] or ""
    heading += f"<nav>{''.join(contents)}</nav>"
    body = "\n".join([figures, _problems(run), *parts, *lacking])
    return page(str(run.run.get("title") or run.path.resolve().name), heading, body)


def _foreign_to(run: RunFolder) -> tuple[str, ...]:
    """Sections that a run of this command cannot have, so that nobody misses them."""
    command = run.run.get("command")
    samples = ("detection", "suspicious", "data-map", "lives")
    chosen = ("curriculum", "attention", "pictures")  # nobody misses what was not asked for
    if command == "ppo":
        return (*samples, *chosen, "migration", "curves")
    if command == "migrate":
        return (*samples, *chosen, "ppo")
    return (*chosen, "migration") if command == "quickstart" else (*chosen, "migration", "ppo")


def _guarded(build: Builder, run: RunFolder, note: str) -> tuple[str | None, str]:
    """Build a section; content of an unexpected shape becomes a note instead of an error."""
    try:
        return build(run), note
    except HfGlmCurriculumError as error:
        return None, str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        reason = f"{type(error).__name__}: {error}"
        return None, f"This part of the run's files has an unexpected shape ({reason})."


def _problems(run: RunFolder) -> str:
    """What could not be read, said at the top."""
    if not run.problems:
        return ""
    lines = "".join(f"<li>{esc(problem)}</li>" for problem in run.problems)
    return (
        f'<section class="warning"><h2>Files that could not be read</h2><ul>{lines}</ul></section>'
    )
