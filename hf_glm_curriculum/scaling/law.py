"""`ScalingLaw`: a fitted or given law, and the questions it answers.

Units: N in parameters and D in tokens as the law's conventions count them, C in FLOPs, L in the
unit of the loss.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.evidence import Evidence
from hf_glm_curriculum.scaling.forms import Form, form_named
from hf_glm_curriculum.scaling.runs import Flag
from hf_glm_curriculum.scaling.uncertainty import LEVEL, interval, percentiles
from hf_glm_curriculum.storage import atomic_write_json, read_json

Array = NDArray[np.float64]
Bounds = tuple[float, float]

FILE_KIND = "scaling_law"
_BISECTIONS = 100


class Allocation(NamedTuple):
    """The best model size and token count for a budget, and the loss they reach."""

    N: float
    D: float
    L: float


class ScalingLaw:
    """A scaling law; fitted by `fit_scaling_law`, or made from published parameters.

    Args:
        E: Irreducible loss of the Chinchilla form.
        A: Scale of its parameter term.
        B: Scale of its token term.
        alpha: Exponent of its parameter term.
        beta: Exponent of its token term.
        form: Another form's name, with its parameters in `parameters`.
        parameters: Name → value; every parameter of the form.
        conventions: How N, FLOPs and L are counted.
        evidence: What a fit leaves behind.

    Parameters are attributes: ``law.alpha``.

    Raises:
        ConfigError: A parameter is missing, unknown or not positive.
    """

    def __init__(
        self,
        E: float | None = None,
        A: float | None = None,
        B: float | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        *,
        form: str = "chinchilla",
        parameters: dict[str, float] | None = None,
        conventions: Conventions | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self._form: Form = form_named(form)
        given = {"E": E, "A": A, "B": B, "alpha": alpha, "beta": beta}
        given = {name: value for name, value in given.items() if value is not None}
        self.parameters = _checked(self._form, {**given, **(parameters or {})})
        self.conventions = conventions or Conventions()
        self.evidence = evidence
        natural = np.array([[self.parameters[name] for name in self._form.names]])
        with np.errstate(divide="ignore"):
            self._theta = np.maximum(self._form.internal(natural), -700.0)

    def __getattr__(self, name: str) -> Any:
        """A parameter by its name."""
        parameters = self.__dict__.get("parameters", {})
        if name in parameters:
            return parameters[name]
        raise AttributeError(f"a {self.__dict__.get('form', '')} law has no {name!r}")

    def __repr__(self) -> str:
        """The parameters."""
        shown = ", ".join(f"{name}={value:.5g}" for name, value in self.parameters.items())
        return f"ScalingLaw(form={self.form!r}, {shown})"

    # What it is

    @property
    def form(self) -> str:
        """Name of the form."""
        return self._form.name

    @property
    def formula(self) -> str:
        """The form as printed."""
        return self._form.formula

    @property
    def units(self) -> dict[str, str]:
        """Parameter → unit."""
        return dict(self._form.units)

    @property
    def objective(self) -> float:
        """Σ Huber(ln L̂ − ln L) of the fit; NaN for a law that was given."""
        return float("nan") if self.evidence is None else self.evidence.objective

    @property
    def intervals(self) -> dict[str, Bounds]:
        """Parameter → 95 % interval, with "a" of N_opt ∝ C^a where it is a constant; {}: unknown."""
        if self.evidence is None:
            return {}
        draws = self.evidence.draws
        natural = self._form.natural(draws)
        found = {name: interval(natural[:, i]) for i, name in enumerate(self._form.names)}
        slopes = self._compute_exponent(draws)
        return found if slopes is None else {**found, "a": interval(slopes)}

    @property
    def standard_errors(self) -> dict[str, float]:
        """Parameter → standard error; {}: unknown."""
        if self.evidence is None:
            return {}
        errors = np.sqrt(np.diag(self.evidence.covariance))
        return dict(zip(self._form.names, errors.tolist(), strict=True))

    @property
    def covariance(self) -> Array | None:
        """[P, P] of the parameters, in the order of `parameters`; None: unknown."""
        return None if self.evidence is None else self.evidence.covariance

    @property
    def report(self) -> Any:
        """How the fit went (`FitReport`); None for a law that was given."""
        return None if self.evidence is None else self.evidence.report

    @property
    def flags(self) -> list[Flag]:
        """Runs that looked odd."""
        return [] if self.evidence is None else self.evidence.runs.flags

    @property
    def compute_exponent(self) -> float | None:
        """Exponent a in N_opt ∝ C^a, β/(α+β); None where it is no constant."""
        found = self._compute_exponent(self._theta)
        return None if found is None else float(found[0])

    def _compute_exponent(self, theta: Array) -> Array | None:
        if len(self._form.inputs) > 2:
            return None
        one, other = (self._form.optimum(theta, budget) for budget in (1.0, 2.0))
        return other - one

    # Losses

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
        """"N", "D", "L" → bounds of `optimal`.

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
        pairs = zip(theta, points, strict=True)
        loss = [self._form.log_loss(one[None], point[None])[0][0, 0] for one, point in pairs]
        return np.exp(np.stack([log_n, budget - log_n, np.array(loss)], 1))

    def compute_for(self, loss: float, unique: float | None = None) -> float:
        """FLOPs of the cheapest model that reaches a loss; inf: none does."""
        low, high = 0.0, 230.0
        if self.optimal(float(np.exp(high)), unique).L > loss:
            return float("inf")
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            reached = self.optimal(float(np.exp(middle)), unique).L <= loss
            low, high = (low, middle) if reached else (middle, high)
        return float(np.exp(high))

    def iso_loss(self, loss: float, N: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """D for every N on the curve of one loss; inf beyond its end."""
        return self.tokens_for(loss, N, unique)

    def iso_flop(self, C: float, N: ArrayLike, unique: ArrayLike | None = None) -> Any:
        """L for every N at one budget: the valley whose floor is `optimal`."""
        sizes = np.asarray(N, float)
        return self.predict(sizes, self.conventions.tokens(C, sizes), unique)

    # Draws and files

    @property
    def draws(self) -> Array:
        """[K, P] internal parameters behind the intervals.

        Raises:
            DataError: The law was given, not fitted.
        """
        if self.evidence is None or not len(self.evidence.draws):
            raise DataError("no interval: this law was given, not fitted; fit it to runs")
        return self.evidence.draws

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

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "kind": FILE_KIND,
            "form": self.form,
            "formula": self.formula,
            "parameters": self.parameters,
            "units": self.units,
            "conventions": self.conventions.as_dict(),
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "evidence": None if self.evidence is None else self.evidence.as_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the law as JSON, atomically.

        Raises:
            StateError: The file cannot be written.
        """
        atomic_write_json(path, self.as_dict(), indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScalingLaw:
        """Read a law that `save` wrote.

        Raises:
            StateError: The file is missing, not JSON, or holds something else.
        """
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.get("kind") != FILE_KIND:
            raise StateError(f"{os.fspath(path)} holds no scaling law; give a file of `scaling fit`")
        return cls(
            form=kept["form"],
            parameters=kept["parameters"],
            conventions=Conventions.from_dict(kept["conventions"]),
            evidence=None if kept["evidence"] is None else Evidence.from_dict(kept["evidence"]),
        )


def _checked(form: Form, given: dict[str, float]) -> dict[str, float]:
    """Parameters in the form's order.

    Raises:
        ConfigError: One is missing, unknown or not positive.
    """
    missing = [name for name in form.names if name not in given]
    extra = [name for name in given if name not in form.names]
    if missing or extra:
        words = f"lacks {', '.join(missing)}" if missing else f"has no {', '.join(extra)}"
        raise ConfigError(
            f"parameters: form {form.name!r} {words}; it needs exactly {', '.join(form.names)}"
        )
    for name in form.names:
        least = 0.0 if name == "E" else np.nextafter(0, 1)
        if not (np.isfinite(given[name]) and given[name] >= least):
            raise ConfigError(f"{name}: must be positive and finite, got {given[name]}")
    return {name: float(given[name]) for name in form.names}


def _exp(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(values)


def _shaped(values: Array, shape: tuple[int, ...]) -> Any:
    """A float for a scalar, else an array."""
    return values.reshape(shape) if shape else float(values[0])
