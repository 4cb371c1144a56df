"""Whether runs can tell a law's parameters apart; refusals say what to run instead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.forms import Form
from hf_glm_curriculum.scaling.runs import Runs
from hf_glm_curriculum.scaling.uncertainty import STEEP

Array = NDArray[np.float64]

_SAME, _LEAST_SPAN, _LEAST_VALUES = 0.02, 1.5, 3
_COLLINEAR = 0.05
_SINGULAR = 1e-6
_FLAT = 1e-3
_NO_FLOOR = 1e-4


def check_runs(runs: Runs, names: tuple[str, ...], parameters: int, form: str) -> None:
    """Refuse runs that cannot identify a form, whatever their losses are.

    Args:
        runs: The runs.
        names: Inputs that each need values of their own (N and D).
        parameters: How many the form has.
        form: Its name, for the message.

    Raises:
        DataError: Too few runs, an input that hardly varies, or inputs that vary as one.
    """
    if len(runs) <= parameters:
        raise DataError(
            f"under-identified: {len(runs)} distinct runs for the {parameters} parameters of "
            f"{form!r}; give at least {parameters + 1}, better three times as many"
        )
    for name in names:
        _check_spread(name, runs.inputs[name])
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            _check_apart(first, second, runs.inputs[first], runs.inputs[second])
    if "U" in runs.inputs:
        _check_repeats(runs)


def _check_spread(name: str, values: Array) -> None:
    steps = np.diff(np.sort(np.log(values)))
    distinct = 1 + int((steps > _SAME).sum())
    span = float(values.max() / values.min())
    if distinct < _LEAST_VALUES or span < _LEAST_SPAN:
        raise DataError(
            f"under-identified: {name} has {distinct} distinct value{'s' * (distinct != 1)} over a "
            f"factor of {span:.3g}, so its exponent and the rest cannot be told apart; add runs "
            f"with other {name} (at least {_LEAST_VALUES} values over a factor of {_LEAST_SPAN:g}, "
            "better 10)"
        )


def _check_apart(first: str, second: str, one: Array, other: Array) -> None:
    a, b = np.log(one), np.log(other)
    slope, offset = np.polyfit(a, b, 1)
    rest = float(np.std(b - slope * a - offset))
    if rest < _COLLINEAR:
        raise DataError(
            f"under-identified: {second} is a fixed power of {first} ({second} ∝ "
            f"{first}^{slope:.2f}, off by {rest:.1%}), so which of them lowers the loss cannot be "
            f"told; add runs with more and with fewer {second} at the same {first}"
        )


def _check_repeats(runs: Runs) -> None:
    epochs = runs.inputs["D"] / runs.inputs["U"]
    many = np.unique(np.round(np.log(epochs[epochs > 1.2]), 1))
    if len(many) < 2:
        raise DataError(
            "under-identified: R, the worth of repeated tokens, needs runs of at least two numbers "
            f"of epochs above 1, got {len(many)}; add runs that read their data several times"
        )


def check_fit(
    form: Form, theta: Array, x: Array, floor: int | None = 0, names: tuple[str, ...] | None = None
) -> list[str]:
    """Refuse a fit whose parameters the runs do not determine.

    Args:
        form: The form.
        theta: [P] internal parameters at the minimum, for x.
        x: [n, K] centred logarithms of the inputs.
        floor: Place of the floor's logarithm in theta; None if the form has none.
        names: Names of the internal parameters, for the message.

    Returns:
        Warnings.

    Raises:
        DataError: An input does not lower the loss, or parameters can be traded for each other.
    """
    for place, name in zip(form.exponents(), form.inputs, strict=False):
        if theta[place] < _FLAT:
            raise DataError(
                f"under-identified: the loss does not fall with {name} (exponent "
                f"{theta[place]:.2g}), so no power law describes it; look for diverged or "
                f"unfinished runs, or add runs over a wider range of {name}"
            )
        if theta[place] > STEEP:
            raise DataError(
                f"under-identified: the exponent of {name} runs away ({theta[place]:.3g}): beyond "
                f"the smallest {name} the loss does not fall with it; add runs over more of "
                f"{name}, or trained longer"
            )
    jacobian = form.jacobian(theta, x)
    warnings = []
    keep = np.ones(len(theta), bool)
    if floor is not None and np.abs(jacobian[:, floor]).max() < _NO_FLOOR:
        warnings.append(
            "no irreducible loss shows in these runs: E is at 0, and losses far beyond them are "
            "predicted too low; add larger runs, or use a form without a floor"
        )
        keep[floor] = False
    _check_singular(jacobian[:, keep], _kept(names or _internal_names(form), keep))
    return warnings


def _internal_names(form: Form) -> tuple[str, ...]:
    return tuple(form.names)


def _kept(names: tuple[str, ...], keep: NDArray[np.bool_]) -> list[str]:
    return [name for name, one in zip(names, keep, strict=True) if one]


def _check_singular(jacobian: Array, names: list[str]) -> None:
    size = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-300)
    values, rows = np.linalg.svd(jacobian / size, full_matrices=False)[1:]
    if values[-1] < _SINGULAR * values[0]:
        traded = [n for n, w in zip(names, np.abs(rows[-1]), strict=True) if w > 0.3]
        raise DataError(
            f"under-identified: {' and '.join(traded)} can be traded for each other without any "
            "change in the losses; add runs over a wider range of N and D"
        )
