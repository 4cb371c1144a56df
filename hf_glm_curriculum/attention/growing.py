"""Arrays that grow at their end in O(1) amortised a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike


class GrowingArray:
    """A numpy array of rows that can be appended to; its room doubles when it is full."""

    def __init__(self, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        """Start with no rows of shape `row_shape`."""
        self._room = np.empty((16, *row_shape), dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> np.ndarray:
        """The rows so far, a view that later appends do not change."""
        return self._room[: self._count]

    def extend(self, rows: np.ndarray | Sequence) -> None:
        """Append rows [count, *row_shape]."""
        end = self._count + len(rows)
        if end > len(self._room):
            room = np.empty(
                (max(end, 2 * len(self._room)), *self._room.shape[1:]), self._room.dtype
            )
            room[: self._count] = self.values
            self._room = room
        self._room[self._count : end] = rows
        self._count = end

    def copy(self) -> GrowingArray:
        """An independent copy."""
        other = object.__new__(GrowingArray)
        other._room, other._count = self._room[: max(16, self._count)].copy(), self._count
        return other
