"""Figures with their intervals, one line a figure, one colour a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_glm_curriculum.evaluation.report_style import esc, is_number
from hf_glm_curriculum.evaluation.svg_charts import Axes, legend

COLOURS = (
    "var(--training)",
    "var(--observed)",
    "var(--mastered)",
    "var(--resample)",
    "var(--relabel)",
    "var(--clean)",
)
_LEFT, _TOP, _BOTTOM, _LINE = 190, 14, 44, 13


def interval_chart(
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]], models: Sequence[str], x_label: str
) -> str:
    """Dots with whiskers for values in [0, 1]; "" where no figure has an interval.

    Args:
        figures: Figure → model → ``value``, ``low``, ``high``, as `measured.compare` gives them.
        models: In the order of their colours.
        x_label: What the axis shows.
    """
    rows = {name: cells for name, cells in figures.items() if any(map(_known, cells.values()))}
    if not rows:
        return ""
    step = _LINE * len(models) + 12
    axes = Axes((0.0, 1.0), (0.0, 1.0), _TOP + _BOTTOM + step * len(rows), _LEFT)
    body = [axes.x_axis(x_label, lines=True)]
    for place, (name, cells) in enumerate(rows.items()):
        middle = _TOP + step * (place + 0.5)
        body.append(f'<text class="tick" x="{_LEFT - 10}" y="{middle + 4}" text-anchor="end">')
        body.append(f"{esc(name.replace('_', ' '), 40)}</text>")
        for order, model in enumerate(models):
            y = middle + (order - (len(models) - 1) / 2) * _LINE
            body.append(_whisker(axes, cells.get(model), y, COLOURS[order % len(COLOURS)], model))
    keys = [(model, COLOURS[order % len(COLOURS)]) for order, model in enumerate(models)]
    return axes.svg("".join(body), x_label) + legend(keys)


def _known(cell: Mapping[str, Any] | None) -> bool:
    return cell is not None and all(is_number(cell.get(key)) for key in ("value", "low", "high"))


def _whisker(axes: Axes, cell: Mapping[str, Any] | None, y: float, colour: str, model: str) -> str:
    """One model's value and interval, with a tooltip."""
    if cell is None or not _known(cell):
        return ""
    low, value, high = (axes.x(cell[key]) for key in ("low", "value", "high"))
    said = f"{model}: {cell['value']:.3f} ({cell['low']:.3f} … {cell['high']:.3f})"
    return (
        f'<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" style="stroke:{colour};stroke-width:2"/>'
        f'<circle class="dot" cx="{value}" cy="{y}" r="4" style="fill:{colour}">'
        f"<title>{esc(said)}</title></circle>"
    )
