"""How well a score finds faulty samples: rank metrics, the observation pool, by fault kind.

Notation: N samples, labels [N] bool (True is faulty), scores [N] float (higher is more suspect).
Everything is numpy; ties are handled so that the order of tied samples never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hf_glm_curriculum.errors import DataError

Statistic = Callable[[np.ndarray, np.ndarray], float]


def auroc(labels: Any, scores: Any) -> float:
    """Area under the ROC curve: the chance that a faulty sample outscores a clean one.

    U / (n⁺·n⁻) with U the Mann-Whitney statistic over midranks, so that a tie counts one half.

    Args:
        labels: [N] bool, True where faulty.
        scores: [N] finite numbers.

    Returns:
        In [0, 1]; NaN where there is no faulty or no clean sample.

    Raises:
        DataError: The lengths differ or a score is not finite.
    """
    labels, scores = _checked(labels, scores)
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    u = midranks(scores)[labels].sum() - positives * (positives + 1) / 2
    return float(u / (positives * negatives))


def average_precision(labels: Any, scores: Any) -> float:
    """Average precision Σₙ (Rₙ − Rₙ₋₁)·Pₙ over the distinct scores from above.

    Args:
        labels: [N] bool, True where faulty.
        scores: [N] finite numbers.

    Returns:
        In [0, 1]; NaN where no sample is faulty.

    Raises:
        DataError: The lengths differ or a score is not finite.
    """
    labels, scores = _checked(labels, scores)
    if not labels.any():
        return float("nan")
    hits, taken = _cumulative(labels, scores)
    gained = np.diff(hits, prepend=0)
    return float((gained / labels.sum() * hits / taken).sum())


def precision_at(labels: Any, scores: Any, k: int) -> float:
    """Share of faulty samples among the k highest scores.

    Where a tie straddles the cut, the expectation over random orders of the tied samples.

    Args:
        labels: [N] bool, True where faulty.
        scores: [N] finite numbers.
        k: how many samples are looked at; at most N.

    Raises:
        DataError: The lengths differ, a score is not finite or k is out of range.
    """
    labels, scores = _checked(labels, scores)
    if not 1 <= k <= len(labels):
        raise DataError(f"k: must lie in 1..{len(labels)} (the samples), got {k}")
    hits, taken = _cumulative(labels, scores)
    last = int(np.searchsorted(taken, k))
    before_hits, before_taken = (hits[last - 1], taken[last - 1]) if last else (0, 0)
    share = (hits[last] - before_hits) / (taken[last] - before_taken)
    return float((before_hits + share * (k - before_taken)) / k)


def pool_quality(labels: Any, pooled: Any) -> dict[str, Any]:
    """Precision and recall of a set of flagged samples.

    Args:
        labels: [N] bool, True where faulty.
        pooled: [N] bool, True where flagged.

    Returns:
        ``size`` and ``hits`` (counts), ``precision`` (None for an empty set) and ``recall`` (None
        where no sample is faulty).

    Raises:
        DataError: The lengths differ.
    """
    labels, pooled = np.asarray(labels, dtype=bool), np.asarray(pooled, dtype=bool)
    if labels.shape != pooled.shape:
        raise DataError(f"pooled: must have one entry a label, got {pooled.size} for {labels.size}")
    size, hits, faulty = int(pooled.sum()), int((labels & pooled).sum()), int(labels.sum())
    return {
        "size": size,
        "hits": hits,
        "precision": hits / size if size else None,
        "recall": hits / faulty if faulty else None,
    }


def bootstrap_interval(
    labels: Any,
    scores: Any,
    statistic: Statistic = auroc,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic, faulty and clean samples resampled apart.

    Args:
        labels: [N] bool, True where faulty.
        scores: [N] finite numbers.
        statistic: of (labels, scores), such as `auroc` or `average_precision`.
        draws: resamples.
        level: coverage in (0, 1).
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        (low, high); NaN twice where one class is empty.

    Raises:
        DataError: The lengths differ, a score is not finite, or draws or level are out of range.
    """
    labels, scores = _checked(labels, scores)
    if draws < 1 or not 0 < level < 1:
        raise DataError(f"draws, level: need draws >= 1 and 0 < level < 1, got {draws}, {level}")
    groups = np.flatnonzero(labels), np.flatnonzero(~labels)
    if min(map(len, groups)) == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    values = np.empty(draws)
    for draw in range(draws):
        picked = np.concatenate([rng.choice(group, len(group)) for group in groups])
        values[draw] = statistic(labels[picked], scores[picked])
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def midranks(values: Any) -> np.ndarray:
    """Ranks 1..N of [N] values, each tie at the mean of its ranks."""
    values = np.asarray(values, dtype=float)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def detection_report(
    faults: Sequence[str | None],
    suspicion: Any,
    states: Sequence[str],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Everything known about how planted faults were found, overall and by kind.

    A kind is compared with the clean samples only. Samples without a score (never observed) are
    left out of the rank metrics and counted.

    Args:
        faults: [N] fault kind of each sample, None for clean ones.
        suspicion: [N] scores, NaN where unknown.
        states: [N] names of `SampleState`; RELABEL is ``flagged``, all but TRAINING are ``pool``.
        draws: resamples of the intervals.
        seed: of the resampling.

    Returns:
        ``n n_faulty n_unscored auroc auroc_interval average_precision precision_at`` (k faulty
        samples), ``flagged``, ``pool`` (see `pool_quality`) and ``kinds``: kind → ``n auroc
        auroc_interval flagged_recall pool_recall``. NaN is None, ready for JSON.

    Raises:
        DataError: The lengths differ.
    """
    labels = np.array([fault is not None for fault in faults], dtype=bool)
    scores = np.asarray(suspicion, dtype=float)
    names = np.asarray(states, dtype=object)
    if not len(labels) == len(scores) == len(names):
        raise DataError(
            f"faults, suspicion, states: need one entry a sample each, got {len(labels)}, "
            f"{len(scores)}, {len(names)}"
        )
    flagged, pooled = names == "RELABEL", names != "TRAINING"
    known = np.isfinite(scores)
    y, s = labels[known], scores[known]
    faulty = int(y.sum())
    kinds = {
        kind: _kind_report(
            np.array([f == kind for f in faults]), labels, scores, flagged, pooled, draws, seed
        )
        for kind in sorted({fault for fault in faults if fault is not None})
    }
    return {
        "n": len(labels),
        "n_faulty": int(labels.sum()),
        "n_unscored": int((~known).sum()),
        "auroc": _number(auroc(y, s)),
        "auroc_interval": _interval(y, s, draws, seed),
        "average_precision": _number(average_precision(y, s)),
        "precision_at": {
            "k": faulty,
            "value": _number(precision_at(y, s, faulty)) if faulty else None,
        },
        "flagged": pool_quality(labels, flagged),
        "pool": pool_quality(labels, pooled),
        "kinds": kinds,
    }


def _kind_report(
    is_kind: np.ndarray,
    labels: np.ndarray,
    scores: np.ndarray,
    flagged: np.ndarray,
    pooled: np.ndarray,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    """One fault kind against the clean samples."""
    use = (is_kind | ~labels) & np.isfinite(scores)
    return {
        "n": int(is_kind.sum()),
        "auroc": _number(auroc(is_kind[use], scores[use])),
        "auroc_interval": _interval(is_kind[use], scores[use], draws, seed),
        "flagged_recall": float(flagged[is_kind].mean()),
        "pool_recall": float(pooled[is_kind].mean()),
    }


def by_row(faults: Mapping[int, str], rows: Sequence[int]) -> list[str | None]:
    """Fault kinds in the order of ledger rows; None for a row that is clean or not in the data."""
    return [faults.get(int(row)) for row in rows]


def _interval(labels: np.ndarray, scores: np.ndarray, draws: int, seed: int) -> list[float] | None:
    low, high = bootstrap_interval(labels, scores, draws=draws, seed=seed)
    return None if np.isnan(low) else [low, high]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _cumulative(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Faulty samples and samples taken so far, at the end of each distinct score from above."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.flatnonzero(np.append(np.diff(ordered) != 0, True))
    return np.cumsum(labels[order])[ends], ends + 1


def _checked(labels: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores as arrays of one length, the scores finite."""
    labels, scores = np.asarray(labels, dtype=bool), np.asarray(scores, dtype=float)
    if labels.shape != scores.shape or labels.ndim != 1:
        raise DataError(
            f"labels, scores: need one of each a sample, got shapes {labels.shape}, {scores.shape}"
        )
    if not np.isfinite(scores).all():
        count = int((~np.isfinite(scores)).sum())
        raise DataError(f"scores: must be finite, {count} of {len(scores)} are not; leave them out")
    return labels, scores
