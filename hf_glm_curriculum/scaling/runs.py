"""Runs that a law is fitted to: checked row by row, repeats merged, oddities flagged and kept.

Nothing is dropped silently: a run without a finite loss cannot be fitted and is said to have
diverged, a row that stands twice counts once, and everything else stays in the fit with its flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_glm_curriculum.errors import DataError

Array = NDArray[np.float64]

DIVERGED, REPEATED, OUTLIER = "diverged", "repeated", "outlier"
_ABOVE_SMALLER = 0.03


@dataclass(frozen=True)
class Flag:
    """Something odd about one run.

    Attributes:
        row: Its place in what was given, from 0.
        kind: "diverged", "repeated" or "outlier".
        words: What was seen.
        used: Whether the run is in the fit.
    """

    row: int
    kind: str
    words: str
    used: bool


@dataclass
class Runs:
    """Runs of a fit.

    Attributes:
        inputs: Name → positive values [n], in the form's order.
        values: Losses or rewards [n].
        rows: Place of each in what was given.
        flags: What was odd.
    """

    inputs: dict[str, Array]
    values: Array
    rows: NDArray[np.int64]
    flags: list[Flag] = field(default_factory=list)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.values)

    @property
    def x(self) -> Array:
        """[n, K] logarithms of the inputs."""
        return np.log(np.stack(list(self.inputs.values()), 1))

    def select(self, mask: NDArray[np.bool_]) -> Runs:
        """Some of them, without the flags."""
        inputs = {name: values[mask] for name, values in self.inputs.items()}
        return Runs(inputs, self.values[mask], self.rows[mask])


def clean_runs(
    inputs: dict[str, ArrayLike],
    values: ArrayLike,
    *,
    falls: bool = True,
    leave_out: Sequence[int] = (),
) -> Runs:
    """Check runs, merge rows that stand twice and flag what looks diverged.

    Args:
        inputs: Name → positive values, such as N and D.
        values: Losses (positive), or rewards where `falls` is False.
        falls: Whether more of every input should make the value smaller.
        leave_out: Rows that the user takes out.

    Raises:
        DataError: Lengths differ, an input is not positive and finite, a loss is not positive, or
            no run is left; the message names the first row at fault.
    """
    columns = {name: _column(name, one) for name, one in inputs.items()}
    results = _column("loss" if falls else "reward", values)
    _check(columns, results, falls)
    runs = Runs(columns, results, np.arange(len(results)))
    unknown = [row for row in leave_out if not 0 <= row < len(results)]
    if unknown:
        raise DataError(f"leave_out: row {unknown[0]} is not in 0 … {len(results) - 1}")
    flags = [Flag(row, "left out", "by request", False) for row in sorted(set(leave_out))]
    keep = ~np.isin(runs.rows, list(leave_out))
    flags += [
        Flag(int(row), DIVERGED, f"the {'loss' if falls else 'reward'} is {results[row]}", False)
        for row in np.flatnonzero(~np.isfinite(results) & keep)
    ]
    runs = runs.select(np.isfinite(results) & keep)
    if not len(runs):
        raise DataError("no run with a finite result is left; check the column of losses")
    runs, repeated = _merged(runs)
    runs.flags = sorted([*flags, *repeated, *_dominated(runs, falls)], key=lambda flag: flag.row)
    return runs


def _column(name: str, values: ArrayLike) -> Array:
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: must hold numbers ({error}); correct the column") from error
    return np.atleast_1d(found).reshape(-1)


def _check(columns: dict[str, Array], results: Array, falls: bool) -> None:
    for name, values in columns.items():
        if len(values) != len(results):
            raise DataError(
                f"{name}: has {len(values)} values for {len(results)} results; give one a run"
            )
        wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
        if len(wrong):
            raise DataError(
                f"{name}: must be above 0 and finite, got {values[wrong[0]]} in row {wrong[0]} "
                f"({len(wrong)} such rows); correct or remove them"
            )
    wrong = np.flatnonzero(results <= 0) if falls else []
    if len(wrong):
        raise DataError(
            f"loss: must be above 0, got {results[wrong[0]]} in row {wrong[0]}; give nats a token"
        )


def _merged(runs: Runs) -> tuple[Runs, list[Flag]]:
    """Rows with the same inputs and result are one run: repeated rows change nothing."""
    table = np.stack([*runs.inputs.values(), runs.values], 1)
    _, first, back = np.unique(table, axis=0, return_index=True, return_inverse=True)
    keep = np.zeros(len(runs), bool)
    keep[first] = True
    first_row = runs.rows[first[back.reshape(-1)]]
    flags = [
        Flag(int(row), REPEATED, f"the same numbers as row {same}; counted once", False)
        for row, same in zip(runs.rows[~keep], first_row[~keep], strict=True)
    ]
    return runs.select(keep), flags


def _dominated(runs: Runs, falls: bool) -> list[Flag]:
    """Runs worse by 3 % than one that is smaller in every input: most likely diverged."""
    if not falls:
        return []
    flags = []
    table = np.stack(list(runs.inputs.values()), 1)[:, :2]
    for i, value in enumerate(runs.values):
        smaller = (table <= table[i]).all(1) & (table < table[i]).any(1)
        if not smaller.any():
            continue
        best = np.flatnonzero(smaller)[runs.values[smaller].argmin()]
        above = value / runs.values[best] - 1
        if above > _ABOVE_SMALLER:
            words = (
                f"loss {value:.4g} is {above:.0%} above row {runs.rows[best]}'s, a run with no "
                "more parameters and no more tokens"
            )
            flags.append(Flag(int(runs.rows[i]), DIVERGED, words, True))
    return flags


def outlier_flags(runs: Runs, residuals: Array, known: Sequence[Flag]) -> list[Flag]:
    """Runs far off a fit: more than six robust standard deviations.

    Args:
        runs: Those fitted.
        residuals: [n] ln(predicted) − ln(measured), or the same in units of the spread.
        known: Flags there are already; a run is flagged once.
    """
    scale = 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))
    far = np.abs(residuals) > max(6 * scale, 0.01)
    flagged = {flag.row for flag in known}
    return [
        Flag(
            int(runs.rows[i]),
            OUTLIER,
            f"{runs.values[i]:.4g} lies {abs(_change(residuals[i])):.1%} "
            f"{'above' if residuals[i] < 0 else 'below'} the fit",
            True,
        )
        for i in np.flatnonzero(far)
        if int(runs.rows[i]) not in flagged
    ]


def _change(residual: Any) -> float:
    return float(np.expm1(-residual))
