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
class TileBatch:
    """Some tiles and the keys they see.

    Attributes:
        number: of the batch within its call.
        queries: int64 [R, t], flat query slots; those beyond a tile's length repeat its first.
        real: bool [R, t], which are no repeats; None if all.
        keys: int64 [R, L] or [R, K, L], flat key slots; hidden ones stand at any real slot.
        hidden: bool [R or 1, t, L], keys a query does not see; None with ``causal``.
        causal: query i sees keys 0 … i.
        delta: int64 [R, L], positions the keys move on by (compact positions).
    """

    number: int
    queries: Tensor
    real: Tensor | None
    keys: Tensor
    hidden: Tensor | None
    causal: bool = False
    delta: Tensor | None = None

    def mask(self, group: int, dtype: torch.dtype) -> Tensor | None:
        """What is added to scores, [R or 1, 1, group·t, L]: 0, or -inf where hidden."""
        if self.hidden is None:
            return None
        mask = torch.zeros(self.hidden.shape, dtype=dtype, device=self.hidden.device)
        mask.masked_fill_(self.hidden, -torch.inf)
        return mask.repeat(1, group, 1).unsqueeze(1)


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
        slots = layout.query_slots[start:stop]
        queries = torch.from_numpy(slots[slots >= 0])[None].to(device)
        first = layout.first_block[layout.tile_sequence[start]]
        keys = layout.key_slots[first:].reshape(-1)[: queries.shape[1]]
        runs.append(
            TileBatch(len(runs), queries, None, torch.from_numpy(keys)[None].to(device), None, True)
        )
    return runs, np.flatnonzero(left)


def tile_batches(
    problem: AttentionProblem, tiles: np.ndarray, room_keys: int, device: torch.device
) -> Iterator[TileBatch]:
    """Batch tiles of like counts so that a batch gathers at most ``room_keys`` keys a head."""
    layout, counts = problem.layout, problem.selection.counts
    order = tiles[np.argsort(counts[tiles], kind="stable")]
    slots = torch.from_numpy(layout.key_slots).to(device)
    start = 0
    while start < len(order):
        stop = _batch_end(counts[order], start, room_keys // layout.block_size)
        yield _batch(problem, order[start:stop], slots, device, number=10_000 + start)
        start = stop


def _batch_end(counts: np.ndarray, start: int, room: int) -> int:
    """Where a batch that begins at ``start`` ends: before its gathered blocks exceed ``room``."""
    taken = np.arange(1, len(counts) - start + 1)
    blocks = (counts[start:] + 1) * taken  # counts grow, so the last one is the batch's widest
    return start + max(1, int(np.searchsorted(blocks, room, side="right")))


def _batch(
    problem: AttentionProblem,
    chosen: np.ndarray,
    slots: Tensor,
    device: torch.device,
    number: int,
) -> TileBatch:
    layout = problem.layout
    width = int(layout.tile_length[chosen].max())
    queries = layout.query_slots[chosen][:, :width]
    real = queries >= 0
    queries = np.where(real, queries, queries[:, :1])
    blocks, lacking = _blocks_of(problem, chosen, device)
    own = blocks[..., -1]
    keys = slots[blocks].flatten(-2)
    anchor = slots[own][..., :1]
    hidden = _hidden(problem, chosen, width, lacking, device)
    delta = None if problem.shift is None else _delta(problem, chosen, blocks)
    return TileBatch(
        number,
        torch.from_numpy(queries).to(device),
        None if real.all() else torch.from_numpy(real).to(device),
        torch.where(keys < 0, anchor, keys),
        hidden,
        delta=delta,
    )


def _blocks_of(
    problem: AttentionProblem, chosen: np.ndarray, device: torch.device
) -> tuple[Tensor, np.ndarray]:
    """Blocks [R, C + 1] or [R, K, C + 1] of tiles, own last; and how many of C each lacks [R]."""
    counts = problem.selection.counts[chosen]
    most = int(counts.max(initial=0))
    index = torch.from_numpy(chosen).to(device)
    blocks = problem.selection.blocks[:, index, :most].transpose(0, 1)
    own = torch.from_numpy(problem.layout.own_block[chosen]).to(device)
    own = own[:, None, None].expand(-1, blocks.shape[1], 1)
    blocks = torch.cat([torch.where(blocks < 0, own, blocks), own], dim=-1)
    return (blocks[:, 0] if blocks.shape[1] == 1 else blocks), most - counts


def _hidden(
    problem: AttentionProblem,
    chosen: np.ndarray,
    width: int,
    lacking: np.ndarray,
    device: torch.device,
) -> Tensor:
    """Keys a query does not see: what fills a tile up, and what comes after it in its own block."""
    layout = problem.layout
    size = layout.block_size
    most = int(problem.selection.counts[chosen].max(initial=0))
    offset = layout.tile_position[chosen] % size
    if not lacking.any() and (offset == offset[0]).all():
        lacking, offset = lacking[:1], offset[:1]
    query = np.arange(width)[None, :, None] + offset[:, None, None]
    own = np.arange(size)[None, None] > query
    block = np.arange(most)[None] >= most - lacking[:, None]
    before = np.repeat(block, size, axis=1)[:, None].repeat(width, axis=1)
    return torch.from_numpy(np.concatenate([before, own], axis=2)).to(device)


def _delta(problem: AttentionProblem, chosen: np.ndarray, blocks: Tensor) -> Tensor:
    """Positions to move each gathered key on by, so that the blocks end at the tile's own.

    The i-th block before the own one moves to i blocks in front of it. Selections that differ by
    head move by head: [R, K, L] then, else [R, L].
    """
    size = problem.layout.block_size
    device = blocks.device
    counts = torch.from_numpy(problem.selection.counts[chosen]).to(device)
    own = blocks[..., -1:]
    place = torch.arange(blocks.shape[-1], device=device)
    shape = [-1] + [1] * (blocks.dim() - 1)
    target = own - counts.view(shape) + place
    delta = torch.where(place < counts.view(shape), target - blocks, 0) * size
    return delta.repeat_interleave(size, dim=-1)
