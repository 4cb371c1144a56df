"""The nearest blocks before each block, without a matrix of all pairs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

SCORE_BITS = 40
"""Scores are integers below 2 to this power; a larger one is nearer."""

_BLOCK_BITS = 22
_BLOCK_MASK = (1 << _BLOCK_BITS) - 1
_PAIRS = 1 << 19  # pairs scored at once

Scores = Callable[[int, int, int], np.ndarray]
"""(first, last, keys) → integers [last − first, keys], for query blocks against key blocks."""


def nearest_rows(scores: Scores, first: int, last: int, count: int) -> np.ndarray:
    """The `count` best-scored blocks before each query block; ties go to the most recent.

    Args:
        scores: Computes a piece of the score matrix.
        first: The first query block.
        last: One past the last query block.
        count: Blocks per row.

    Returns:
        int32 [last − first, count], best first, filled up with −1.
    """
    found = np.full((last - first, count), -1, np.int32)
    begin = first
    while begin < last:
        rows = max(1, min(256, _PAIRS // max(1, last - 1)))
        end = min(last, begin + rows)
        keys = end - 1
        if keys > 0 and count > 0:
            best = _best(scores(begin, end, keys), begin, count)
            found[begin - first : end - first, : best.shape[1]] = best
        begin = end
    return found


def _best(scores: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Best keys of each row, of those before the row's own block."""
    rows, keys = scores.shape
    # Score and block share one integer: one partition orders by both, and no two are equal.
    ordered = (scores.astype(np.int64) << _BLOCK_BITS) | np.arange(keys)
    late = np.arange(keys) >= np.arange(begin, begin + rows)[:, None]
    ordered[late] = -1
    if keys > count:
        ordered = np.partition(ordered, keys - count, axis=1)[:, keys - count :]
    ordered = np.sort(ordered, axis=1)[:, ::-1]
    return np.where(ordered < 0, -1, ordered & _BLOCK_MASK).astype(np.int32)
