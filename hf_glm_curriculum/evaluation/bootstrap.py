"""Percentile bootstrap over prompts: a figure's interval, and that of a paired difference.

Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapters 13 and 16; for
differences between models on the same prompts, Koehn 2004.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.evaluation.agreement import wilson_interval

Part = tuple[float, float] | Sequence[float] | None
"""What a row adds to a figure's numerator and denominator; None where it has no say."""

_CHUNK = 2_000_000


@dataclass(frozen=True)
class Interval:
    """A figure with its interval.

    Attributes:
        value: The figure itself.
        low: Lower end.
        high: Upper end.
        n: Rows it rests on.
    """

    value: float
    low: float
    high: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def figure_interval(
    parts: Sequence[Part], draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Interval of Σ numerators / Σ denominators over rows; None without a row.

    Where every row says yes or no it is Wilson's: resampling rows that all agree gives an interval
    of no width, however few they are. For a level other than 95 % rows are resampled throughout.

    Args:
        parts: (numerator, denominator) a row, such as (1, 1) for a right answer, or a row's summed
            loss and tokens.
        draws: Resamples.
        level: Share of resamples inside the interval.
        seed: Of the resamples.

    Raises:
        DataError: draws is below 1, or level does not lie in (0, 1).
    """
    known = [part for part in parts if part is not None]
    if not known or not sum(part[1] for part in known):
        return None
    if level == 0.95 and all(part[1] == 1 and part[0] in (0, 1) for part in known):
        hits, n = sum(part[0] for part in known), len(known)
        return Interval(hits / n, *wilson_interval(hits, n), n)
    sums = np.asarray(known, dtype=float)[:, None, :]
    ratios = _resampled(sums, draws, seed)[:, 0]
    return _interval(float(sums[:, 0, 0].sum() / sums[:, 0, 1].sum()), ratios, level, len(known))


def paired_difference(
    first: Sequence[Part],
    other: Sequence[Part],
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Interval of (other's figure − first's), both resampled by the same rows.

    Args:
        first: As `figure_interval` takes them, of the first model.
        other: The same rows of the other model.
        draws: Resamples.
        level: Share of resamples inside the interval.
        seed: Of the resamples.

    Returns:
        None where no row has both.

    Raises:
        DataError: The lengths differ, draws is below 1, or level does not lie in (0, 1).
    """
    if len(first) != len(other):
        raise DataError(
            f"paired rows: need the same rows of both models, got {len(first)} and {len(other)}"
        )
    both = [(a, b) for a, b in zip(first, other, strict=True) if a is not None and b is not None]
    if not both:
        return None
    sums = np.asarray(both, dtype=float)
    totals = sums.sum(0)
    if not totals[:, 1].all():
        return None
    ratios = _resampled(sums, draws, seed)
    value = totals[1, 0] / totals[1, 1] - totals[0, 0] / totals[0, 1]
    return _interval(float(value), ratios[:, 1] - ratios[:, 0], level, len(both))


def _resampled(sums: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """[draws, models] ratios of resampled rows; `sums` is [rows, models, 2]."""
    if draws < 1:
        raise DataError(f"draws: must be at least 1, got {draws}")
    rng, rows = np.random.default_rng(seed), len(sums)
    found, step = [], max(1, _CHUNK // (rows * sums.shape[1]))
    for start in range(0, draws, step):
        picks = rng.integers(0, rows, (min(step, draws - start), rows))
        totals = sums[picks].sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append(totals[..., 0] / totals[..., 1])
    return np.concatenate(found)


def _interval(value: float, ratios: np.ndarray, level: float, n: int) -> Interval:
    """Percentiles of the resampled figures; draws without a denominator say nothing."""
    if not 0 < level < 1:
        raise DataError(f"level: must lie in (0, 1), got {level}")
    ratios = ratios[np.isfinite(ratios)]
    tail = (1 - level) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail]) if len(ratios) else (np.nan, np.nan)
    return Interval(value, float(low), float(high), n)
