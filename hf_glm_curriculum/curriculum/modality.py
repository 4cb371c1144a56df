"""Whether numbers lie in one heap or in two: bimodality coefficient and a dip measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

POINTS = 400
"""Quantiles that stand for a larger sample in the dip."""

UNIFORM_COEFFICIENT = 5 / 9
"""Sarle's coefficient of a uniform distribution: above it two heaps are likely."""

_MODES, _DRAWS, _LARGEST = 60, 40, 50_000


@dataclass(frozen=True)
class Modality:
    """How many heaps numbers lie in.

    Attributes:
        coefficient: Sarle's bimodality coefficient in (0, 1], 5/9 for a uniform distribution; NaN
            for fewer than four numbers or all alike.
        dip: largest distance, in probability, of the sample from the nearest distribution with one
            peak; NaN likewise.
        dip_by_chance: what 95 % of uniform samples of the size stay below.
    """

    coefficient: float
    dip: float
    dip_by_chance: float

    @property
    def two_heaps(self) -> bool:
        """Whether one peak is rejected at 5 %; the dip decides, the coefficient only describes."""
        return self.dip > self.dip_by_chance


def modality(values: np.ndarray, seed: int = 0) -> Modality:
    """Describe a sample.

    Args:
        values: [n] finite numbers.
        seed: of the uniform samples that the dip is held against.
    """
    values = np.sort(np.asarray(values, dtype=np.float64))
    if len(values) < 4 or values[0] == values[-1]:
        return Modality(math.nan, math.nan, math.nan)
    chance = _dip_by_chance(min(len(values), _LARGEST), seed)
    return Modality(bimodality_coefficient(values), dip(_thinned(values)), chance)


@cache
def _dip_by_chance(n: int, seed: int) -> float:
    """What 95 % of uniform samples of this size stay below."""
    generator = np.random.default_rng(seed)
    dips = [dip(_thinned(np.sort(generator.random(n)))) for _ in range(_DRAWS)]
    return float(np.quantile(dips, 0.95))


def bimodality_coefficient(values: np.ndarray) -> float:
    """Sarle's coefficient with the small-sample correction.

    SAS Institute 1990; Pfister and others, "Good things peak in pairs", Frontiers in Psychology
    2013: (g² + 1) / (k + 3(n − 1)² / ((n − 2)(n − 3))), g the sample skewness and k the excess
    kurtosis.
    """
    n = len(values)
    if n < 4 or np.ptp(values) == 0:
        return math.nan
    centred = values - values.mean()
    spread = centred.std()
    skew = float((centred**3).mean() / spread**3) * math.sqrt(n * (n - 1)) / (n - 2)
    plain = float((centred**4).mean() / spread**4) - 3.0
    kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * plain + 6.0)
    return (skew**2 + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))


def dip(ordered: np.ndarray) -> float:
    """Distance of a sample from the nearest distribution with one peak.

    For a peak at x the nearest such distribution is convex before x and concave after it; half the
    largest distance of the empirical distribution from its convex minorant before x and its concave
    majorant after it is the least error, and the best of up to 60 places for x is taken. Hartigan
    and Hartigan's dip ("The Dip Test of Unimodality", Annals of Statistics 1985) searches all
    places; this is never smaller.

    Args:
        ordered: [n] numbers in ascending order, not all alike.

    Returns:
        In [1/(2n), 1/4].
    """
    n = len(ordered)
    places = np.unique(np.linspace(0, n - 1, min(n, _MODES)).round().astype(int))
    best = min(
        max(_from_minorant(ordered[: place + 1], n), _from_minorant(-ordered[place:][::-1], n))
        for place in places
    )
    return max(best / 2, 0.5 / n)


def _thinned(ordered: np.ndarray) -> np.ndarray:
    if len(ordered) <= POINTS:
        return ordered
    return np.quantile(ordered, (np.arange(POINTS) + 0.5) / POINTS)


def _from_minorant(xs: np.ndarray, n: int) -> float:
    """Largest height of the points (xᵢ, i/n) above their greatest convex minorant."""
    hull: list[int] = []
    for i in range(len(xs)):
        while len(hull) >= 2 and _turns_down(xs, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    line = np.interp(xs, xs[hull], np.array(hull, dtype=np.float64))
    return float((np.arange(len(xs)) - line).max()) / n


def _turns_down(xs: np.ndarray, a: int, b: int, c: int) -> bool:
    """Whether b lies on or above the line from a to c, heights being the numbers themselves."""
    return (b - a) * (xs[c] - xs[a]) >= (c - a) * (xs[b] - xs[a])
