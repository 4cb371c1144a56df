"""Pictures of a migration: weights per layer, injected ratio, losses of the objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.migration.schedule import INSTRUCTION, PRETRAIN, MigrationSchedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"pretrain": "#4c78a8", "instruction": "#e4733a", "other": "#8c8c8c"}
"""One colour an objective, the same in every picture."""

_COLUMNS = 200


def plotted_steps(schedule: MigrationSchedule, most: int = _COLUMNS) -> list[int]:
    """Evenly spaced steps from one window's length before the migration to what follows it."""
    length = schedule.end - schedule.begin
    first = max(0, schedule.begin - length)
    last = min(schedule.max_steps, schedule.end + max(length, schedule.post_ramp))
    count = min(most, last - first + 1)
    return sorted({round(first + i * (last - first) / max(1, count - 1)) for i in range(count)})


def layers_png(schedule: MigrationSchedule, blocks: int, path: Path) -> None:
    """Draw the weight of both objectives, layer by step.

    Args:
        schedule: of the run.
        blocks: transformer blocks of the model.
        path: PNG to write.

    Raises:
        StateError: if the file cannot be written.
    """
    steps = plotted_steps(schedule)
    weights = torch.stack([schedule.weights(step, blocks) for step in steps], dim=2)
    figure = new_figure(7.0, 5.6)
    panels = figure.subplots(2, 1, sharex=True)
    names = ("pre-training", "instruction")
    for axes, name, number in zip(panels, names, (PRETRAIN, INSTRUCTION), strict=True):
        image = axes.pcolormesh(
            steps, range(blocks + 2), weights[number].numpy(), vmin=0, vmax=1, shading="nearest"
        )
        axes.set_title(f"weight of the {name} objective", fontsize=10)
        axes.set_yticks([0, blocks + 1], ["embeddings", "head"])
        axes.set_ylabel("layer")
        _mark_window(axes, schedule, "white")
    figure.colorbar(image, ax=panels, label="weight")
    panels[-1].set_xlabel("optimizer step")
    save_figure(figure, path)


def ratios_png(
    schedule: MigrationSchedule, metrics: Sequence[Mapping[str, Any]], prefix: str, path: Path
) -> None:
    """Draw the share of instructions among label tokens: asked, drawn and trained on.

    Args:
        schedule: of the run.
        metrics: lines of ``metrics.jsonl``.
        prefix: of the callback's metrics, such as ``migration/``.
        path: PNG to write.

    Raises:
        StateError: if the file cannot be written.
    """
    figure = new_figure()
    axes = figure.subplots()
    steps = plotted_steps(schedule, 2000)
    asked = [schedule.injected_ratio(step) for step in steps]
    axes.step(steps, asked, where="post", color=COLOURS["instruction"], label="asked")
    for name, colour, style in (("drawn", "#333333", "o-"), ("trained", "#54a24b", "x-")):
        points = _series(metrics, f"{prefix}ratio_{name}")
        points = [(step, value) for step, value in points if step >= steps[0]]
        if points:
            axes.plot(*zip(*points, strict=True), style, color=colour, ms=3, lw=0.8, label=name)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("instructions' share of label tokens")
    axes.grid(alpha=0.25)
    _mark_window(axes, schedule, "#888888")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def losses_png(
    schedule: MigrationSchedule, metrics: Sequence[Mapping[str, Any]], prefix: str, path: Path
) -> None:
    """Draw each objective's mean training loss; nothing for a run that never logged one.

    Args:
        schedule: of the run.
        metrics: lines of ``metrics.jsonl``.
        prefix: of the callback's metrics, such as ``migration/``.
        path: PNG to write.

    Raises:
        StateError: if the file cannot be written.
    """
    found = {name: _series(metrics, f"{prefix}loss_{name}") for name in COLOURS}
    found = {name: points for name, points in found.items() if points}
    if not found:
        return
    figure = new_figure()
    axes = figure.subplots()
    for name, points in found.items():
        axes.plot(*zip(*points, strict=True), color=COLOURS[name], label=name)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss, nats a label token")
    axes.grid(alpha=0.25)
    _mark_window(axes, schedule, "#888888")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _mark_window(axes: Axes, schedule: MigrationSchedule, colour: str) -> None:
    for step in (schedule.begin, schedule.end):
        axes.axvline(step, color=colour, lw=0.8, ls=":")


def _series(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    lines = (m for m in metrics if m.get(name) is not None)
    return [(int(m["step"]), float(m[name])) for m in lines]
