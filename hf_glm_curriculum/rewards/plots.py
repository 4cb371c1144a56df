"""Pictures of a trained reward model: reliability, score distributions, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.rewards.reward_data import Examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHOSEN, REJECTED, OTHER = "#4c78a8", "#e4733a", "#8c8c8c"
_PALETTE = ("#4c78a8", "#e4733a", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#eeca3b", "#d67195")


def reliability_png(figures: Mapping[str, Mapping[str, Any]], threshold: float, path: Path) -> None:
    """Draw how often statements of each confidence were right, before and after calibration.

    Args:
        figures: dimension → figures of `split_figures` on one split.
        threshold: of the gate.
        path: PNG to write.

    Raises:
        StateError: The file cannot be written.
    """
    figure, panels = _panels(len(figures))
    for axes, (name, one) in zip(panels, figures.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="#bbbbbb", lw=0.8)
        if one.get("reliability_before"):
            x, y, _ = zip(*one["reliability_before"], strict=True)
            axes.plot(x, y, "o--", color=OTHER, ms=3, lw=0.8, label="before calibration")
        if one.get("reliability"):
            x, y, n = zip(*one["reliability"], strict=True)
            axes.plot(x, y, color=CHOSEN, lw=1.2, label="after")
            axes.scatter(x, y, s=[8 + 60 * count / sum(n) for count in n], color=CHOSEN)
        axes.axvline(threshold, color="#888888", lw=0.8, ls=":")
        axes.set_title(f"{name}: ECE {_shown(one.get('ece'))}", fontsize=10)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("confidence")
    panels[0].set_ylabel("share right")
    panels[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def scores_png(
    scores: Tensor, examples: Examples, dimensions: Sequence[str], path: Path, split: str
) -> None:
    """Draw each dimension's scores of chosen and of rejected responses.

    Args:
        scores: [N, D] of all items.
        examples: the split drawn.
        dimensions: names of the columns.
        path: PNG to write.
        split: what the title calls it.

    Raises:
        StateError: The file cannot be written.
    """
    figure, panels = _panels(len(dimensions))
    bins = np.linspace(0, 1, 21)
    for column, (axes, name) in enumerate(zip(panels, dimensions, strict=True)):
        pairs = examples.pairs[examples.pair_dimension == column]
        for side, label, colour in ((0, "chosen", CHOSEN), (1, "rejected", REJECTED)):
            if len(pairs):
                values = scores[pairs[:, side], column].numpy()
                axes.hist(values, bins.tolist(), alpha=0.6, color=colour, label=label)
        rated = examples.rated[~examples.ratings[:, column].isnan()]
        if len(rated):
            values = scores[rated, column].numpy()
            axes.hist(values, bins.tolist(), histtype="step", color="#333333", label="rated")
        axes.axvline(0.5, color="#888888", lw=0.8, ls=":")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(f"score, {split}")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("responses")
    save_figure(figure, path)


def risk_coverage_png(figures: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the share of wrong scores among the most confident ones, by how many are kept.

    Args:
        figures: dimension → figures of `split_figures` on one split.
        path: PNG to write.

    Raises:
        StateError: The file cannot be written.
    """
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    for number, (name, one) in enumerate(figures.items()):
        if one.get("risk_coverage"):
            x, y = zip(*one["risk_coverage"], strict=True)
            axes.plot(x, y, color=_PALETTE[number % len(_PALETTE)], label=name)
    axes.set_xlabel("share of scores kept, most confident first")
    axes.set_ylabel("share wrong among them")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def training_png(
    history: Sequence[Mapping[str, float]], dimensions: Sequence[str], path: Path
) -> None:
    """Draw training and validation loss by epoch.

    Args:
        history: metrics of each epoch.
        dimensions: names.
        path: PNG to write.

    Raises:
        StateError: The file cannot be written.
    """
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    epochs = range(1, len(history) + 1)
    axes.plot(epochs, [entry["loss"] for entry in history], color=OTHER, ls="--", label="training")
    for number, name in enumerate(dimensions):
        values = [entry.get(f"eval_loss_{name}", np.nan) for entry in history]
        axes.plot(epochs, values, color=_PALETTE[number % len(_PALETTE)], label=name)
    axes.set_xlabel("epoch")
    axes.set_ylabel("loss, nats an example")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def drift_png(drift: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy, mean score and open gates of an old and a new model, by dimension.

    Args:
        drift: what `refresh_reward_model` writes as `drift.json`.
        path: PNG to write.

    Raises:
        StateError: The file cannot be written.
    """
    sets = {"fixed pairs": drift["fixed"]}
    if drift.get("policy_pairs"):
        sets["the policy's pairs"] = drift["policy_pairs"]
    kinds = {"pairs right": "accuracy", "mean score": "mean", "gates open": "open"}
    figure, panels = _panels(len(kinds) * len(sets))
    cells = [
        (title, found, key, what) for title, found in sets.items() for what, key in kinds.items()
    ]
    for axes, (title, found, key, what) in zip(panels, cells, strict=True):
        places = np.arange(len(found))
        for shift, age, color in ((-0.2, "old", OTHER), (0.2, "new", CHOSEN)):
            heights = [one[f"{key}_{age}"] or 0.0 for one in found.values()]
            axes.bar(places + shift, heights, 0.38, color=color, label=age)
        axes.set_xticks(places, list(found), fontsize=8)
        axes.set_ylim(0, 1.02)
        axes.set_title(f"{what}, {title}", fontsize=9)
    panels[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = new_figure(2.6 + 2.2 * count, 3.2)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
