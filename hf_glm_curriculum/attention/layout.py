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
class Sequences:
    """Which sequence each key slot of a batch belongs to.

    Attributes:
        index: int64 [B, N], number of the slot's sequence, -1 where there is padding.
        position: int64 [B, N], place of the slot's token in its sequence, -1 on padding.
        count: S.
    """

    index: np.ndarray
    position: np.ndarray
    count: int

    @staticmethod
    def whole(rows: int, length: int) -> Sequences:
        """One sequence a row, without padding."""
        index = np.repeat(np.arange(rows, dtype=np.int64)[:, None], length, axis=1)
        position = np.repeat(np.arange(length, dtype=np.int64)[None], rows, axis=0)
        return Sequences(index, position, rows)


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

    @property
    def is_plain(self) -> bool:
        """Whether every row is one sequence that fills all its slots, and all are asked."""
        full = self.queries == self.keys and len(self.lengths) == self.rows
        return bool(full and (self.lengths == self.keys).all())


def block_layout(
    sequences: Sequences, queries: int, block_size: int, tile: int, keys: int | None = None
) -> BlockLayout:
    """Cut a batch into blocks and tiles.

    Args:
        sequences: of all key slots seen so far, those of the queries among them.
        queries: Q; the queries are the last Q of the slots seen.
        block_size: b.
        tile: queries that share a selection; divides b.
        keys: slots the key tensor has (a static cache has more than are seen).

    Raises:
        DataError: if there are more queries than slots, or more slots seen than there are keys.
    """
    rows, seen = sequences.index.shape
    room = seen if keys is None else keys
    if queries > seen or seen > room:
        raise DataError(
            f"attention: {queries} queries need at least as many of the {seen} seen tokens, and "
            f"those at most the {room} slots of the keys; the cache is too short for the text, or "
            "the attention_mask does not belong to it."
        )
    lengths = np.bincount(sequences.index[sequences.index >= 0], minlength=sequences.count)
    counts = -(-lengths // block_size)
    first_block = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tile_of = _tiles(sequences, queries, tile)
    return BlockLayout(
        block_size,
        rows,
        room,
        queries,
        lengths.astype(np.int64),
        first_block,
        _key_slots(sequences, first_block, block_size, room),
        *tile_of,
    )


def _key_slots(
    sequences: Sequences, first_block: np.ndarray, block_size: int, keys: int
) -> np.ndarray:
    """Return the flat slot of each key of each block, int64 [M, b]."""
    row, column = np.nonzero(sequences.index >= 0)
    sequence = sequences.index[row, column]
    position = sequences.position[row, column]
    slots = np.full(int(first_block[-1]) * block_size, -1, dtype=np.int64)
    slots[first_block[sequence] * block_size + position] = row * keys + column
    return slots.reshape(-1, block_size)


def _tiles(
    sequences: Sequences, queries: int, tile: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return sequence, first position, length [T] and query slots [T, t] of the tiles."""
    seen = sequences.index.shape[1]
    row, column = np.nonzero(sequences.index[:, seen - queries :] >= 0)
    sequence = sequences.index[row, seen - queries + column]
    position = sequences.position[row, seen - queries + column]
    order = np.lexsort((position, sequence))
    row, column = row[order], column[order]
    sequence, position = sequence[order], position[order]
    cell = position // tile
    new = np.ones(len(cell), dtype=bool)
    new[1:] = (cell[1:] != cell[:-1]) | (sequence[1:] != sequence[:-1])
    first = np.flatnonzero(new)
    length = np.diff(np.append(first, len(cell)))
    width = int(length.max()) if len(length) else 1
    slots = np.full((len(first), width), -1, dtype=np.int64)
    number = np.cumsum(new) - 1
    slots[number, np.arange(len(cell)) - first[number]] = row * queries + column
    return sequence[first], position[first], length.astype(np.int64), slots
