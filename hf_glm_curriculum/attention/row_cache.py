"""Rows that are computed once: a graph that grows never changes those it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class RowCache:
    """Rows of one width at a time, by number."""

    def __init__(self) -> None:
        """Start empty."""
        self._width = -1
        self._table = np.empty((0, 0), np.int32)
        self._filled = np.empty(0, bool)

    def rows(
        self, first: int, last: int, width: int, compute: Callable[[int, int], np.ndarray]
    ) -> np.ndarray:
        """Rows `first` to `last` − 1, int32 [last − first, width]; a copy.

        Args:
            first: The first row.
            last: One past the last row.
            width: Columns; another width than before empties the cache.
            compute: (first, last) → rows, for those that are missing.
        """
        if width != self._width:
            self._width = width
            self._table, self._filled = np.empty((0, width), np.int32), np.empty(0, bool)
        if last > len(self._filled):
            self._grow(max(last, 2 * len(self._filled)))
        missing = np.flatnonzero(~self._filled[first:last])
        if len(missing):
            begin, end = first + int(missing[0]), first + int(missing[-1]) + 1
            self._table[begin:end] = compute(begin, end)
            self._filled[begin:end] = True
        return self._table[first:last].copy()

    def _grow(self, rows: int) -> None:
        table, filled = np.empty((rows, self._width), np.int32), np.zeros(rows, bool)
        table[: len(self._table)], filled[: len(self._filled)] = self._table, self._filled
        self._table, self._filled = table, filled

    def copy(self) -> RowCache:
        """An independent copy."""
        other = RowCache()
        other._width = self._width
        other._table, other._filled = self._table.copy(), self._filled.copy()
        return other
