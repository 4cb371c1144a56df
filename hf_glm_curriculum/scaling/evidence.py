"""What a law rests on: runs, objective, draws and checks; kept with the law and in its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.scaling.runs import Flag, Runs

Array = NDArray[np.float64]


@dataclass
class FitReport:
    """How a fit went.

    Attributes:
        runs: Runs fitted.
        starts: Starts of the grid.
        converged: Share of them that ended by themselves.
        at_best: Share of them that ended at the minimum kept.
        next_best: Objective of the next minimum; None if all starts agree.
        iterations: Of the start that won.
        gradient: Largest component of the objective's gradient there.
        seconds: Of the fit, bootstraps included.
        residuals: "mean_abs", "rms" and "max" of |predicted/measured − 1|, and the rank
            correlations of the residuals with each input ("trend_N", …).
        largest_left_out: Prediction of the largest runs by a fit to the smaller ones: "factor",
            "fitted", "predicted", "mean_abs", "max", "bias"; or "refused" with the reason.
        bootstraps: Resamples asked for.
        bootstraps_failed: Those that did not identify the law and are in no interval.
        warnings: What a reader should know before using the law.
    """

    runs: int
    starts: int
    converged: float
    at_best: float
    next_best: float | None
    iterations: int
    gradient: float
    seconds: float = 0.0
    residuals: dict[str, float] = field(default_factory=dict)
    largest_left_out: dict[str, Any] = field(default_factory=dict)
    bootstraps: int = 0
    bootstraps_failed: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass
class Evidence:
    """Everything a fit leaves besides the parameters.

    Attributes:
        objective: Σ Huber(ln L̂ − ln L) over the runs.
        huber: Its threshold.
        seed: Of the draws.
        covariance: [P, P] of the natural parameters.
        draws: [K, P] internal parameters; their spread is every interval.
        draws_from: "bootstrap" or "covariance".
        report: How the fit went.
        runs: What was fitted.
    """

    objective: float
    huber: float
    seed: int
    covariance: Array
    draws: Array
    draws_from: str
    report: FitReport
    runs: Runs

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        runs = self.runs
        return {
            "objective": self.objective,
            "huber": self.huber,
            "seed": self.seed,
            "covariance": _plain(self.covariance),
            "draws": _plain(self.draws),
            "draws_from": self.draws_from,
            "report": _plain(asdict(self.report)),
            "runs": {
                "inputs": {name: values.tolist() for name, values in runs.inputs.items()},
                "values": runs.values.tolist(),
                "rows": runs.rows.tolist(),
                "flags": [asdict(flag) for flag in runs.flags],
            },
        }

    @classmethod
    def from_dict(cls, kept: dict[str, Any]) -> Evidence:
        """Evidence as `as_dict` wrote it."""
        runs = kept["runs"]
        inputs = {name: np.array(values, float) for name, values in runs["inputs"].items()}
        flags = [Flag(**flag) for flag in runs["flags"]]
        return cls(
            kept["objective"],
            kept["huber"],
            kept["seed"],
            np.array(kept["covariance"], float),
            np.array(kept["draws"], float),
            kept["draws_from"],
            FitReport(**kept["report"]),
            Runs(inputs, np.array(runs["values"], float), np.array(runs["rows"], int), flags),
        )


def _plain(value: Any) -> Any:
    """Lists and numbers that JSON knows; what is not finite becomes None."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
