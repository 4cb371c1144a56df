"""Pictures of rewards: gates over time, and checkpoints side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.rewards.pipeline import PREFIX

COLOURS = ("#4c78a8", "#e4733a", "#54a24b", "#9d6cc3", "#f2b134", "#d64550", "#72b7b2", "#8c8c8c")
"""One colour a dimension or checkpoint, in order."""

Results = Mapping[str, Mapping[str, float]]


def gate_openness_png(
    metrics: Sequence[Mapping[str, Any]],
    path: str | PathLike[str],
    *,
    dimensions: Sequence[str] | None = None,
    prefix: str = PREFIX,
) -> bool:
    """Draw, over the steps of a run, the share of rows in which each dimension is open.

    The lower panel shows each dimension's mean score.

    Args:
        metrics: lines of `metrics.jsonl`, or a trainer's `log_history`.
        path: PNG to write.
        dimensions: which to draw; all that the metrics name without it.
        prefix: of the metrics' names.

    Returns:
        Whether anything was drawn: a run that never logged gates has no picture.

    Raises:
        StateError: if the file cannot be written.
    """
    names = list(dimensions or _dimensions(metrics, prefix))
    opened = {name: _series(metrics, f"{prefix}open_{name}") for name in names}
    if not any(opened.values()):
        return False
    figure = new_figure(7.0, 5.4)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for place, name in enumerate(names):
        colour = COLOURS[place % len(COLOURS)]
        scores = _series(metrics, f"{prefix}score_{name}")
        for axes, points in ((upper, opened[name]), (lower, scores)):
            if points:
                axes.plot(*zip(*points, strict=True), color=colour, label=name, marker=".", ms=4)
    upper.set_ylabel("share of rows open")
    lower.set_ylabel("mean score")
    lower.set_xlabel("optimizer step")
    for axes in (upper, lower):
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.25)
    upper.legend(frameon=False, fontsize=8)
    save_figure(figure, Path(path))
    return True


def checkpoint_radar_png(results: Results, path: str | PathLike[str]) -> None:
    """Draw checkpoints as polygons over their dimensions, in [0, 1]; needs three dimensions.

    Args:
        results: checkpoint → dimension → mean score in [0, 1].
        path: PNG to write.

    Raises:
        DataError: if there is no checkpoint, they differ in dimensions, or have less than three.
        StateError: if the file cannot be written.
    """
    names = _shared_dimensions(results)
    if len(names) < 3:
        raise DataError(
            f"results: a radar needs three dimensions, got {', '.join(names)}; use "
            "checkpoint_bars_png"
        )
    figure = new_figure(6.0, 5.2)
    axes: Any = figure.add_subplot(projection="polar")
    angles = [2 * math.pi * place / len(names) for place in range(len(names))]
    for place, (title, values) in enumerate(results.items()):
        colour = COLOURS[place % len(COLOURS)]
        heights = [values[name] for name in names]
        axes.plot([*angles, angles[0]], [*heights, heights[0]], color=colour, label=title)
        axes.fill(angles, heights, color=colour, alpha=0.1)
    axes.set_xticks(angles, names)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1.05))
    save_figure(figure, Path(path))


def checkpoint_bars_png(results: Results, path: str | PathLike[str]) -> None:
    """Draw checkpoints as bars, one group a dimension.

    Args:
        results: checkpoint → dimension → mean score.
        path: PNG to write.

    Raises:
        DataError: if there is no checkpoint, or they differ in dimensions.
        StateError: if the file cannot be written.
    """
    names = _shared_dimensions(results)
    figure = new_figure()
    axes = figure.subplots()
    width = 0.8 / len(results)
    for place, (title, values) in enumerate(results.items()):
        offset = (place - (len(results) - 1) / 2) * width
        at = [column + offset for column in range(len(names))]
        heights = [values[name] for name in names]
        bars = axes.bar(at, heights, width * 0.95, color=COLOURS[place % len(COLOURS)], label=title)
        axes.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("mean score")
    axes.grid(alpha=0.25, axis="y")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, Path(path))


def _shared_dimensions(results: Results) -> list[str]:
    if not results:
        raise DataError("results: needs at least one checkpoint, got none")
    first, *others = results
    names = list(results[first])
    for title in others:
        if set(results[title]) != set(names):
            raise DataError(
                f"results: {title} has {', '.join(results[title])}, {first} has "
                f"{', '.join(names)}; score all checkpoints with one reward model"
            )
    if not names:
        raise DataError("results: needs at least one dimension, got none")
    return names


def _dimensions(metrics: Sequence[Mapping[str, Any]], prefix: str) -> list[str]:
    """Dimensions in the order in which the metrics first name them."""
    start = f"{prefix}open_"
    found = [
        name.removeprefix(start) for line in metrics for name in line if name.startswith(start)
    ]
    return list(dict.fromkeys(found))


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    lines = (line for line in metrics if line.get(name) is not None)
    return [(int(line["step"]), float(line[name])) for line in lines]
