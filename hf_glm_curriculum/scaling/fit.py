"""`fit_scaling_law`: a law from runs, with everything that says how far to trust it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.scaling.checks import (
    exponent_warnings,
    largest_left_out,
    residual_summary,
    residual_warnings,
)
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.evidence import Evidence, FitReport
from hf_glm_curriculum.scaling.forms import Form, form_named
from hf_glm_curriculum.scaling.identification import check_fit, check_runs
from hf_glm_curriculum.scaling.law import ScalingLaw
from hf_glm_curriculum.scaling.runs import Runs, clean_runs, outlier_flags
from hf_glm_curriculum.scaling.solver import Solution, bootstrap, solve
from hf_glm_curriculum.scaling.uncertainty import gaussian_draws, robust_covariance, usable

Array = NDArray[np.float64]

_MOST_FAILED = 0.1


def fit_scaling_law(
    N: ArrayLike,
    D: ArrayLike,
    L: ArrayLike,
    form: str = "chinchilla",
    huber: float = 1e-3,
    bootstraps: int = 0,
    seed: int = 0,
    *,
    unique: ArrayLike | None = None,
    conventions: Conventions | None = None,
    leave_out: Sequence[int] = (),
) -> ScalingLaw:
    """Fit a scaling law to training runs.

    Minimises Σ Huber(ln L̂ − ln L), summed over runs, from a grid of starts by L-BFGS (Hoffmann et
    al. 2022, §3.3; summed as Besiroglu et al. 2024, arXiv 2404.10102, ask for). Rows that stand
    twice count once. Runs that look diverged are flagged in `.flags` and kept, unless their loss
    is not finite.

    Args:
        N: [n] parameters of each run.
        D: [n] tokens of each run.
        L: [n] final losses, above 0.
        form: "chinchilla", "two_power", "simplified", "kaplan" or "data_limited".
        huber: Threshold of the Huber loss on ln L.
        bootstraps: Resamples behind the intervals; 0 takes them from the covariance.
        seed: Of the resamples.
        unique: [n] unique tokens of each run, for "data_limited".
        conventions: How N, FLOPs and L are counted; stored with the law.
        leave_out: Rows to leave out, from 0; they stay in `.flags`.

    Returns:
        The law, with `.objective`, `.intervals`, `.covariance`, `.report` and `.flags`.

    Raises:
        ConfigError: The form is unknown, or a setting is out of range.
        DataError: A row is wrong, or the runs do not identify the form: the message says which
            parameters, why, and which runs would.
    """
    chosen = form_named(form)
    _check_settings(huber, bootstraps)
    if ("U" in chosen.inputs) != (unique is not None):
        rule = "needs unique=" if unique is None else "takes no unique="
        raise ConfigError(f"unique: form {form!r} {rule}; it is for 'data_limited' only")
    inputs = {"N": N, "D": D} if unique is None else {"N": N, "D": D, "U": unique}
    runs = clean_runs(inputs, L, leave_out=leave_out)
    check_runs(runs, ("N", "D"), len(chosen.names), form)
    fitted = fit_form(chosen, runs, np.log(runs.values), huber, bootstraps, seed)
    natural = chosen.natural(fitted.theta[None])[0]
    return ScalingLaw(
        form=form,
        parameters=dict(zip(chosen.names, natural.tolist(), strict=True)),
        conventions=conventions,
        evidence=fitted.evidence,
    )


@dataclass
class Fitted:
    """Internal parameters [P] and what they rest on."""

    theta: Array
    evidence: Evidence


def fit_form(
    form: Any, runs: Runs, target: Array, huber: float, bootstraps: int, seed: int
) -> Fitted:
    """Fit any form to cleaned runs.

    Args:
        form: A `Form`, or a form of a post-training law.
        runs: The runs.
        target: [n] what the form predicts: ln L, or scaled rewards.
        huber: Threshold.
        bootstraps: Resamples; 0 for none.
        seed: Of the resamples.

    Raises:
        DataError: The runs do not determine the parameters.
    """
    began = time.perf_counter()
    centre = centre_of(form, runs.x)
    x = runs.x - centre
    solution = solve(form, x, target, form.starts(x, runs.values), huber)
    warnings = check_fit(form, solution.theta, x, floor_of(form))
    residuals = form.log_loss(solution.theta[None], x)[0][0] - target
    covariance = robust_covariance(form.jacobian(solution.theta, x), residuals, huber)
    draws, failed = _draws(form, x, target, solution, covariance, huber, bootstraps, seed)
    if failed > _MOST_FAILED * bootstraps:
        warnings.append(
            f"{failed} of {bootstraps} resamples of the runs do not identify the law: intervals "
            "are too narrow; add runs"
        )
    report = FitReport(
        runs=len(runs),
        starts=solution.starts,
        converged=solution.converged,
        at_best=solution.at_best,
        next_best=solution.next_best,
        iterations=solution.iterations,
        gradient=solution.gradient,
        residuals=residual_summary(runs, residuals),
        largest_left_out=largest_left_out(form, runs, target, solution, huber, centre),
        bootstraps=bootstraps,
        bootstraps_failed=failed,
    )
    runs.flags = sorted(
        [*runs.flags, *outlier_flags(runs, residuals, runs.flags)], key=lambda flag: flag.row
    )
    report.warnings = [
        *warnings,
        *exponent_warnings(form, draws),
        *residual_warnings(report, runs),
    ]
    theta = form.shift(solution.theta[None], centre)[0]
    draws = form.shift(draws, centre)
    report.seconds = time.perf_counter() - began
    evidence = Evidence(
        solution.objective,
        huber,
        seed,
        _natural_covariance(form, theta, covariance, centre, draws if bootstraps else None),
        draws,
        "bootstrap" if bootstraps else "covariance",
        report,
        runs,
    )
    return Fitted(theta, evidence)


def centre_of(form: Any, x: Array) -> Array:
    """[K] what is taken off the logarithms before a fit, so that parameters hardly correlate."""
    if form.name == "simplified":
        return np.zeros(x.shape[1])
    centre = x.mean(0)
    if form.inputs == ("N", "D", "U"):
        centre[2] = centre[1]
    return centre


def floor_of(form: Any) -> int | None:
    """Place of the floor's logarithm among the internal parameters."""
    return 0 if form.names[0] == "E" and getattr(form, "floor_is_log", True) else None


