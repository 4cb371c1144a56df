"""`ScalingLaw`: a fitted or given law, and the questions it answers.

Units: N in parameters and D in tokens as the law's conventions count them, C in FLOPs, L in the
unit of the loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.known_law import Bounds, KnownLaw
from hf_glm_curriculum.scaling.uncertainty import LEVEL, interval, percentiles

Array = NDArray[np.float64]

_BISECTIONS = 100


class Allocation(NamedTuple):
    """The best model size and token count for a budget, and the loss they reach."""

    N: float
    D: float
    L: float


class ScalingLaw(KnownLaw):
    """A scaling law; fitted by `fit_scaling_law`, or made from published parameters.

    ``ScalingLaw(E, A, B, alpha, beta)`` is Chinchilla's form; ``ScalingLaw(form=NAME,
    parameters={...})`` any other. Parameters are attributes: ``law.alpha``. See `KnownLaw`.
    """

    def predict(self, N: ArrayLike, D: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """L of models with N parameters trained on D tokens (`unique` of them different).

        Returns:
            A float for scalars, else an array of the inputs' common shape.

        Raises:
            DataError: An input is not positive.
        """
        x, shape = self._x(N, D, unique)
        return _shaped(np.exp(self._form.log_loss(self._theta, x)[0][0]), shape)

    def predict_interval(
        self, N: ArrayLike, D: ArrayLike, unique: ArrayLike | None = None, level: float = LEVEL
    ) -> tuple[Any, Any]:
        """Bounds of `predict`: uncertainty of the law, without the scatter of single runs.

        Raises:
            DataError: The law was given, not fitted, so that nothing is known about its errors.
        """
        x, shape = self._x(N, D, unique)
        low, high = percentiles(np.exp(self._form.log_loss(self.draws, x)[0]), level)
        return _shaped(low, shape), _shaped(high, shape)

    def gradient(
        self, N: ArrayLike, D: ArrayLike, unique: ArrayLike | None = None
    ) -> tuple[Any, Any]:
        """(∂L/∂N, ∂L/∂D): loss a parameter more and a token more change; both negative."""
        x, shape = self._x(N, D, unique)
        loss = np.exp(self._form.log_loss(self._theta, x)[0][0])
        slopes = self._form.elasticity(self._theta, x)[0][:, :2] * loss[:, None] / np.exp(x[:, :2])
        return _shaped(slopes[:, 0], shape), _shaped(slopes[:, 1], shape)

    def tokens_for(self, loss: float, N: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """Tokens at which a model of N parameters reaches a loss; inf: it never does."""
        x, shape = self._x(N, np.ones_like(np.asarray(N, float)), unique)
        return _shaped(_exp(self._form.solve(self._theta, loss, x, 1)[0]), shape)

    def parameters_for(self, loss: float, D: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """Parameters at which D tokens reach a loss; inf: none do."""
        x, shape = self._x(np.ones_like(np.asarray(D, float)), D, unique)
        return _shaped(_exp(self._form.solve(self._theta, loss, x, 0)[0]), shape)

    # Budgets

    def optimal(self, C: float, unique: float | None = None) -> Allocation:
        """The model size and token count that make the loss smallest at C FLOPs.

        For the Chinchilla form N = ((αA/βB)·(C/k)^β)^(1/(α+β)) and D = C/(k·N) with k of the
        conventions (6).

        Raises:
            DataError: C is not positive.
        """
        found = self._optimal(self._theta, C, unique)[0]
        return Allocation(*(float(value) for value in found))

    def optimal_interval(
        self, C: float, unique: float | None = None, level: float = LEVEL
    ) -> dict[str, Bounds]:
        """Bounds of `optimal`: name ("N", "D", "L") → bounds.

        Raises:
            DataError: C is not positive, or the law was given, not fitted.
        """
        found = self._optimal(self.draws, C, unique)
        return {name: interval(found[:, i], level) for i, name in enumerate("NDL")}

    def _optimal(self, theta: Array, C: float, unique: float | None) -> Array:
        """[S, 3] N, D, L."""
        if not (np.isfinite(C) and C > 0):
            raise DataError(f"C: a budget must be above 0 FLOPs, got {C}")
        budget = float(np.log(C / self.conventions.flops_per_parameter_token))
        log_u = None if unique is None else float(np.log(unique))
        log_n = self._form.optimum(theta, budget, log_u)
        columns = [log_n, budget - log_n]
        if len(self._form.inputs) > 2:
            columns.append(np.full(len(theta), 700.0 if log_u is None else log_u))
        points = np.stack(columns, -1)
        loss = self._form.own_log_loss(theta, points)
        return np.exp(np.stack([log_n, budget - log_n, loss], 1))

    def compute_for(self, loss: float, unique: float | None = None) -> float:
        """FLOPs of the cheapest model that reaches a loss; inf: none does."""
        low, high = 0.0, 230.0
        if loss < self.optimal(float(np.exp(high)), unique).L:
            return float("inf")
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            reached = loss >= self.optimal(float(np.exp(middle)), unique).L
            low, high = (low, middle) if reached else (middle, high)
        return float(np.exp(high))

    def iso_loss(self, loss: float, N: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """D for every N on the curve of one loss; inf beyond its end."""
        return self.tokens_for(loss, N, unique)

    def iso_flop(self, C: float, N: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """L for every N at one budget: the valley whose floor is `optimal`."""
        sizes = np.asarray(N, float)
        return self.predict(sizes, self.conventions.tokens(C, sizes), unique)

    def _x(
        self, N: ArrayLike, D: ArrayLike, unique: ArrayLike | None
    ) -> tuple[Array, tuple[int, ...]]:
        """Logarithms [n, K] of broadcast inputs, and their shape."""
        given: dict[str, ArrayLike] = {"N": N, "D": D}
        if len(self._form.inputs) > 2:
            given["U"] = np.exp(700.0) if unique is None else unique
        columns = np.broadcast_arrays(*(np.asarray(one, float) for one in given.values()))
        for name, values in zip(given, columns, strict=True):
            if not (values > 0).all():
                raise DataError(f"{name}: must be above 0, got {values.min()}")
        return np.log(np.stack([one.reshape(-1) for one in columns], 1)), columns[0].shape


def _exp(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(values)


def _shaped(values: Array, shape: tuple[int, ...]) -> Any:
    """A float for a scalar, else an array."""
    return values.reshape(shape) if shape else float(values[0])
