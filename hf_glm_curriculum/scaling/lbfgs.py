"""L-BFGS over many starts at once: every start has its own memory and its own line search.

Shape letters: S starts, P parameters, H pairs in memory.

The line search is the weak-Wolfe bisection of Lewis and Overton (2013), which also suits functions
that are nearly non-smooth, as a Huber loss with a small threshold is. Source of the two-loop
recursion: Nocedal and Wright, *Numerical Optimization*, algorithm 7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Objective = Callable[[Array, NDArray[np.int64]], tuple[Array, Array]]
"""(theta [S, P], which starts these are [S]) → (values [S], gradients [S, P])."""

_MEMORY, _TRIALS = 10, 30
_ARMIJO, _WOLFE = 1e-4, 0.9
_STILL = 8


@dataclass
class Minimum:
    """Where every start ended.

    Attributes:
        theta: [S, P].
        value: [S].
        gradient: [S] largest |component| of the gradient.
        iterations: [S].
        converged: [S] gradient below the tolerance, or no progress possible in float64.
    """

    theta: Array
    value: Array
    gradient: Array
    iterations: NDArray[np.int64]
    converged: NDArray[np.bool_]


def minimise(
    objective: Objective, starts: Array, iterations: int = 500, tolerance: float = 1e-7
) -> Minimum:
    """Minimise from every start.

    Args:
        objective: Values and gradients of the starts whose numbers it is given.
        starts: [S, P].
        iterations: Most steps of one start.
        tolerance: Relative change of the value and size of the gradient that count as the end.
    """
    count, width = starts.shape
    result = Minimum(
        starts.copy(),
        np.full(count, np.inf),
        np.full(count, np.inf),
        np.zeros(count, np.int64),
        np.zeros(count, bool),
    )
    active = np.arange(count)
    value, gradient = objective(starts, active)
    good = np.isfinite(value) & np.isfinite(gradient).all(1)
    state = _State(active[good], starts[good].copy(), value[good], gradient[good], width)
    for step in range(iterations):
        if not len(state.which):
            break
        _step(objective, state, tolerance)
        ended = state.ended(tolerance)
        if ended.any() or step == iterations - 1:
            gone = ended if step < iterations - 1 else np.ones(len(ended), bool)
            _keep(result, state, gone, ended, step + 1)
            state = state.rest(~gone)
    return result


class _State:
    """The starts still under way."""

    def __init__(
        self, which: NDArray[np.int64], theta: Array, value: Array, gradient: Array, width: int
    ) -> None:
        self.which, self.theta, self.value, self.gradient = which, theta, value, gradient
        self.steps: list[Array] = []
        self.changes: list[Array] = []
        self.still = np.zeros(len(which), np.int64)
        self.width = width

    def direction(self) -> Array:
        """[S, P] the two-loop recursion; pairs without curvature count as absent."""
        q = self.gradient.copy()
        kept = []
        for s, y in zip(reversed(self.steps), reversed(self.changes), strict=True):
            curvature = (s * y).sum(1)
            rho = np.where(curvature > 0, 1 / np.where(curvature > 0, curvature, 1), 0)
            a = rho * (s * q).sum(1)
            q -= a[:, None] * y
            kept.append((s, y, rho, a))
        if kept:
            s, y, rho, _ = kept[0]
            scale = (s * y).sum(1) / np.maximum((y * y).sum(1), 1e-300)
            q *= np.where(rho > 0, scale, 1.0)[:, None]
        else:
            q /= np.maximum(np.abs(q).max(1, keepdims=True), 1e-300) / 0.1
        for s, y, rho, a in reversed(kept):
            q += s * (a - rho * (y * q).sum(1))[:, None]
        down = (q * self.gradient).sum(1) > 0
        return -np.where(down[:, None], q, self.gradient)

    def advance(self, theta: Array, value: Array, gradient: Array, tolerance: float) -> None:
        """Move on, remembering the pair."""
        s, y = theta - self.theta, gradient - self.gradient
        flat = (s * y).sum(1) <= 1e-14 * np.sqrt((s * s).sum(1) * (y * y).sum(1))
        s[flat], y[flat] = 0, 0
        self.steps, self.changes = [*self.steps, s][-_MEMORY:], [*self.changes, y][-_MEMORY:]
        small = self.value - value <= tolerance * 1e-3 * np.abs(self.value)
        self.still = np.where(small, self.still + 1, 0)
        self.theta, self.value, self.gradient = theta, value, gradient

    def ended(self, tolerance: float) -> NDArray[np.bool_]:
        """[S] no gradient left, or several steps without progress."""
        size = np.abs(self.gradient).max(1)
        return (size <= tolerance * np.maximum(1, np.abs(self.value))) | (self.still >= _STILL)

    def rest(self, keep: NDArray[np.bool_]) -> _State:
        """The state of some of the starts."""
        found = _State(
            self.which[keep], self.theta[keep], self.value[keep], self.gradient[keep], self.width
        )
        found.steps = [s[keep] for s in self.steps]
        found.changes = [y[keep] for y in self.changes]
        found.still = self.still[keep]
        return found


def _step(objective: Objective, state: _State, tolerance: float) -> None:
    """One line search along the directions; a start that finds no lower point stays."""
    direction = state.direction()
    slope = (direction * state.gradient).sum(1)
    count = len(slope)
    low, high, length = np.zeros(count), np.full(count, np.inf), np.ones(count)
    theta, value, gradient = state.theta.copy(), state.value.copy(), state.gradient.copy()
    open_ = np.arange(count)
    for _ in range(_TRIALS):
        trial = state.theta[open_] + length[open_, None] * direction[open_]
        with np.errstate(all="ignore"):
            found, slopes = objective(trial, state.which[open_])
        bound = state.value[open_] + _ARMIJO * length[open_] * slope[open_]
        lower = np.isfinite(found) & np.isfinite(slopes).all(1) & (found <= bound)
        steep = (slopes * direction[open_]).sum(1) < _WOLFE * slope[open_]
        better = open_[lower]
        theta[better], value[better], gradient[better] = trial[lower], found[lower], slopes[lower]
        high[open_[~lower]] = length[open_[~lower]]
        low[better] = length[better]
        open_ = open_[~lower | steep]
        if not len(open_):
            break
        length[open_] = np.where(
            np.isinf(high[open_]), 2 * low[open_], (low[open_] + high[open_]) / 2
        )
    state.advance(theta, value, gradient, tolerance)


def _keep(
    result: Minimum,
    state: _State,
    gone: NDArray[np.bool_],
    ended: NDArray[np.bool_],
    step: int,
) -> None:
    """Write down where starts ended."""
    which = state.which[gone]
    result.theta[which] = state.theta[gone]
    result.value[which] = state.value[gone]
    result.gradient[which] = np.abs(state.gradient[gone]).max(1)
    result.iterations[which] = step
    result.converged[which] = ended[gone]
