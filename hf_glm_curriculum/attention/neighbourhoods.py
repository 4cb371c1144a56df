"""Which blocks lie within a few steps of a block, by what was known when it ended or began.

Every block has two neighbourhoods. As a *key* it is known with its own tokens. As a *query* it is
known by the state at its first position alone, so that the choice of its keys cannot depend on
tokens that its first query must not see. Both hold block numbers: the window on either side (a
number is no token, so the window may look ahead) and the steps over edges, which lead back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from hf_glm_curriculum.attention.growing import GrowingArray


class SetRows:
    """Sets of block numbers in compressed rows: sorted members, and where each set ends."""

    def __init__(self) -> None:
        """Start with no sets."""
        self._members = GrowingArray(np.int32)
        self._ends = GrowingArray(np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, members: Iterable[int]) -> None:
        """Add one set."""
        self._members.extend(sorted(members))
        self._ends.extend([len(self._members)])

    def rows(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
        """Sets `first` to `last` − 1: members (int32) and bounds (int64 [last − first + 1])."""
        ends = self._ends.values
        begin = int(ends[first - 1]) if first else 0
        bounds = np.concatenate(([0], ends[first:last] - begin))
        return self._members.values[begin : begin + int(bounds[-1])], bounds

    def __iter__(self) -> Iterator[list[int]]:
        members, bounds = self.rows(0, len(self))
        for begin, end in pairwise(bounds):
            yield members[begin:end].tolist()

    def copy(self) -> SetRows:
        """An independent copy."""
        other = object.__new__(SetRows)
        other._members, other._ends = self._members.copy(), self._ends.copy()
        return other


class Neighbourhoods:
    """The neighbourhoods of the blocks so far, as keys and as queries.

    The first block is in nobody's neighbourhood but by the window: as a part of each it would say
    nothing of any, and would only favour blocks with few neighbours.
    """

    def __init__(self, window_blocks: int, hops: int) -> None:
        """Start with no blocks.

        Args:
            window_blocks: Blocks on either side that are one step away.
            hops: Steps a neighbourhood reaches.
        """
        self.window, self.hops = window_blocks, hops
        self.keys, self.queries = SetRows(), SetRows()
        self._links: list[tuple[int, ...]] = []  # block → blocks its edges lead to
        self._query_links: list[tuple[int, ...]] = []
        self._balls: list[tuple[frozenset[int], ...]] = []  # block → within 1 … hops − 1 steps

    def __len__(self) -> int:
        return len(self.keys)

    def links(self, block: int) -> tuple[int, ...]:
        """Blocks that the edges of a block (as a key) lead to, its window left out."""
        return self._links[block]

    def query_links(self, block: int) -> tuple[int, ...]:
        """Blocks that the edges of a block's first position lead to."""
        return self._query_links[block]

    def open(self, targets: Iterable[int]) -> None:
        """Add the next block as a query; what is known where it begins leads to `targets`."""
        led = self._led(targets)
        self._query_links.append(led)
        self.queries.append(self._within(len(self.keys), led, self.hops))

    def close(self, targets: Iterable[int]) -> None:
        """Add the next block as a key."""
        block, led = len(self.keys), self._led(targets)
        balls = [self._within(block, led, steps) for steps in range(1, self.hops + 1)]
        self.keys.append(balls[-1])
        self._balls.append(tuple(frozenset(ball) for ball in balls[:-1]))
        self._links.append(led)

    def _led(self, targets: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({target for target in targets if target > 0}))

    def _within(self, block: int, led: tuple[int, ...], steps: int) -> set[int]:
        """Blocks at most so many steps from a block whose edges lead to `led`."""
        reach = self.window * steps
        found = set(range(max(0, block - reach), block + reach + 1))
        if steps == 1:
            return found.union(led)
        for near in range(max(0, block - self.window), block):
            found |= self._balls[near][steps - 2]
        for target in led:
            if target < block - self.window:
                found |= self._balls[target][steps - 2]
        return found

    def copy(self) -> Neighbourhoods:
        """An independent copy."""
        other = object.__new__(Neighbourhoods)
        other.window, other.hops = self.window, self.hops
        other.keys, other.queries = self.keys.copy(), self.queries.copy()
        other._links, other._balls = list(self._links), list(self._balls)
        other._query_links = list(self._query_links)
        return other
