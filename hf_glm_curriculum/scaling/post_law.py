"""Post-training laws: loss or reward against SFT rows, preference pairs and PPO episodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.scaling.evidence import Evidence
from hf_glm_curriculum.scaling.fit import fit_form
from hf_glm_curriculum.scaling.identification import check_runs
from hf_glm_curriculum.scaling.post_forms import INPUTS, LossAgainstRows, RewardAgainstRows
from hf_glm_curriculum.scaling.runs import Runs, clean_runs
from hf_glm_curriculum.scaling.uncertainty import LEVEL, interval, percentiles
from hf_glm_curriculum.storage import atomic_write_json, read_json

Array = NDArray[np.float64]

FILE_KIND = "post_training_law"
_FIXED_SPAN = 1.02


class Estimate(NamedTuple):
    """A value and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


class PostTrainingLaw:
    """A fitted post-training law.

    Attributes:
        metric: What was fitted, such as "eval_loss".
        rises: Whether it is a reward (more is better).
        inputs: Inputs in the law.
        constants: Inputs that did not vary in the runs, with their value: no part of the law.
        parameters: Name → value.
        span: Range of the results seen, the unit in which rewards were fitted.
        evidence: See `Evidence`.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        parameters: Mapping[str, float],
        evidence: Evidence,
        *,
        metric: str = "loss",
        rises: bool = False,
        constants: Mapping[str, float] | None = None,
        span: float = 1.0,
    ) -> None:
        self.form = (RewardAgainstRows if rises else LossAgainstRows)(inputs)
        self.inputs, self.parameters = tuple(inputs), dict(parameters)
        self.evidence, self.metric, self.rises = evidence, metric, rises
        self.constants, self.span = dict(constants or {}), span

    def __repr__(self) -> str:
        """The parameters."""
        shown = ", ".join(f"{name}={value:.4g}" for name, value in self.parameters.items())
        return f"PostTrainingLaw({self.metric}: {shown})"

    @property
    def natural(self) -> Array:
        """[1, P] parameters in units of the result."""
        return np.array([[self.parameters[name] for name in self.form.names]])

    @property
    def natural_draws(self) -> Array:
        """[K, P] draws in units of the result."""
        return _unscaled(self.form.natural(self.evidence.draws), len(self.inputs), self._unit)

    @property
    def _unit(self) -> float:
        return self.span if self.rises else 1.0

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Parameter → 95 % interval."""
        draws = self.natural_draws
        return {name: interval(draws[:, i]) for i, name in enumerate(self.form.names)}

    def predict(self, **at: ArrayLike) -> Any:
        """The result for a value of every input of the law, such as ``sft_rows=10_000``.

        Raises:
            DataError: An input is missing, unknown or not positive.
        """
        x, shape = self._x(at)
        found = self.results(self.natural, x)[0]
        return found.reshape(shape) if shape else float(found[0])

    def predict_interval(self, level: float = LEVEL, **at: ArrayLike) -> tuple[Any, Any]:
        """Bounds of `predict`."""
        x, shape = self._x(at)
        low, high = percentiles(self.results(self.natural_draws, x), level)
        return (
            (low.reshape(shape), high.reshape(shape)) if shape else (float(low[0]), float(high[0]))
        )

    def more_for(self, name: str, change: float = 0.01, **at: float) -> Estimate:
        """How many more of one input improve the result by a share, everything else held.

        Args:
            name: The input, such as "sft_rows".
            change: Share by which the loss is to fall; for rewards, share of the range of rewards
                seen by which it is to rise.
            at: Where the law stands now: a value for every input.

        Returns:
            More rows (pairs, episodes) and their interval; inf where the floor is too near.

        Raises:
            ConfigError: `change` is not in (0, 1), or the input is not in the law.
            DataError: As in `predict`.
        """
        if not 0 < change < 1:
            raise ConfigError(f"change: must lie in (0, 1), got {change}")
        if name not in self.inputs:
            raise ConfigError(
                f"{name!r} is not in this law, which has {', '.join(self.inputs)}; fit runs in "
                "which it varies"
            )
        x = self._x(at)[0]
        value = self._more(self.natural, name, change, x)
        return Estimate(float(value[0]), *interval(self._more(self.natural_draws, name, change, x)))

    def _more(self, natural: Array, name: str, change: float, x: Array) -> Array:
        """[S] more of one input."""
        place = self.inputs.index(name)
        scale, exponent = natural[:, 1 + place], natural[:, 1 + len(self.inputs) + place]
        now = scale * np.exp(-exponent * x[0, place])
        step = self.span if self.rises else self.results(natural, x)[:, 0]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            then = np.exp(-np.log((now - change * step) / scale) / exponent)
        return np.where(now > change * step, then - np.exp(x[0, place]), np.inf)

    def results(self, natural: Array, x: Array) -> Array:
        """[S, n] results of natural parameters [S, P] at logarithms of inputs [n, K]."""
        k = len(self.inputs)
        powers = natural[:, None, 1 : 1 + k] * np.exp(-natural[:, None, 1 + k :] * x[None])
        sign = -1.0 if self.rises else 1.0
        return natural[:, :1] + sign * powers.sum(2)

    def _x(self, at: Mapping[str, ArrayLike]) -> tuple[Array, tuple[int, ...]]:
        missing = [name for name in self.inputs if name not in at]
        extra = [name for name in at if name not in self.inputs]
        if missing or extra:
            raise DataError(
                f"this law is of {', '.join(self.inputs)}; "
                + (f"give {', '.join(missing)} too" if missing else f"leave out {', '.join(extra)}")
            )
        columns = np.broadcast_arrays(*(np.asarray(at[name], float) for name in self.inputs))
        for name, values in zip(self.inputs, columns, strict=True):
            if not (values > 0).all():
                raise DataError(f"{name}: must be above 0, got {values.min()}")
        return np.log(np.stack([one.reshape(-1) for one in columns], 1)), columns[0].shape

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "kind": FILE_KIND,
            "metric": self.metric,
            "rises": self.rises,
            "formula": self.form.formula,
            "inputs": list(self.inputs),
            "constants": self.constants,
            "span": self.span,
            "parameters": self.parameters,
            "units": self.form.units,
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
            "evidence": self.evidence.as_dict(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the law as JSON, atomically.

        Raises:
            StateError: The file cannot be written.
        """
        atomic_write_json(path, self.as_dict(), indent=1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PostTrainingLaw:
        """Read a law that `save` wrote.

        Raises:
            StateError: The file is missing, not JSON, or holds something else.
        """
        kept = read_json(path)
        if not isinstance(kept, dict) or kept.get("kind") != FILE_KIND:
            raise StateError(
                f"{os.fspath(path)} holds no post-training law; give a file of `scaling fit --post`"
            )
        return cls(
            kept["inputs"],
            kept["parameters"],
            Evidence.from_dict(kept["evidence"]),
            metric=kept["metric"],
            rises=kept["rises"],
            constants=kept["constants"],
            span=kept["span"],
        )


def fit_post_training_law(
    inputs: Mapping[str, ArrayLike],
    values: ArrayLike,
    *,
    metric: str = "loss",
    rises: bool = False,
    huber: float = 1e-3,
    bootstraps: int = 0,
    seed: int = 0,
    leave_out: Sequence[int] = (),
) -> PostTrainingLaw:
    """Fit a post-training law to finished runs.

    Args:
        inputs: Input (see `INPUTS`) → [n] its value in each run. An input with one value in all
            runs is kept as a constant and is no part of the law.
        values: [n] the metric at the end of each run.
        metric: Its name.
        rises: Whether more is better, as with rewards.
        huber: Threshold, on ln(loss), or on rewards over their range.
        bootstraps: Resamples behind the intervals; 0 takes them from the covariance.
        seed: Of the resamples.
        leave_out: Rows to leave out, from 0.

    Raises:
        ConfigError: An input is unknown.
        DataError: A row is wrong, or the runs do not identify the law.
    """
    for name in inputs:
        if name not in INPUTS:
            raise ConfigError(
                f"{name!r} is no input of a post-training law; {nearest(name, INPUTS)}"
            )
    runs = clean_runs(dict(inputs), values, falls=not rises, leave_out=leave_out)
    constants = {
        name: float(column[0])
        for name, column in runs.inputs.items()
        if column.max() / column.min() < _FIXED_SPAN
    }
    varying = [name for name in runs.inputs if name not in constants]
    if not varying:
        raise DataError(
            f"under-identified: {', '.join(constants) or 'no input'} has one value in all runs; "
            "fit runs with different numbers of rows, pairs or episodes"
        )
    runs = Runs({n: runs.inputs[n] for n in varying}, runs.values, runs.rows, runs.flags)
    form = (RewardAgainstRows if rises else LossAgainstRows)(varying)
    check_runs(runs, tuple(varying), len(form.names), form.name)
    span = max(float(np.ptp(runs.values)), 1e-12)
    scaled = Runs(runs.inputs, runs.values / span, runs.rows, runs.flags) if rises else runs
    target = scaled.values if rises else np.log(runs.values)
    fitted = fit_form(form, scaled, target, huber, bootstraps, seed)
    fitted.evidence.runs = Runs(runs.inputs, runs.values, runs.rows, scaled.flags)
    natural = form.natural(fitted.theta[None])
    natural = _unscaled(natural, len(varying), span if rises else 1.0)[0]
    return PostTrainingLaw(
        varying,
        dict(zip(form.names, natural.tolist(), strict=True)),
        fitted.evidence,
        metric=metric,
        rises=rises,
        constants=constants,
        span=span,
    )


def _unscaled(natural: Array, inputs: int, unit: float) -> Array:
    """Ceiling and scales back in the unit of the result; exponents have none."""
    found = natural.copy()
    found[:, : 1 + inputs] *= unit
    return found
