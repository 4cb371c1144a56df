"""Pictures of a law: the fit with bands, iso-FLOP valleys, the frontier with the users' runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.scaling.law import ScalingLaw
from hf_glm_curriculum.scaling.runs import DIVERGED, OUTLIER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_MOST_SIZES, _MOST_VALLEYS, _POINTS = 8, 5, 160
_NEAR, _WIDE = 0.15, 5.0
_GREY, _LAW, _BEST = "#8c8c8c", "#333333", "#d64550"


def _colour(place: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](0.92 * place)


def fit_png(law: ScalingLaw, path: Path) -> None:
    """Draw loss against tokens, one line a model size with its 95 % band, the runs on top.

    Args:
        law: A fitted law.
        path: PNG to write.

    Raises:
        DataError: The law was given, not fitted.
        StateError: The file cannot be written.
    """
    n, d, loss = _runs(law)
    figure = new_figure(10.0, 4.6)
    panels: Any = figure.subplots(1, 2, width_ratios=(3, 2))
    left, right = panels
    tokens = np.geomspace(d.min() / 1.5, d.max() * 3, _POINTS)
    sizes = _spread(n)
    for place, size in enumerate(sizes):
        colour = _colour(place / max(1, len(sizes) - 1))
        low, high = law.predict_interval(size, tokens, _unique(law))
        left.fill_between(tokens, low, high, color=colour, alpha=0.18, lw=0)
        line = law.predict(size, tokens, _unique(law))
        left.plot(tokens, line, color=colour, lw=1.2, label=_short(size))
    ranks = np.interp(np.log(n), np.log(sizes), np.linspace(0, 1, len(sizes)))
    left.scatter(d, loss, c=[_colour(rank) for rank in ranks], s=16, zorder=3, lw=0)
    _mark(left, law, d, loss)
    left.set_xlabel("tokens D")
    left.set_ylabel(f"loss L, {law.conventions.loss}")
    left.set_title(f"{law.formula}", fontsize=9)
    left.legend(title="parameters N", fontsize=7, title_fontsize=7, frameon=False)
    _residuals(right, law, n, d, loss)
    _logarithmic(left)
    save_figure(figure, path)


def _residuals(axes: Axes, law: ScalingLaw, n: Array, d: Array, loss: Array) -> None:
    """Relative errors against compute."""
    unique = law.evidence.runs.inputs.get("U") if law.evidence else None
    errors = 100 * (law.predict(n, d, unique) / loss - 1)
    flops = law.conventions.flops(n, d)
    axes.axhline(0, color=_LAW, lw=0.8)
    axes.scatter(flops, errors, c=_GREY, s=14, lw=0)
    _mark(axes, law, flops, errors)
    axes.set_xscale("log")
    axes.set_xlabel("training FLOPs C")
    axes.set_ylabel("predicted over measured, %")
    axes.set_title("residuals", fontsize=9)
    axes.grid(alpha=0.25)


def isoflop_png(law: ScalingLaw, path: Path, budgets: Sequence[float] | None = None) -> None:
    """Draw loss against model size at fixed compute, with bands, the valley floors and near runs.

    Args:
        law: A fitted law.
        path: PNG to write.
        budgets: FLOPs of the valleys; None spreads five over the runs and one beyond.

    Raises:
        DataError: The law was given, not fitted.
        StateError: The file cannot be written.
    """
    n, d, loss = _runs(law)
    flops = law.conventions.flops(n, d)
    if budgets is None:
        inside = np.geomspace(np.quantile(flops, 0.1), flops.max(), _MOST_VALLEYS)
        budgets = [*inside, 10 * float(flops.max())]
    figure = new_figure(7.6, 4.8)
    axes = figure.subplots()
    floors = []
    for place, budget in enumerate(budgets):
        colour = _colour(place / max(1, len(budgets) - 1))
        best = law.optimal(budget, _unique(law))
        floors.append(best)
        # Not far beyond sizes that were run: bands of a poor law would hide the valleys.
        low_n = max(best.N / 12, min(best.N, float(n.min())) / 2)
        high_n = min(best.N * 12, max(best.N, float(n.max())) * 2)
        sizes = np.geomspace(low_n, high_n, _POINTS)
        tokens = law.conventions.tokens(budget, sizes)
        low, high = law.predict_interval(sizes, tokens, _unique(law))
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, lw=0)
        valley = law.iso_flop(budget, sizes, _unique(law))
        axes.plot(sizes, valley, color=colour, lw=1.2, label=f"{budget:.1e}")
        near = np.abs(np.log(flops / budget)) < _NEAR
        axes.scatter(n[near], loss[near], color=colour, s=18, zorder=3, lw=0)
    axes.plot([f.N for f in floors], [f.L for f in floors], "--o", color=_BEST, ms=4, lw=1)
    axes.set_xlabel("parameters N")
    axes.set_ylabel(f"loss L, {law.conventions.loss}")
    axes.set_title("iso-FLOP valleys; dashed: the best size for each budget", fontsize=9)
    axes.legend(title="FLOPs", fontsize=7, title_fontsize=7, frameon=False)
    _logarithmic(axes)
    save_figure(figure, path)


def frontier_png(
    law: ScalingLaw, path: Path, runs: tuple[Array, Array, Array] | None = None
) -> None:
    """Draw the lowest loss for each budget with its band, and the user's runs beside it.

    Args:
        law: A fitted law.
        path: PNG to write.
        runs: (N, D, L) of runs to show besides those fitted.

    Raises:
        DataError: The law was given, not fitted.
        StateError: The file cannot be written.
    """
    n, d, loss = _runs(law)
    flops = law.conventions.flops(n, d)
    budgets = np.geomspace(flops.min(), 100 * flops.max(), 40)
    best = np.array([law.optimal(c, _unique(law)) for c in budgets])
    spread = [law.optimal_interval(c, _unique(law)) for c in budgets]
    figure = new_figure(10.0, 4.6)
    panels: Any = figure.subplots(1, 2)
    left, right = panels
    for axes, column, name, values in ((left, 2, "L", loss), (right, 0, "N", n)):
        low, high = np.array([bounds[name] for bounds in spread]).T
        axes.fill_between(budgets, low, high, color=_BEST, alpha=0.18, lw=0)
        axes.plot(budgets, best[:, column], color=_BEST, lw=1.4, label="best for the budget")
        axes.scatter(flops, values, color=_GREY, s=14, lw=0, label="runs fitted")
        if runs is not None:
            own = law.conventions.flops(runs[0], runs[1])
            theirs = runs[2] if name == "L" else runs[0]
            axes.scatter(own, theirs, color="#4c78a8", marker="*", s=60, label="your runs")
        axes.axvline(flops.max(), color=_GREY, lw=0.8, ls=":")
        axes.set_xlabel("training FLOPs C (dotted: the largest run)")
        _logarithmic(axes)
    left.set_ylabel(f"loss L, {law.conventions.loss}")
    right.set_ylabel("parameters N")
    slope = law.compute_exponent
    right.set_title("" if slope is None else f"N_opt ∝ C^{slope:.2f}", fontsize=9)
    left.legend(fontsize=7, frameon=False)
    save_figure(figure, path)


def _runs(law: ScalingLaw) -> tuple[Array, Array, Array]:
    """N, D, L of the runs behind a law."""
    if law.evidence is None:
        raise DataError("this law was given, not fitted: there are no runs to draw")
    runs = law.evidence.runs
    return runs.inputs["N"], runs.inputs["D"], runs.values


def _unique(law: ScalingLaw) -> float | None:
    """Unique tokens for curves of a law of repeated data: the largest among its runs."""
    if law.evidence is None or "U" not in law.evidence.runs.inputs:
        return None
    return float(law.evidence.runs.inputs["U"].max())


def _spread(values: Array) -> Array:
    """A few of the distinct values, evenly over their range."""
    distinct = np.unique(np.round(np.log(values), 1))
    picks = np.unique(np.linspace(0, len(distinct) - 1, _MOST_SIZES).round().astype(int))
    return np.exp(distinct[picks])


def _mark(axes: Axes, law: ScalingLaw, x: Array, y: Array) -> None:
    """Ring the runs that are flagged."""
    if law.evidence is None:
        return
    rows = {flag.row for flag in law.flags if flag.used and flag.kind in (DIVERGED, OUTLIER)}
    chosen = np.isin(law.evidence.runs.rows, list(rows))
    if chosen.any():
        axes.scatter(x[chosen], y[chosen], s=60, facecolors="none", edgecolors=_BEST, lw=1)


def _logarithmic(axes: Axes) -> None:
    """The x axis in logarithms, the y axis too where it spans more than a factor of five."""
    axes.set_xscale("log")
    low, high = axes.get_ylim()
    if low > 0 and high / low > _WIDE:
        axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _short(count: float) -> str:
    """1.2e6 → 1.2M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.3g}"
