"""What a law is: its form, parameters, units, intervals and evidence, and its file."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.evidence import Evidence
from hf_glm_curriculum.scaling.forms import Form, form_named
from hf_glm_curriculum.scaling.runs import Flag
from hf_glm_curriculum.scaling.uncertainty import interval
from hf_glm_curriculum.storage import atomic_write_json, read_json

Array = NDArray[np.float64]
Bounds = tuple[float, float]

FILE_KIND = "scaling_law"


class KnownLaw:
    """Form, parameters, units and evidence of a law; `ScalingLaw` adds what it predicts.

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
        return f"{type(self).__name__}(form={self.form!r}, {shown})"

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
        """Parameter → 95 % interval, and "a" of N_opt ∝ C^a where it is constant; {}: unknown."""
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

    @property
    def draws(self) -> Array:
        """[K, P] internal parameters behind the intervals.

        Raises:
            DataError: The law was given, not fitted.
        """
        if self.evidence is None or not len(self.evidence.draws):
            raise DataError("no interval: this law was given, not fitted; fit it to runs")
        return self.evidence.draws

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
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a law that `save` wrote.

        Raises:
            StateError: The file is missing, not JSON, or holds something else.
        """
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.get("kind") != FILE_KIND:
            raise StateError(
                f"{os.fspath(path)} holds no scaling law; give a file of `scaling fit`"
            )
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
