"""Forms that are sums of powers: Chinchilla's and the two that the articles print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hf_glm_curriculum.scaling.forms import Array, PowerSum
from hf_glm_curriculum.scaling.starts import exponent_grid, floor_starts, power_starts

_BILLION = np.log(1e9)
LOSS_UNIT, NO_UNIT = "unit of the loss", "none"


def power_optimum(log_a: Array, log_b: Array, alpha: Array, beta: Array, budget: float) -> Array:
    """Logarithm of the N that minimises exp(a)·N^−α + exp(b)·D^−β (Hoffmann et al., eq. 4)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return (np.log(alpha) + log_a - np.log(beta) - log_b + beta * budget) / (alpha + beta)


class Chinchilla(PowerSum):
    """Two powers over an irreducible loss."""

    name = "chinchilla"
    formula = "L = E + A/N^alpha + B/D^beta"
    source = "Hoffmann et al. 2022, arXiv 2203.15556, eq. 2"
    names = ("E", "A", "B", "alpha", "beta")
    units: Mapping[str, str] = {
        "E": LOSS_UNIT,
        "A": "loss · parameters^alpha",
        "B": "loss · tokens^beta",
        "alpha": NO_UNIT,
        "beta": NO_UNIT,
    }

    def design(self, x: Array) -> Array:
        """[n, 3, 5]: terms A, B, E."""
        found = np.zeros((len(x), 3, 5))
        found[:, 0, 1] = found[:, 1, 2] = found[:, 2, 0] = 1
        found[:, 0, 3], found[:, 1, 4] = -x[:, 0], -x[:, 1]
        return found

    def slope_places(self) -> list[tuple[int, int, int]]:
        """See `PowerSum.slope_places`."""
        return [(0, 0, 3), (1, 1, 4)]

    def natural(self, theta: Array) -> Array:
        """Exponentials of the scales."""
        with np.errstate(over="ignore"):
            return np.concatenate([np.exp(theta[:, :3]), theta[:, 3:]], 1)

    def internal(self, natural: Array) -> Array:
        """Logarithms of the scales."""
        return np.concatenate([np.log(natural[:, :3]), natural[:, 3:]], 1)

    def shift(self, theta: Array, centre: Array) -> Array:
        """See `Form.shift`."""
        found = theta.copy()
        found[:, 1:3] += theta[:, 3:5] * centre[:2]
        return found

    def starts(self, x: Array, loss: Array) -> Array:
        """Exponents and floors on a grid, scales by least squares: 7 · 7 · 5 starts."""
        return floor_starts(x[:, :2], loss)

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """The closed form; see `Form.optimum`."""
        return power_optimum(theta[:, 1], theta[:, 2], theta[:, 3], theta[:, 4], budget)


class TwoPower(PowerSum):
    """Two powers with constants and no floor: the sum that the articles print."""

    name = "two_power"
    formula = "L = (N_c/N)^alpha_N + (D_c/D)^alpha_D"
    source = "article 2, §3.1 (not Kaplan's form, which it is often taken for)"
    names = ("N_c", "D_c", "alpha_N", "alpha_D")
    units: Mapping[str, str] = {
        "N_c": "parameters · loss^(1/alpha_N)",
        "D_c": "tokens · loss^(1/alpha_D)",
        "alpha_N": NO_UNIT,
        "alpha_D": NO_UNIT,
    }

    def design(self, x: Array) -> Array:
        """[n, 2, 4]: internal parameters are the scales' logarithms alpha·ln(constant)."""
        found = np.zeros((len(x), 2, 4))
        found[:, 0, 0] = found[:, 1, 1] = 1
        found[:, 0, 2], found[:, 1, 3] = -x[:, 0], -x[:, 1]
        return found

    def slope_places(self) -> list[tuple[int, int, int]]:
        """See `PowerSum.slope_places`."""
        return [(0, 0, 2), (1, 1, 3)]

    def natural(self, theta: Array) -> Array:
        """Constants of the scales."""
        with np.errstate(over="ignore"):
            return np.concatenate([np.exp(theta[:, :2] / theta[:, 2:]), theta[:, 2:]], 1)

    def internal(self, natural: Array) -> Array:
        """Scales of the constants."""
        return np.concatenate([natural[:, 2:] * np.log(natural[:, :2]), natural[:, 2:]], 1)

    def shift(self, theta: Array, centre: Array) -> Array:
        """See `Form.shift`."""
        found = theta.copy()
        found[:, :2] += theta[:, 2:] * centre[:2]
        return found

    def starts(self, x: Array, loss: Array) -> Array:
        """Exponents on a grid, scales by least squares."""
        return power_starts(x[:, :2], loss, exponent_grid(2, 12))

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """The closed form; see `Form.optimum`."""
        return power_optimum(theta[:, 0], theta[:, 1], theta[:, 2], theta[:, 3], budget)


class Simplified(PowerSum):
    """One scale for both powers, inputs in billions."""

    name = "simplified"
    formula = "L = A·(n^−alpha_N + d^−alpha_D), n = N/10⁹, d = D/10⁹"
    source = "article 2, §3.3"
    names = ("A", "alpha_N", "alpha_D")
    units: Mapping[str, str] = {"A": LOSS_UNIT, "alpha_N": NO_UNIT, "alpha_D": NO_UNIT}
    reference: ClassVar[float] = float(_BILLION)

    def design(self, x: Array) -> Array:
        """[n, 2, 3]."""
        found = np.zeros((len(x), 2, 3))
        found[:, :, 0] = 1
        found[:, 0, 1], found[:, 1, 2] = self.reference - x[:, 0], self.reference - x[:, 1]
        return found

    def slope_places(self) -> list[tuple[int, int, int]]:
        """See `PowerSum.slope_places`."""
        return [(0, 0, 1), (1, 1, 2)]

    def natural(self, theta: Array) -> Array:
        """Exponential of the scale."""
        return np.concatenate([np.exp(theta[:, :1]), theta[:, 1:]], 1)

    def internal(self, natural: Array) -> Array:
        """Logarithm of the scale."""
        return np.concatenate([np.log(natural[:, :1]), natural[:, 1:]], 1)

    def shift(self, theta: Array, centre: Array) -> Array:
        """A billion stays the reference: there is nothing to shift."""
        if np.any(centre):
            raise ValueError("this form is fitted to plain logarithms")
        return theta

    def starts(self, x: Array, loss: Array) -> Array:
        """Exponents on a grid, the scale as the median ratio."""
        exponents = exponent_grid(2, 12)
        powers = np.exp(exponents[:, None] * (self.reference - x[None, :, :2])).sum(2)
        scale = np.log(np.median(loss / powers, axis=1))
        return np.concatenate([scale[:, None], exponents], 1)

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """The closed form; see `Form.optimum`."""
        alpha, beta = theta[:, 1], theta[:, 2]
        return power_optimum(alpha * self.reference, beta * self.reference, alpha, beta, budget)
