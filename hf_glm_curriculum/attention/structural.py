"""Blocks that edges tie to a query block, in order of importance."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hf_glm_curriculum.attention.outline import CODES

_LOOK_BACK = 64  # blocks of a section at most, for all its references to be offered
_AROUND = tuple(CODES[kind] for kind in ("heading", "clause", "definition", "turn_previous"))
_REFERENCES = (CODES["reference"], CODES["user"])


class BlockLinks:
    """The edges of blocks: those known when a block began, and those that it brought itself."""

    def __init__(self, window_blocks: int) -> None:
        """Start before the first block."""
        self._window = window_blocks
        self._own: list[tuple[tuple[int, int], ...]] = []  # block → (earlier block, kind)
        self._inner: list[tuple[tuple[int, int], ...]] = []
        self._now: list[tuple[int, int]] = []

    def open(self, own: Iterable[tuple[int, int]]) -> None:
        """Begin the next block with the edges of its first position."""
        self._own.append(tuple(own))
        self._now = []

    def add(self, block: int, kind: int) -> None:
        """Add an edge of the block under way."""
        self._now.append((block, kind))

    def close(self) -> list[int]:
        """End the block under way; returns the blocks its edges lead to."""
        self._inner.append(tuple(self._now))
        return [block for block, _ in (*self._own[-1], *self._now)]

    def ties(self, query: int) -> list[tuple[int, int]]:
        """(earlier block, kind) of what is tied to a query block, each block once, in order."""
        own = self._own[query]
        older = range(query - 1 - self._window, self._section_start(query) - 1, -1)
        recent = self.recent(query)
        order = [edge for edge in own if edge[1] == CODES["user"]]
        order += recent
        order += [edge for edge in own if edge[1] not in (CODES["user"], CODES["start"])]
        order += [(block + 1, kind) for block, kind in recent]
        order += [edge for block in older for edge in self._named(block)]
        order += [edge for edge in own if edge[1] == CODES["start"]]
        return self._seen_anyway_last(order, query)

    def recent(self, query: int) -> list[tuple[int, int]]:
        """References and user edges in the window before a query block, the latest first."""
        window = range(query - 1, max(-1, query - 1 - self._window), -1)
        return [edge for block in window for edge in self._named(block)]

    def _section_start(self, query: int) -> int:
        """Where the widest section or turn around a query block begins, of those not too long."""
        starts = [at for at, kind in self._own[query] if kind in _AROUND and at > 0]
        return min((at for at in starts if query - at <= _LOOK_BACK), default=query)

    def _named(self, block: int) -> list[tuple[int, int]]:
        """References and user edges that a finished block brought, the latest first."""
        return [edge for edge in reversed(self._inner[block]) if edge[1] in _REFERENCES]

    def _seen_anyway_last(self, order: list[tuple[int, int]], query: int) -> list[tuple[int, int]]:
        first: dict[int, int] = {}
        for block, kind in order:
            if block < query:
                first.setdefault(block, kind)
        near = {block for block in first if block == 0 or block >= query - self._window}
        far = [(block, kind) for block, kind in first.items() if block not in near]
        return far + [(block, kind) for block, kind in first.items() if block in near]

    def rows(self, first: int, last: int, limit: int) -> np.ndarray:
        """Blocks tied to query blocks: int32 [last − first, limit], filled up with −1."""
        found = np.full((last - first, limit), -1, np.int32)
        for row, query in enumerate(range(first, last)):
            blocks = [block for block, _ in self.ties(query)[:limit]]
            found[row, : len(blocks)] = blocks
        return found

    def copy(self) -> BlockLinks:
        """An independent copy."""
        other = BlockLinks(self._window)
        other._own, other._inner = list(self._own), list(self._inner)
        other._now = list(self._now)
        return other
