"""Where the blocks of a batch lie: sequences cut into blocks of keys and tiles of queries.

A sequence is one sample: a row without its padding, or one segment of a packed row. Its blocks are
counted from its own first token, so that padding, packing and batch mates change nothing. All
blocks of a batch form one list, all tiles another; what the backends compute is, for each tile,
attention over some of the blocks before its own, and causally over its own.

Letters: B rows, N key slots a row, Q queries a row, S sequences, M blocks, T tiles, b keys in a
block, t queries in the widest tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_glm_curriculum.errors import DataError


@dataclass(frozen=True)
class Sequence:
    """One sample of a batch: where its tokens lie.

    Attributes:
        row: of the batch.
        columns: int64, ascending: the key slot of each of its tokens within the row.
    """

    row: int
    columns: np.ndarray


@dataclass(frozen=True)
class BlockLayout:
    """The blocks and tiles of one attention call.

    Attributes:
        block_size: b.
        rows: B.
        keys: N, the slots a row of keys holds (more than are filled, in a static cache).
        queries: Q.
        lengths: int64 [S], tokens of each sequence.
        first_block: int64 [S + 1], where the blocks of a sequence begin in the list.
        key_slots: int64 [M, b], flat slot (row · N + column) of each key, -1 past a sequence's end.
        tile_sequence: int64 [T].
        tile_position: int64 [T], position of a tile's first query in its sequence.
        tile_length: int64 [T], its queries.
        query_slots: int64 [T, t], flat slot (row · Q + column) of each query, -1 beyond the length.
    """

    block_size: int
    rows: int
    keys: int
    queries: int
    lengths: np.ndarray
    first_block: np.ndarray
    key_slots: np.ndarray
    tile_sequence: np.ndarray
    tile_position: np.ndarray
    tile_length: np.ndarray
    query_slots: np.ndarray

    @property
    def tiles(self) -> int:
        """T."""
        return len(self.tile_sequence)

    @property
    def blocks(self) -> int:
        """M."""
        return len(self.key_slots)

    @property
    def tile_width(self) -> int:
        """Queries in the widest tile."""
        return self.query_slots.shape[1]

    @property
    def own_number(self) -> np.ndarray:
        """int64 [T]: place of each tile's own block in its sequence; so many full ones precede."""
        return self.tile_position // self.block_size

    @property
    def own_block(self) -> np.ndarray:
        """int64 [T]: each tile's own block in the list of blocks."""
        return self.first_block[self.tile_sequence] + self.own_number


def block_layout(
    sequences: list[Sequence],
    rows: int,
    seen: int,
    queries: int,
    block_size: int,
    tile: int,
    keys: int | None = None,
) -> BlockLayout:
    """Cut a batch into blocks and tiles.

    Args:
        sequences: those that queries belong to.
        rows: B.
        seen: slots of a row that hold tokens or padding so far.
        queries: Q; the queries are the last Q of the slots seen.
        block_size: b.
        tile: queries that share a selection; divides b.
        keys: slots the key tensor has (a static cache has more than are seen).

    Raises:
        DataError: if there are more queries than slots, or more slots seen than there are keys.
    """
    room = seen if keys is None else keys
    if queries > seen or seen > room:
        raise DataError(
            f"attention: {queries} queries need at least as many of the {seen} seen tokens, and "
            f"those at most the {room} slots of the keys; the cache is too short for the text, or "
            "the attention_mask does not belong to it."
        )
    lengths = np.array([len(one.columns) for one in sequences], dtype=np.int64)
    first_block = np.concatenate([[0], np.cumsum(-(-lengths // block_size))]).astype(np.int64)
    key_slots = np.full(int(first_block[-1]) * block_size, -1, dtype=np.int64)
    for one, first in zip(sequences, first_block, strict=False):
        start = int(first) * block_size
        key_slots[start : start + len(one.columns)] = one.row * room + one.columns
    return BlockLayout(
        block_size,
        rows,
        room,
        queries,
        lengths,
        first_block,
        key_slots.reshape(-1, block_size),
        *_tiles(sequences, seen, queries, tile),
    )


def _tiles(
    sequences: list[Sequence], seen: int, queries: int, tile: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return sequence, first position, length [T] and query slots [T, t] of the tiles."""
    parts = [_own_tiles(one, seen - queries, tile) for one in sequences]
    sequence = np.repeat(np.arange(len(parts)), [len(starts) for starts, _ in parts])
    none = np.zeros(0, dtype=np.int64)
    position = np.concatenate([none, *(starts for starts, _ in parts)])
    length = np.concatenate([none, *(ends - starts for starts, ends in parts)])
    column = np.arange(int(length.max(initial=1)))[None]
    slots = np.full((len(sequence), column.shape[1]), -1, dtype=np.int64)
    real = column < length[:, None]
    asked = [
        one.row * queries + one.columns[starts[0] :] - (seen - queries)
        for one, (starts, _) in zip(sequences, parts, strict=True)
        if len(starts)
    ]
    slots[real] = np.concatenate([none, *asked])
    return sequence, position, length, slots


def _own_tiles(one: Sequence, first_column: int, tile: int) -> tuple[np.ndarray, np.ndarray]:
    """First position and the one past the last of a sequence's tiles with queries in them."""
    first = int(np.searchsorted(one.columns, first_column))
    last = len(one.columns)
    if first == last:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    cells = np.arange(first // tile, (last - 1) // tile + 1, dtype=np.int64)
    return np.maximum(cells * tile, first), np.minimum((cells + 1) * tile, last)
