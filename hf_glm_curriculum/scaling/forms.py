"""Functional forms of scaling laws: value, gradient, inverse and optimum of each.

Shape letters: S laws at once (starts, bootstraps), n runs, K inputs, P parameters, T terms.

A form works on logarithms. ``theta`` [S, P] holds logarithms of scales and plain exponents
(*internal* parameters); ``x`` [n, K] holds ln N, ln D (and ln U where the form knows about repeated
data). *Natural* parameters are those of the printed formula. A budget is ln(C/k) = ln N + ln D.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import ConfigError

Array = NDArray[np.float64]
Pullback = Callable[[Array], Array]

_BISECTIONS, _BLOCK = 60, 20


class Form(ABC):
    """One functional form.

    Attributes:
        name: Its key.
        formula: As printed.
        source: Where it comes from.
        inputs: Names of the inputs.
        names: Natural parameters, in order.
        units: Natural parameter → unit.
    """

    name: ClassVar[str]
    formula: ClassVar[str]
    source: ClassVar[str]
    inputs: tuple[str, ...] = ("N", "D")
    names: tuple[str, ...]
    units: Mapping[str, str]

    @abstractmethod
    def log_loss(self, theta: Array, x: Array) -> tuple[Array, Pullback]:
        """Logarithm of the loss.

        Args:
            theta: [S, P] internal parameters.
            x: [n, K] logarithms of the inputs.

        Returns:
            ln L [S, n], and a function from a cotangent v [S, n] to Σₙ v·∂ln L/∂theta [S, P].
        """

    @abstractmethod
    def elasticity(self, theta: Array, x: Array) -> Array:
        """[S, n, K] ∂ln L/∂ln(input): per cent of loss a per cent of the input changes."""

    @abstractmethod
    def solve(self, theta: Array, loss: float, x: Array, which: int) -> Array:
        """[S, n] logarithm of input `which` at which L = loss, the others held; inf: nowhere."""

    @abstractmethod
    def natural(self, theta: Array) -> Array:
        """[S, P] natural parameters of internal ones."""

    @abstractmethod
    def internal(self, natural: Array) -> Array:
        """[S, P] internal parameters of natural ones."""

    @abstractmethod
    def shift(self, theta: Array, centre: Array) -> Array:
        """[S, P] parameters for plain x of those fitted to x − centre."""

    @abstractmethod
    def starts(self, x: Array, loss: Array) -> Array:
        """[S, P] a grid of starts for a fit to losses [n]."""

    @abstractmethod
    def exponents(self) -> list[int]:
        """Places of the internal parameters that must come out positive: slopes in the inputs."""

    def jacobian(self, theta: Array, x: Array) -> Array:
        """[n, P] ∂ln L/∂theta of one law, theta [P]."""
        n = len(x)
        return self.log_loss(np.repeat(theta[None], n, 0), x)[1](np.eye(n))

    def optimum(self, theta: Array, budget: float, unique: float | None = None) -> Array:
        """[S] ln N that minimises L at ln N + ln D = budget, by bisection of the slope.

        Args:
            theta: [S, P].
            budget: ln(C/k).
            unique: ln U, for forms with repeated data.
        """
        low = np.full(len(theta), budget - 200.0)
        high = np.full(len(theta), budget + 200.0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            columns = [middle, budget - middle]
            if len(self.inputs) > 2:
                columns.append(np.full(len(theta), 700.0 if unique is None else unique))
            slopes = self._own_elasticity(theta, np.stack(columns, -1))
            falls = slopes[:, 0] < slopes[:, 1]
            low, high = np.where(falls, middle, low), np.where(falls, high, middle)
        return (low + high) / 2

    def own_log_loss(self, theta: Array, x: Array) -> Array:
        """[S] ln L of each law at its own point, x [S, K]."""
        return _own(lambda t, p: self.log_loss(t, p)[0], theta, x)

    def _own_elasticity(self, theta: Array, x: Array) -> Array:
        """[S, K] elasticities of each law at its own point, x [S, K]."""
        return _own(self.elasticity, theta, x)


def _own(function: Callable[[Array, Array], Array], theta: Array, x: Array) -> Array:
    """The diagonal of a table of laws by points, in blocks, so that little is computed in vain."""
    found = []
    for begin in range(0, len(theta), _BLOCK):
        part = function(theta[begin : begin + _BLOCK], x[begin : begin + _BLOCK])
        found.append(part[np.arange(len(part)), np.arange(len(part))])
    return np.concatenate(found)


def log_sum(terms: Array) -> tuple[Array, Array]:
    """Logarithm of Σ exp over the last axis, and each term's share of the sum."""
    top = terms.max(-1, keepdims=True)
    shares = np.exp(terms - top)
    total = shares.sum(-1, keepdims=True)
    shares /= total
    return (top + np.log(total))[..., 0], shares


class PowerSum(Form):
    """ln L = ln Σ exp(term), every term linear in theta: `design` [n, T, P] says how."""

    @abstractmethod
    def design(self, x: Array) -> Array:
        """[n, T, P] coefficients of the terms."""

    @abstractmethod
    def slope_places(self) -> list[tuple[int, int, int]]:
        """(term, input, place of its exponent in theta) of every term that falls with an input."""

    def log_loss(self, theta: Array, x: Array) -> tuple[Array, Pullback]:
        """See `Form.log_loss`."""
        design = self.design(x)
        n, t, p = design.shape
        flat = design.reshape(n * t, p)
        value, shares = log_sum((theta @ flat.T).reshape(len(theta), n, t))

        def pull(v: Array) -> Array:
            return (v[:, :, None] * shares).reshape(len(v), n * t) @ flat

        return value, pull

    def elasticity(self, theta: Array, x: Array) -> Array:
        """See `Form.elasticity`."""
        shares = log_sum(np.einsum("ntp,sp->snt", self.design(x), theta))[1]
        found = np.zeros((len(theta), *x.shape))
        for term, place, exponent in self.slope_places():
            found[:, :, place] -= theta[:, exponent, None] * shares[:, :, term]
        return found

    def solve(self, theta: Array, loss: float, x: Array, which: int) -> Array:
        """See `Form.solve`."""
        zero = x.copy()
        zero[:, which] = 0
        terms = np.einsum("ntp,sp->snt", self.design(zero), theta)
        ((own, _, exponent),) = [one for one in self.slope_places() if one[1] == which]
        others = np.exp(np.delete(terms, own, axis=2)).sum(2)
        with np.errstate(invalid="ignore", divide="ignore"):
            left = np.log(loss - others)
            found = (terms[:, :, own] - left) / theta[:, exponent, None]
        return np.where(np.isnan(left) | np.isneginf(left), np.inf, found)

    def exponents(self) -> list[int]:
        """See `Form.exponents`."""
        return [exponent for _, _, exponent in self.slope_places()]


def form_named(name: str) -> Form:
    """The form of that name.

    Raises:
        ConfigError: There is none.
    """
    from hf_glm_curriculum.scaling.form_catalogue import FORMS

    if name not in FORMS:
        raise ConfigError(f"form: must be one of {', '.join(FORMS)}, got {name!r}")
    return FORMS[name]
