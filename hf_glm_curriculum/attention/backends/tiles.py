"""Tiles brought together into batches of equal shape, with the keys each of them needs.

Letters: R tiles in a batch, t queries a tile, C blocks selected, b keys a block, L = (C + 1)·b keys
gathered, K key-value heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.base import AttentionProblem

DENSE_TILES = 2
"""Fewest tiles at the start of a sequence that are worth a dense call of their own."""


@dataclass(frozen=True)
class KeyPart:
    """Some of the keys that the tiles of a batch see.

    Attributes:
        places: int64 [R, L] or [R, K, L], places in the list of all blocks' keys; those past the
            end of a sequence and those of hidden blocks are there too.
        hidden: bool [R or 1, t, L], keys a query does not see; None if it sees all.
        delta: int64 like ``places``, positions the keys move on by; None if they stay.
        causal: query i sees keys 0 … i.
    """

    places: Tensor
    hidden: Tensor | None = None
    delta: Tensor | None = None
    causal: bool = False

    def mask(self, group: int, dtype: torch.dtype) -> Tensor | None:
        """What is added to scores, [R or 1, 1, group·t, L]: 0, or -inf where hidden."""
        if self.hidden is None:
            return None
        mask = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
        mask.masked_fill_(self.hidden, -torch.inf)
        return mask.repeat(1, group, 1).unsqueeze(1)


@dataclass(frozen=True)
class TileBatch:
    """Some tiles and the keys they see, own block first.

    Attributes:
        number: of the batch within its call.
        queries: int64 [R, t], places in the list of all tiles' queries; those beyond a tile's
            length repeat its first.
        real: bool [R, t], which are no repeats; None if all.
        parts: the keys.
    """

    number: int
    queries: Tensor
    real: Tensor | None
    parts: tuple[KeyPart, ...]


def dense_runs(
    problem: AttentionProblem, device: torch.device, longest: int | None = None
) -> tuple[list[TileBatch], np.ndarray]:
    """Take out the tiles that see everything before them, from the start of a sequence on.

    Args:
        problem: the call.
        device: where the batches go.
        longest: queries that a run may hold; None for any number.

    Returns:
        One causal batch (R = 1) a sequence that has enough such tiles, and the other tiles.
    """
    layout, counts = problem.layout, problem.selection.counts
    dense = counts == layout.own_number
    if longest is not None:
        dense = dense & (layout.tile_position + layout.tile_length <= longest)
    left = np.ones(layout.tiles, dtype=bool)
    runs = []
    starts = np.flatnonzero(layout.tile_position == 0)
    for start in starts:
        same = (layout.tile_sequence[start:] == layout.tile_sequence[start]) & dense[start:]
        stop = start + (len(same) if same.all() else int(np.argmin(same)))
        if stop - start < DENSE_TILES:
            continue
        left[start:stop] = False
        places = np.flatnonzero(layout.query_slots[start:stop].reshape(-1) >= 0)
        places += start * layout.tile_width
        first = int(layout.first_block[layout.tile_sequence[start]]) * layout.block_size
        keys = torch.arange(first, first + len(places), device=device)[None]
        queries = torch.from_numpy(places)[None].to(device)
        runs.append(TileBatch(len(runs), queries, None, (KeyPart(keys, causal=True),)))
    return runs, np.flatnonzero(left)


def tile_batches(
    problem: AttentionProblem, tiles: np.ndarray, room_keys: int, device: torch.device
) -> Iterator[TileBatch]:
    """Batch tiles of like counts so that a batch gathers at most ``room_keys`` keys a head."""
    layout, counts = problem.layout, problem.selection.counts
    order = tiles[np.argsort(counts[tiles], kind="stable")]
    start = 0
    while start < len(order):
        stop = _batch_end(counts[order], start, room_keys // layout.block_size)
        yield _batch(problem, order[start:stop], device, number=layout.tiles + start)
        start = stop


def _batch_end(counts: np.ndarray, start: int, room: int) -> int:
    """Where a batch that begins at ``start`` ends: before its gathered blocks exceed ``room``.

    Tiles without selected blocks stay among themselves: a kernel may not be given rows in which
    every key is hidden.
    """
    taken = np.arange(1, len(counts) - start + 1)
    blocks = (counts[start:] + 1) * taken  # counts grow, so the last one is the batch's widest
    stop = start + max(1, int(np.searchsorted(blocks, room, side="right")))
    if counts[start] == 0:
        stop = min(stop, int(np.searchsorted(counts, 0, side="right")))
    return stop


def _batch(
    problem: AttentionProblem, chosen: np.ndarray, device: torch.device, number: int
) -> TileBatch:
    layout = problem.layout
    lengths = layout.tile_length[chosen]
    width = int(lengths.max())
    column = np.arange(width)[None]
    real = column < lengths[:, None]
    queries = chosen[:, None] * layout.tile_width + np.where(real, column, 0)
    parts = [_own_part(problem, chosen, width, device)]
    if problem.selection.counts[chosen].any():
        parts.append(_selected_part(problem, chosen, width, device))
    return TileBatch(
        number,
        torch.from_numpy(queries).to(device),
        None if real.all() else torch.from_numpy(real).to(device),
        tuple(parts),
    )


def _own_part(
    problem: AttentionProblem, chosen: np.ndarray, width: int, device: torch.device
) -> KeyPart:
    """The block each tile stands in, up to each query itself."""
    layout = problem.layout
    key = np.arange(layout.block_size)[None]
    places = torch.from_numpy(layout.own_block[chosen, None] * layout.block_size + key).to(device)
    offset = layout.tile_position[chosen] % layout.block_size
    if (offset == 0).all() and width == layout.block_size:
        return KeyPart(places, causal=True)
    if (offset == offset[0]).all():
        offset = offset[:1]
    query = np.arange(width)[None, :, None] + offset[:, None, None]
    return KeyPart(places, torch.from_numpy(key[None] > query).to(device))


def _selected_part(
    problem: AttentionProblem, chosen: np.ndarray, width: int, device: torch.device
) -> KeyPart:
    """The blocks before its own that each tile sees, entirely."""
    layout, counts = problem.layout, problem.selection.counts[chosen]
    most, size = int(counts.max()), layout.block_size
    index = torch.from_numpy(chosen).to(device)
    blocks = problem.selection.blocks[:, index, :most].transpose(0, 1)
    if blocks.shape[1] == 1:
        blocks = blocks[:, 0]
    own = torch.from_numpy(layout.own_block[chosen]).to(device)
    own = own.view(-1, *[1] * (blocks.dim() - 1))
    hidden = None
    if (counts < most).any():
        blocks = torch.where(blocks < 0, own, blocks)
        lacking = np.repeat(np.arange(most)[None] >= counts[:, None], size, axis=1)
        hidden = torch.from_numpy(lacking[:, None].repeat(width, axis=1)).to(device)
    delta = None if problem.shift is None else _delta(blocks, own, counts, size)
    places = (blocks * size).unsqueeze(-1) + torch.arange(size, device=device)
    return KeyPart(places.flatten(-2), hidden, delta)


def _delta(blocks: Tensor, own: Tensor, counts: np.ndarray, block_size: int) -> Tensor:
    """Positions to move each selected key on by, so that the blocks end in front of the own one."""
    count = torch.from_numpy(counts).to(blocks.device).view(own.shape)
    place = torch.arange(blocks.shape[-1], device=blocks.device)
    target = own - count + place
    delta = torch.where(place < count, target - blocks, 0) * block_size
    return delta.repeat_interleave(block_size, dim=-1)
