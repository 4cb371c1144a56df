"""What tells a law that fits from one that predicts: residuals, and the largest runs left out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.evidence import FitReport
from hf_glm_curriculum.scaling.identification import check_runs
from hf_glm_curriculum.scaling.runs import Runs
from hf_glm_curriculum.scaling.solver import Solution, solve
from hf_glm_curriculum.scaling.uncertainty import interval

Array = NDArray[np.float64]

_FACTORS = (10.0, 5.0, 3.0, 2.0)
_TREND = 0.5
_SEVERAL_MINIMA, _WIDE = 0.5, 3.0


def residual_summary(runs: Runs, residuals: Array) -> dict[str, float]:
    """Sizes of the relative errors, and the residuals' rank correlation with each input.

    Args:
        runs: Those fitted.
        residuals: [n] ln(predicted) − ln(measured), or scaled differences of rewards.
    """
    errors = np.abs(np.expm1(residuals))
    found = {
        "mean_abs": float(errors.mean()),
        "rms": float(np.sqrt((errors**2).mean())),
        "max": float(errors.max()),
    }
    for name, values in runs.inputs.items():
        found[f"trend_{name}"] = _rank_correlation(values, residuals)
    return found


def _rank_correlation(one: Array, other: Array) -> float:
    """Spearman's; 0 where one of them does not vary."""
    if np.ptp(one) == 0 or np.ptp(other) < 1e-9:
        return 0.0
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (one, other))
    return float(np.corrcoef(first, second)[0, 1])


def largest_left_out(
    form: Any, runs: Runs, target: Array, solution: Solution, huber: float, centre: Array
) -> dict[str, Any]:
    """Fit the smaller runs and predict the largest.

    Cuts at a tenth of the largest run's size (the product of N and D, or of all inputs), or at a
    fifth, a third or a half where the runs below do not identify the law.

    Args:
        form: The form.
        runs: All runs.
        target: [n] what the form predicts.
        solution: Of all runs; its end points are the starts.
        huber: Threshold.
        centre: Taken off the logarithms.

    Returns:
        See `FitReport.largest_left_out`.
    """
    places = [i for i, name in enumerate(runs.inputs) if name != "U"]
    size = runs.x[:, places].sum(1)
    names = tuple(name for name in runs.inputs if name != "U")
    reason = "no larger runs"
    for factor in _FACTORS:
        small = size <= size.max() - np.log(factor)
        try:
            part = runs.select(small)
            if not len(part):
                continue
            check_runs(part, names, len(form.names), form.name)
        except DataError as error:
            reason = str(error)
            continue
        return {"factor": factor, **_predicted(form, runs, target, solution, huber, centre, small)}
    return {"refused": f"the runs below half of the largest: {reason}"}


def _predicted(
    form: Any,
    runs: Runs,
    target: Array,
    solution: Solution,
    huber: float,
    centre: Array,
    small: NDArray[np.bool_],
) -> dict[str, Any]:
    x = runs.x - centre
    starts = np.concatenate([solution.theta[None], solution.others])
    again = solve(form, x[small], target[small], starts, huber)
    predicted = form.log_loss(again.theta[None], x[~small])[0][0]
    errors = np.expm1(predicted - target[~small])
    return {
        "fitted": int(small.sum()),
        "predicted": int((~small).sum()),
        "mean_abs": float(np.abs(errors).mean()),
        "max": float(np.abs(errors).max()),
        "bias": float(errors.mean()),
    }


def residual_warnings(report: FitReport, runs: Runs) -> list[str]:
    """What residuals, starts and left-out runs say against the law."""
    found = []
    for name in runs.inputs:
        trend = report.residuals[f"trend_{name}"]
        if abs(trend) > _TREND and report.residuals["mean_abs"] > 1e-3:
            found.append(
                f"residuals run with {name} (rank correlation {trend:+.2f}): the form does not fit "
                "these runs; try another, or leave out the smallest"
            )
    if report.at_best < _SEVERAL_MINIMA and report.next_best is not None:
        found.append(
            f"{1 - report.at_best:.0%} of the starts ended in other minima (next objective "
            f"{report.next_best:.6g})"
        )
    left = report.largest_left_out
    if left.get("mean_abs", 0) > 2 * report.residuals["mean_abs"] + 0.01:
        found.append(
            f"fitted without the largest runs it misses them by {left['mean_abs']:.1%} (all runs: "
            f"{report.residuals['mean_abs']:.1%}): do not extrapolate far"
        )
    return found


def exponent_warnings(form: Any, draws: Array) -> list[str]:
    """Exponents that the runs hardly determine.

    Args:
        form: The form.
        draws: [K, P] internal parameters.
    """
    found = []
    for place, name in zip(form.exponents(), form.inputs, strict=False):
        low, high = interval(draws[:, place])
        if high > _WIDE * low:
            found.append(
                f"the exponent of {name} is hardly determined ({low:.2g} … {high:.2g}): what the "
                f"law says beyond these runs is a guess; add runs over a wider range of {name}"
            )
    return found
