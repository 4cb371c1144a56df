"""How far raters agree beyond chance, and intervals of shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

from hf_glm_curriculum.errors import DataError

Z95 = 1.959963984540054


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Agreement of two raters on the same items: (pₒ − pₑ)/(1 − pₑ).

    Source: Cohen, "A coefficient of agreement for nominal scales", 1960.

    Returns:
        At most 1, 0 for agreement by chance; None without an item, or where both raters gave one
        and the same answer throughout.

    Raises:
        DataError: The lengths differ.
    """
    if len(first) != len(second):
        raise DataError(f"ratings: two raters need as many items, got {len(first)}, {len(second)}")
    n = len(first)
    if not n:
        return None
    observed = sum(a == b for a, b in zip(first, second, strict=True)) / n
    one, two = Counter(first), Counter(second)
    expected = sum(one[name] * two[name] for name in one) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def fleiss_kappa(counts: Sequence[Sequence[int]]) -> float | None:
    """Agreement of several raters, who may be others for each item.

    Source: Fleiss, "Measuring nominal scale agreement among many raters", 1971; items with fewer
    ratings weigh by their pairs.

    Args:
        counts: For each item, how many raters chose each category; two ratings an item at least.

    Returns:
        At most 1, 0 for agreement by chance; None without an item or with one category only.

    Raises:
        DataError: An item has fewer than two ratings, or categories differ in number.
    """
    if not counts:
        return None
    if len({len(row) for row in counts}) != 1:
        raise DataError("ratings: every item needs a count for each category")
    if min(map(sum, counts)) < 2:
        raise DataError("ratings: every item needs two ratings at least")
    total = sum(map(sum, counts))
    shares = [sum(row[i] for row in counts) / total for i in range(len(counts[0]))]
    expected = sum(share**2 for share in shares)
    agreeing = sum(sum(c * (c - 1) for c in row) / (sum(row) - 1) for row in counts)
    return None if expected == 1 else (agreeing / total - expected) / (1 - expected)


def wilson_interval(hits: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Interval of a share, 95 % by default.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    Args:
        hits: Successes; halves count for ties.
        n: Trials.
        z: Normal quantile.

    Returns:
        (0, 1) without a trial.
    """
    if not n:
        return 0.0, 1.0
    share = hits / n
    centre = share + z**2 / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    low, high = (centre - spread) / (1 + z**2 / n), (centre + spread) / (1 + z**2 / n)
    return max(0.0, low), min(1.0, high)
