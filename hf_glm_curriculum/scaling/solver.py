"""The robust fit itself: summed Huber on residuals, from a grid of starts, by batched L-BFGS.

Shape letters: S starts, B bootstraps, n runs, P parameters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.scaling.lbfgs import minimise

Array = NDArray[np.float64]

_RESTARTS, _AT_ONCE = 4, 400
_SAME = 1e-6


class Predictor(Protocol):
    """What is fitted: predictions whose difference to the targets is made small."""

    def log_loss(self, theta: Array, x: Array) -> tuple[Array, object]:
        """Predictions [S, n] and their pullback."""
        ...


@dataclass
class Solution:
    """The minimum and how it was found.

    Attributes:
        theta: [P] internal parameters for the x given.
        objective: Σ Huber(residual).
        starts: How many there were.
        converged: Share of them that ended by themselves.
        at_best: Share of them that ended at this minimum.
        next_best: The lowest other objective; None if there is no other.
        iterations: Of the winner.
        gradient: Largest component of the winner's gradient, in units of the objective.
        seconds: Wall time.
        others: [R, P] a few other end points, for restarts.
    """

    theta: Array
    objective: float
    starts: int
    converged: float
    at_best: float
    next_best: float | None
    iterations: int
    gradient: float
    seconds: float
    others: Array


def huber(residuals: Array, delta: float) -> tuple[Array, Array]:
    """Huber's loss of every residual and its derivative: r²/2 up to delta, δ·(|r| − δ/2) beyond."""
    size = np.abs(residuals)
    value = np.where(size <= delta, 0.5 * residuals**2, delta * (size - 0.5 * delta))
    return value, np.clip(residuals, -delta, delta)


def solve(form: Predictor, x: Array, target: Array, starts: Array, delta: float) -> Solution:
    """Fit from every start and keep the lowest minimum.

    Args:
        form: Predicts.
        x: [n, K] logarithms of the inputs.
        target: [n] ln L (or what the form predicts).
        starts: [S, P].
        delta: Huber's threshold.
    """
    began = time.perf_counter()
    ones = np.ones((1, len(target)))
    found = minimise(_objective(form, x, target, delta, ones, 1), starts)
    order = np.argsort(found.value)
    best, values = order[0], found.value * delta**2
    other = values[order][values[order] > values[best] * (1 + _SAME) + 1e-15]
    picks = order[np.linspace(0, len(order) - 1, _RESTARTS).astype(int)]
    return Solution(
        theta=found.theta[best],
        objective=float(values[best]),
        starts=len(starts),
        converged=float(found.converged.mean()),
        at_best=float((values <= values[best] * (1 + _SAME) + 1e-15).mean()),
        next_best=float(other[0]) if len(other) and np.isfinite(other[0]) else None,
        iterations=int(found.iterations[best]),
        gradient=float(found.gradient[best] * delta**2),
        seconds=time.perf_counter() - began,
        others=starts[picks],
    )


def bootstrap(
    form: Predictor,
    x: Array,
    target: Array,
    solution: Solution,
    delta: float,
    count: int,
    generator: np.random.Generator,
) -> Array:
    """[B, P] minima for runs drawn with replacement; each from the optimum and a few grid starts.

    Args:
        form: Predicts.
        x: [n, K].
        target: [n].
        solution: Of all runs.
        delta: Huber's threshold.
        count: B.
        generator: Draws.
    """
    n = len(target)
    starts = np.concatenate([solution.theta[None], solution.others])
    found = []
    for begin in range(0, count, _AT_ONCE):
        size = min(_AT_ONCE, count - begin)
        weights = generator.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)
        each = np.tile(starts, (size, 1))
        result = minimise(_objective(form, x, target, delta, weights, len(starts)), each, 300)
        value = result.value.reshape(size, -1)
        best = value.argmin(1) + len(starts) * np.arange(size)
        found.append(result.theta[best])
    return np.concatenate(found)


def _objective(form: Predictor, x: Array, target: Array, delta: float, weights: Array, per: int):
    """The objective over delta², weights [B, n] with `per` starts each; see `lbfgs.Objective`."""

    def objective(theta: Array, which: NDArray[np.int64]) -> tuple[Array, Array]:
        value, pull = form.log_loss(theta, x)
        loss, slope = huber(value - target, delta)
        weight = weights[which // per] if len(weights) > 1 else weights
        return (weight * loss).sum(1) / delta**2, pull(weight * slope / delta**2)  # type: ignore[operator]

    return objective
