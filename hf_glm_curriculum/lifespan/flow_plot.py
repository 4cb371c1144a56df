"""The picture of how samples moved between states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.lifespan.flows import ORDER, UNSEEN, Layout, Moment, Ribbon, layout
from hf_glm_curriculum.lifespan.plots import STATE_COLOURS

UNSEEN_COLOUR = "#c9ccd1"
_BAR = 0.09
_LABELLED = 0.04
_MOST_NAMES = 16


def states_png(moments: Sequence[Moment], path: Path) -> None:
    """Draw the states of all samples at every moment, with ribbons for those that moved.

    Args:
        moments: of ``StateFlow``.
        path: PNG to write; nothing is drawn if no sample ever moved.

    Raises:
        StateError: if the file cannot be written.
    """
    if not moments:
        return
    found = layout(moments)
    figure = new_figure(max(7.0, min(14.0, 1.5 + 1.2 * len(moments))), 4.6)
    axes: Any = figure.subplots()
    for ribbon in found.ribbons:
        _draw_ribbon(axes, ribbon, found.total)
    _draw_stacks(axes, found)
    names = ["start", *(f"{m.name}\nstep {m.step}" for m in moments)]
    shown = range(0, len(names), -(-len(names) // _MOST_NAMES))
    axes.set_xticks(list(shown), [names[i] for i in shown], fontsize=8)
    axes.set_ylabel("samples")
    axes.set_title(f"States of {found.total:,} samples")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)


def colour(state: str) -> str:
    """Colour of a state, or of samples that were not seen yet."""
    return STATE_COLOURS.get(state, UNSEEN_COLOUR)


def _draw_ribbon(axes: Any, ribbon: Ribbon, total: int) -> None:
    share = np.linspace(0, 1, 40)
    ease = share * share * (3 - 2 * share)
    low, high = (
        left + (right - left) * ease for left, right in zip(ribbon.left, ribbon.right, strict=True)
    )
    start = ribbon.column + _BAR
    x = start + share * (1 - 2 * _BAR)
    stays = ribbon.source == ribbon.target
    axes.fill_between(x, low, high, color=colour(ribbon.target), alpha=0.18 if stays else 0.5, lw=0)
    if not stays and ribbon.samples >= _LABELLED * total:
        middle = (low[20] + high[20]) / 2
        axes.text(ribbon.column + 0.5, middle, f"{ribbon.samples:,}", ha="center", va="center",
                  fontsize=7)  # fmt: skip


def _draw_stacks(axes: Any, found: Layout) -> None:
    for state in ORDER:
        label = "not seen yet" if state == UNSEEN else state.lower()
        for number, column in enumerate(found.columns):
            if state in column:
                low, high = column[state]
                axes.bar(number, high - low, 2 * _BAR, low, color=colour(state), label=label)
                label = None
