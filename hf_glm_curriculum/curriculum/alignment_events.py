"""The switches of a run, as lines of a file and as marks in a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.storage import append_line

_COLOURS = ("#4c78a8", "#e4733a", "#54a24b", "#b279a2", "#8c8c8c")


def write_event(path: Path, event: Mapping[str, Any]) -> None:
    """Add one line.

    Raises:
        StateError: if the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps(dict(event), ensure_ascii=False))


def monitor_png(
    metrics: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    prefix: str,
    path: Path,
) -> None:
    """Draw the variance with its levels, the switches, and the sources' shares.

    Args:
        metrics: lines of ``metrics.jsonl``.
        events: lines of ``events.jsonl``, oldest first.
        prefix: of the callback's metrics, such as ``monitor/``.
        path: PNG to write.

    Raises:
        StateError: if the file cannot be written.
    """
    figure = new_figure(7.0, 6.0)
    above, below = figure.subplots(2, 1, sharex=True)
    for name, style, colour in (
        ("variance", ".", "#bbbbbb"),
        ("variance_smoothed", "-", "#333333"),
        ("threshold", "--", "#e45756"),
        ("release", ":", "#54a24b"),
    ):
        points = _series(metrics, prefix + name)
        if points:
            label = name.replace("_", " ")
            above.plot(*zip(*points, strict=True), style, color=colour, lw=1, label=label)
    above.set_ylabel("variance of the scores")
    ratios = sorted({key for line in metrics for key in line if key.startswith(f"{prefix}ratio_")})
    for number, key in enumerate(ratios):
        points, colour = _series(metrics, key), _COLOURS[number % len(_COLOURS)]
        name = key.removeprefix(f"{prefix}ratio_")
        below.step(*zip(*points, strict=True), where="post", color=colour, label=name)
    below.set_ylabel("share of the source")
    below.set_xlabel("optimizer step")
    for event in events:
        for axes in (above, below):
            colour = "#e45756" if event["event"] == "to_base" else "#54a24b"
            axes.axvline(event["step"], color=colour, lw=0.9, alpha=0.7)
    for axes in (above, below):
        axes.grid(alpha=0.25)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    lines = (m for m in metrics if m.get(name) is not None)
    return [(int(m["step"]), float(m[name])) for m in lines]
