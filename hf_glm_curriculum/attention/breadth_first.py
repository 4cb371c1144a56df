"""The fewest steps between blocks, by plain breadth-first search."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from hf_glm_curriculum.attention.neighbourhoods import Neighbourhoods


class BreadthFirstEncoder:
    """Nearness = steps along the window and the edges, in both directions.

    For a query block only the edges of blocks before it count, and those of its own beginning.
    """

    def __init__(self) -> None:
        """Start with no edges."""
        self._linked: list[list[int]] = []  # block → later blocks whose edges lead to it
        self._followed = 0

    def _follow(self, around: Neighbourhoods) -> None:
        """Add the edges of the blocks that are new, seen from their earlier ends."""
        while len(self._linked) < len(around.queries):
            self._linked.append([])
        for block in range(self._followed, len(around)):
            for target in around.links(block):
                if target != block:
                    insort(self._linked[target], block)
        self._followed = len(around)

    def _levels(self, around: Neighbourhoods, query: int, enough: int) -> list[list[int]]:
        """Blocks before a query by the steps they are away, until there are enough."""
        seen = {query}
        levels: list[list[int]] = []
        front = sorted(self._beside(around, query, query, around.query_links(query)) - seen)
        while front and enough > 0:
            levels.append(front)
            seen.update(front)
            enough -= len(front)
            reached: set[int] = set()
            for block in front:
                reached |= self._beside(around, query, block, around.links(block))
            front = sorted(reached - seen)
        return levels

    def _beside(
        self, around: Neighbourhoods, query: int, block: int, links: tuple[int, ...]
    ) -> set[int]:
        """Blocks before the query that are one step from a block."""
        near = range(max(0, block - around.window), min(query, block + around.window + 1))
        later = self._linked[block]
        found = {*near, *links, *later[: bisect_left(later, query)]}
        found.discard(block)
        return found

    def nearest(self, around: Neighbourhoods, first: int, last: int, count: int) -> np.ndarray:
        """The blocks that are the fewest steps away; see `nearest_rows`."""
        self._follow(around)
        found = np.full((last - first, count), -1, np.int32)
        for row, query in enumerate(range(first, last)):
            levels = self._levels(around, query, count)
            order = [block for level in levels for block in reversed(level)][:count]
            if len(order) < min(count, query):  # not reached without a window
                missing = set(range(query)).difference(order)
                order += sorted(missing, reverse=True)[: count - len(order)]
            found[row, : len(order)] = order
        return found

    def similarities(self, around: Neighbourhoods, queries: slice) -> np.ndarray:
        """1 / (1 + steps); 0 for blocks that are not before the query."""
        self._follow(around)
        found = np.zeros((queries.stop - queries.start, len(around)))
        for row, query in enumerate(range(queries.start, queries.stop)):
            for steps, level in enumerate(self._levels(around, query, query), 1):
                found[row, level] = 1 / (1 + steps)
        return found

    def copy(self) -> BreadthFirstEncoder:
        """An independent copy."""
        other = BreadthFirstEncoder()
        other._linked = [list(blocks) for blocks in self._linked]
        other._followed = self._followed
        return other
