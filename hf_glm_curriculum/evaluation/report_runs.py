"""One page over several runs: their curves on the same axes and what their settings differ in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.evaluation.report_style import (
    duration,
    esc,
    figure,
    number,
    page,
    percent,
    section,
    table,
)
from hf_glm_curriculum.evaluation.run_folder import RunFolder, read_run
from hf_glm_curriculum.evaluation.svg_charts import Line, line_chart
from hf_glm_curriculum.storage import atomic_write_text

COLOURS = (
    "var(--accent)",
    "var(--resample)",
    "var(--mastered)",
    "var(--observed)",
    "var(--relabel)",
)
CURVES = (
    ("loss", "Training loss, nats a token", "loss"),
    ("heldout/loss", "Held-out loss, nats a token", "loss"),
    ("eval_loss", "Held-out loss (trainer)", "loss"),
    ("grad_norm", "Gradient norm", "norm"),
    ("structured/reward", "Reward", "reward"),
    ("structured/length", "Words of an answer", "words"),
    ("objective/kl", "KL to the reference", "nats"),
)
COMPARE_FILE = "comparison.html"
_MOST_SETTINGS = 60


def write_comparison(
    folders: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str] = COMPARE_FILE
) -> Path:
    """Write one self-contained page over several runs.

    Args:
        folders: Their output folders, two at least.
        path: The page to write.

    Returns:
        The page's path.

    Raises:
        ConfigError: Fewer than two folders, or one named twice.
        StateError: A folder is not a run's, or the page cannot be written.
    """
    places = [Path(folder).expanduser().resolve() for folder in folders]
    if len(places) < 2 or len(set(places)) < len(places):
        raise ConfigError(
            f"runs: a comparison needs two different run folders at least, got "
            f"{', '.join(map(str, folders)) or 'none'}"
        )
    runs = [read_run(place) for place in places]
    target = Path(path).expanduser()
    atomic_write_text(target, render_comparison(runs))
    return target


def render_comparison(runs: Sequence[RunFolder]) -> str:
    """The page as HTML."""
    names = run_names(runs)
    parts = [section("figures", "Figures", "What each run came to.", _figures(runs, names))]
    charts = _charts(runs, names)
    if charts:
        parts.append(section("curves", "Curves", "The same figure of every run.", charts))
    settings = _differences(runs, names)
    if settings:
        why = "Settings in which the runs differ; all others are the same."
        parts.append(section("settings", "Settings", why, settings))
    heading = (
        '<p class="brand">hf_glm_curriculum · comparison of runs</p>'
        f"<h1>{esc(' · '.join(names))}</h1>"
    )
    return page("Comparison of runs", heading, "\n".join(parts))


def run_names(runs: Sequence[RunFolder]) -> list[str]:
    """A name for each run: its folder's, with as much of the path as tells it from the others."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _figures(runs: Sequence[RunFolder], names: Sequence[str]) -> str:
    columns = ("run", "status", "steps", "took", "last loss", "held-out loss", "answers right")
    cells = zip(names, map(_cells, runs), strict=True)
    return table(columns, ((esc(name, 120), *row) for name, row in cells))


def _cells(run: RunFolder) -> list[str]:
    _, losses = run.series("loss")
    heldout = (run.evaluation.get("heldout") or {}).get("after") or {}
    answers = (run.evaluation.get("answers") or {}).get("after") or {}
    steps, _ = run.series("step")
    return [
        esc(run.run.get("status") or "–", 40),
        number(max(steps)) if steps else "–",
        duration(run.run.get("seconds")),
        number(losses[-1]) if losses else "–",
        number(heldout.get("loss")),
        percent(answers.get("accuracy")),
    ]


def _charts(runs: Sequence[RunFolder], names: Sequence[str]) -> str:
    drawn = []
    for key, title, unit in CURVES:
        lines = [
            Line(name, *run.series(key), COLOURS[place % len(COLOURS)], dashed=place >= 5)
            for place, (name, run) in enumerate(zip(names, runs, strict=True))
        ]
        lines = [line for line in lines if line.xs]
        if lines:
            drawn.append(figure(title, line_chart(lines, "optimizer step", unit)))
    pairs = [drawn[at : at + 2] for at in range(0, len(drawn), 2)]
    return "".join(
        f'<div class="pair">{"".join(f"<div>{one}</div>" for one in pair)}</div>' for pair in pairs
    )


def _differences(runs: Sequence[RunFolder], names: Sequence[str]) -> str:
    settings = [flat(run.run.get("config") or {}) for run in runs]
    keys = [key for one in settings for key in one]
    differ = [key for key in dict.fromkeys(keys) if len({str(s.get(key)) for s in settings}) > 1]
    if not differ:
        return ""
    rows = (
        (esc(key, 80), *(esc(one.get(key), 80) for one in settings))
        for key in differ[:_MOST_SETTINGS]
    )
    return table(("setting", *names), rows)


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    if not isinstance(config, dict):
        return {prefix: config}
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found
