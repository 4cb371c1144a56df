"""The form for data that are read more than once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_glm_curriculum.scaling.form_powers import Chinchilla
from hf_glm_curriculum.scaling.forms import Array, Form, Pullback, log_sum


class DataLimited(Chinchilla):
    """Chinchilla's form in which repeated tokens are worth less and less.

    D′ = U + U·R·(1 − exp(−(D/U − 1)/R)) where D exceeds the U unique tokens, else D. R is the
    number of repetitions after which more epochs bring little. The decay of excess parameters
    that the source also fits is left out (its R_N at infinity).
    """

    name = "data_limited"
    formula = "L = E + A/N^alpha + B/D′^beta, D′ = U + U·R·(1 − exp(−(D/U − 1)/R))"
    source = "Muennighoff et al. 2023, arXiv 2305.16264, eq. 5 and 6"
    inputs = ("N", "D", "U")
    names = ("E", "A", "B", "alpha", "beta", "R")
    units: Mapping[str, str] = {**Chinchilla.units, "R": "epochs beyond the first"}

    def _effective(self, theta: Array, x: Array) -> tuple[Array, Array, Array]:
        """Logarithm of D′ [S, n], and its derivatives by ln R and by ln D."""
        repeats = np.clip(np.expm1(x[None, :, 1] - x[None, :, 2]), 0, 1e12)
        r = np.exp(np.clip(theta[:, 5, None], -20, 20))
        decay = np.exp(-repeats / r)
        gain = 1 - r * np.expm1(-repeats / r)
        seen_once = repeats == 0
        value = np.where(seen_once, x[None, :, 1], x[None, :, 2] + np.log(gain))
        by_r = r * (1 - decay - repeats / r * decay) / gain
        by_d = np.where(seen_once, 1.0, decay * (repeats + 1) / gain)
        return value, by_r, by_d

    def _terms(self, theta: Array, x: Array) -> tuple[Array, Array, Array]:
        effective, by_r, by_d = self._effective(theta, x)
        first = theta[:, 1, None] - theta[:, 3, None] * x[None, :, 0]
        second = theta[:, 2, None] - theta[:, 4, None] * effective
        floor = np.broadcast_to(theta[:, 0, None], first.shape)
        return np.stack([first, second, floor], -1), np.stack([effective, by_r], -1), by_d

    def log_loss(self, theta: Array, x: Array) -> tuple[Array, Pullback]:
        """See `Form.log_loss`."""
        terms, parts, _ = self._terms(theta, x)
        value, shares = log_sum(terms)

        def pull(v: Array) -> Array:
            a, b, e = np.moveaxis(v[:, :, None] * shares, -1, 0)
            columns = [e, a, b, -a * x[None, :, 0], -b * parts[..., 0]]
            columns.append(-b * theta[:, 4, None] * parts[..., 1])
            return np.stack([column.sum(1) for column in columns], 1)

        return value, pull

    def elasticity(self, theta: Array, x: Array) -> Array:
        """See `Form.elasticity`."""
        terms, _, by_d = self._terms(theta, x)
        shares = log_sum(terms)[1]
        by_n = -theta[:, 3, None] * shares[..., 0]
        whole = -theta[:, 4, None] * shares[..., 1]
        return np.stack([by_n, whole * by_d, whole * (1 - by_d)], -1)

    def solve(self, theta: Array, loss: float, x: Array, which: int) -> Array:
        """See `Form.solve`; by ln U there is no inverse."""
        fresh = x[:, :2].copy()
        if which == 0:
            fresh = np.stack([x[:, 0], self._effective(theta[:1], x)[0][0]], 1)
            if len(theta) > 1:
                return np.concatenate([self.solve(one[None], loss, x, 0) for one in theta])
        found = super().solve(theta[:, :5], loss, fresh, which)
        if which == 0:
            return found
        r = np.exp(theta[:, 5, None])
        repeats = np.expm1(found - x[None, :, 2]) / r
        with np.errstate(invalid="ignore", divide="ignore"):
            more = x[None, :, 2] + np.log1p(-r * np.log1p(-np.minimum(repeats, 1.0)))
        return np.where(repeats <= 0, found, np.where(repeats < 1, more, np.inf))

    def natural(self, theta: Array) -> Array:
        """Exponentials of the scales and of ln R."""
        return np.concatenate([super().natural(theta[:, :5]), np.exp(theta[:, 5:])], 1)

    def internal(self, natural: Array) -> Array:
        """Logarithms of the scales and of R."""
        return np.concatenate([super().internal(natural[:, :5]), np.log(natural[:, 5:])], 1)

    def starts(self, x: Array, loss: Array) -> Array:
        """Chinchilla's grid on effective tokens, for each of four R."""
        found = []
        for r in np.log([2.0, 6.0, 15.0, 40.0]):
            effective = self._effective(np.array([[0, 0, 0, 0, 0, r]]), x)[0][0]
            part = super().starts(np.stack([x[:, 0], effective], 1), loss)
            found.append(np.concatenate([part, np.full((len(part), 1), r)], 1))
        return np.concatenate(found)

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """By bisection: there is no closed form with repeated tokens."""
        if unique is None:
            return super().optimum(theta[:, :5], budget)
        return Form.optimum(self, theta, budget, unique)
