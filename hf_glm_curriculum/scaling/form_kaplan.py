"""Kaplan's joint form."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hf_glm_curriculum.scaling.form_powers import NO_UNIT, power_optimum
from hf_glm_curriculum.scaling.forms import Array, Form, Pullback, log_sum
from hf_glm_curriculum.scaling.starts import power_starts


class Kaplan(Form):
    """Kaplan's joint form, a power of a sum."""

    name = "kaplan"
    formula = "L = [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D"
    source = "Kaplan et al. 2020, arXiv 2001.08361, eq. 1.5"
    names = ("N_c", "D_c", "alpha_N", "alpha_D")
    units: Mapping[str, str] = {
        "N_c": "parameters · loss^(1/alpha_N)",
        "D_c": "tokens · loss^(1/alpha_D)",
        "alpha_N": NO_UNIT,
        "alpha_D": NO_UNIT,
    }

    # Internal: r·ln N_c, ln D_c, r = alpha_N/alpha_D, alpha_D.

    def _terms(self, theta: Array, x: Array) -> Array:
        first = theta[:, 0, None] - theta[:, 2, None] * x[None, :, 0]
        return np.stack([first, theta[:, 1, None] - x[None, :, 1]], -1)

    def log_loss(self, theta: Array, x: Array) -> tuple[Array, Pullback]:
        """See `Form.log_loss`."""
        inner, shares = log_sum(self._terms(theta, x))
        power = theta[:, 3, None]

        def pull(v: Array) -> Array:
            first, second = np.moveaxis(v[:, :, None] * power[:, :, None] * shares, -1, 0)
            parts = [first, second, -first * x[None, :, 0], v * inner]
            return np.stack([part.sum(1) for part in parts], 1)

        return power * inner, pull

    def elasticity(self, theta: Array, x: Array) -> Array:
        """See `Form.elasticity`."""
        shares = log_sum(self._terms(theta, x))[1]
        slopes = np.stack([theta[:, 2] * theta[:, 3], theta[:, 3]], 1)
        return -slopes[:, None, :] * shares

    def solve(self, theta: Array, loss: float, x: Array, which: int) -> Array:
        """See `Form.solve`."""
        zero = x.copy()
        zero[:, which] = 0
        terms = self._terms(theta, zero)
        slope = theta[:, 2, None] if which == 0 else 1.0
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            left = np.log(loss ** (1 / theta[:, 3, None]) - np.exp(terms[:, :, 1 - which]))
            found = (terms[:, :, which] - left) / slope
        return np.where(np.isnan(left) | np.isneginf(left), np.inf, found)

    def natural(self, theta: Array) -> Array:
        """See the formula."""
        first, second, ratio, alpha_d = theta.T
        with np.errstate(over="ignore"):
            return np.stack([np.exp(first / ratio), np.exp(second), ratio * alpha_d, alpha_d], 1)

    def internal(self, natural: Array) -> Array:
        """See the class."""
        n_c, d_c, alpha_n, alpha_d = natural.T
        ratio = alpha_n / alpha_d
        return np.stack([ratio * np.log(n_c), np.log(d_c), ratio, alpha_d], 1)

    def shift(self, theta: Array, centre: Array) -> Array:
        """See `Form.shift`."""
        found = theta.copy()
        found[:, 0] += theta[:, 2] * centre[0]
        found[:, 1] += centre[1]
        return found

    def starts(self, x: Array, loss: Array) -> Array:
        """Exponents on a grid; L^(1/alpha_D) is linear in the scales."""
        found = []
        for alpha_d in np.geomspace(0.03, 1.0, 10):
            ratios = np.geomspace(0.2, 4.0, 10)
            exponents = np.stack([ratios, np.ones_like(ratios)], 1)
            part = power_starts(x[:, :2], loss ** (1 / alpha_d), exponents)
            part[:, 3] = alpha_d
            found.append(part)
        return np.concatenate(found)

    def exponents(self) -> list[int]:
        """See `Form.exponents`."""
        return [2, 3]

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """The closed form; see `Form.optimum`."""
        first, second, ratio, _ = theta.T
        return power_optimum(first, second, ratio, np.ones_like(ratio), budget)