def _draws(
    form: Any,
    x: Array,
    target: Array,
    solution: Solution,
    covariance: Array,
    huber: float,
    bootstraps: int,
    seed: int,
) -> tuple[Array, int]:
    """Draws around the fit, and how many resamples failed."""
    if not bootstraps:
        return usable(gaussian_draws(solution.theta, covariance, seed), form.exponents()), 0
    generator = np.random.default_rng(seed)
    found = bootstrap(form, x, target, solution, huber, bootstraps, generator)
    good = usable(found, form.exponents())
    if len(good) < bootstraps / 2:
        raise DataError(
            f"under-identified: only {len(good)} of {bootstraps} resamples of the runs identify "
            "the law; add runs, or fit without bootstraps and read the intervals as a lower bound"
        )
    return good, bootstraps - len(good)


def _natural_covariance(
    form: Form, theta: Array, covariance: Array, centre: Array, draws: Array | None
) -> Array:
    """[P, P] of the natural parameters: of the resamples, or by the delta method."""
    if draws is not None:
        with np.errstate(all="ignore"):
            return np.cov(form.natural(draws).T)
    step = 1e-6
    base = form.shift(theta[None], -centre)[0]
    moves = np.stack([base + step * one for one in np.eye(len(theta))])
    back = np.stack([base - step * one for one in np.eye(len(theta))])
    up, down = (form.natural(form.shift(m, centre)) for m in (moves, back))
    jacobian = (up - down).T / (2 * step)
    return jacobian @ covariance @ jacobian.T


def _check_settings(huber: float, bootstraps: int) -> None:
    if not huber > 0:
        raise ConfigError(f"huber: must be above 0, got {huber}; 1e-3 is usual")
    if bootstraps < 0:
        raise ConfigError(f"bootstraps: must be at least 0, got {bootstraps}; 100 is usual")
