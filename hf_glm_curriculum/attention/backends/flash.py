"""FlashAttention over selected keys: gathered as sequences of their own, or read from pages.

Each tile becomes one variable-length sequence: its queries against its selected blocks followed by
its own block up to the last query. FlashAttention aligns causality at the bottom right, so every
query sees the selected blocks and its own block up to itself: exact, without a mask. Where heads
choose for themselves, each key-value head's tiles are sequences of one key-value head.

In inference with blocks of 256 keys (FlashAttention 2's page size) that lie page by page in the
cache, nothing is gathered: the block table names the pages.

Letters: T tiles, K key-value heads, H query heads, L gathered keys, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_glm_curriculum.attention.backends.base import AttentionProblem, Call
from hf_glm_curriculum.optional import available

PAGE = 256
"""Keys a page of FlashAttention 2's cache must hold a multiple of."""

GATHERED_KEYS = 2**20
"""Keys gathered at a time."""


class FlashBackend:
    """FlashAttention 2 (or 4, whose function has the same arguments) through its varlen form."""

    name = "flash"

    def __init__(self, attend: Callable[..., Any] | None = None) -> None:
        """Take the varlen function; the installed library's if None."""
        self._attend = attend

    def supports(self, call: Call) -> str | None:
        """None, or why the call cannot be served."""
        if self._attend is None:
            if not available("flash_attn"):
                return 'flash-attn is not installed (pip install "hf-glm-curriculum[flash]")'
            if call.device.type != "cuda":
                return f"FlashAttention runs on CUDA devices, not on {call.device.type}"
            if call.dtype not in (torch.float16, torch.bfloat16):
                return f"FlashAttention computes in float16 or bfloat16, not in {call.dtype}"
        if call.head_size % 8 or call.head_size > 256:
            return f"FlashAttention wants head sizes in steps of 8 up to 256, not {call.head_size}"
        return "its dropout could not be repeated in the backward pass" if call.dropout else None

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem
    ) -> Tensor:
        """Attention output [B, Q, H, d]; see `Backend`."""
        attend = self._attend or _library()
        wants_gradients = torch.is_grad_enabled() and query.requires_grad
        if not wants_gradients and pages_serve(key, problem):
            return _paged(attend, query, key, value, problem)
        rows, heads, queries, size = query.shape
        output = query.new_zeros(rows * queries, heads, size)
        for tiles in _chunks(problem):
            part = varlen_input(problem, tiles)
            found = (
                checkpoint(_gathered, attend, query, key, value, problem, part, use_reentrant=False)
                if wants_gradients
                else _gathered(attend, query, key, value, problem, part)
            )
            output = output.index_copy(0, part.query_slots.to(query.device), found)
        return output.view(rows, queries, heads, size)


def _library() -> Callable[..., Any]:
    from importlib import import_module

    return import_module("flash_attn").flash_attn_varlen_func


@dataclass(frozen=True)
class VarlenInput:
    """Some tiles as variable-length sequences.

    Attributes:
        query_slots: int64 [total queries], flat slots, tile after tile.
        key_slots: int64 [G, total keys], flat slots by selection group, selected blocks first.
        delta: int64 [G, total keys], positions the keys move on by in compact mode.
        query_ends: int32 [T + 1], cumulative queries.
        key_ends: int32 [T + 1], cumulative keys.
    """

    query_slots: Tensor
    key_slots: Tensor
    delta: Tensor
    query_ends: Tensor
    key_ends: Tensor


def _chunks(problem: AttentionProblem) -> Iterator[np.ndarray]:
    """Tiles in runs that gather at most `GATHERED_KEYS` keys."""
    keys = (problem.selection.counts + 1) * problem.layout.block_size
    run = (np.cumsum(keys) - 1) // GATHERED_KEYS
    for number in np.unique(run):
        yield np.flatnonzero(run == number)


def varlen_input(problem: AttentionProblem, tiles: np.ndarray) -> VarlenInput:
    """Lay tiles out as sequences."""
    layout, selection = problem.layout, problem.selection
    size = layout.block_size
    counts, own = selection.counts[tiles], layout.own_block[tiles]
    inside = layout.tile_position[tiles] % size + layout.tile_length[tiles]
    ends = np.concatenate([[0], np.cumsum(counts * size + inside)])
    own_tile, own_key = np.nonzero(np.arange(size) < inside[:, None])
    own_place = ends[own_tile + 1] - inside[own_tile] + own_key
    tile, rank = np.nonzero(np.arange(int(counts.max(initial=0))) < counts[:, None])
    place = (ends[tile] + rank * size)[:, None] + np.arange(size)
    chosen = selection.blocks[:, torch.from_numpy(tiles).to(selection.blocks.device)].cpu().numpy()
    keys = np.empty((selection.groups, int(ends[-1])), dtype=np.int64)
    delta = np.zeros_like(keys)
    keys[:, own_place] = layout.key_slots[own[own_tile], own_key]
    blocks = chosen[:, tile, rank]
    keys[:, place] = layout.key_slots[blocks]
    delta[:, place] = ((own - counts)[tile] + rank - blocks)[..., None] * size
    slots = layout.query_slots[tiles]
    return VarlenInput(
        torch.from_numpy(slots[slots >= 0]),
        torch.from_numpy(keys),
        torch.from_numpy(delta),
        _ends(layout.tile_length[tiles]),
        _ends(counts * size + inside),
    )


def _ends(lengths: np.ndarray) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _gathered(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    problem: AttentionProblem,
    part: VarlenInput,
) -> Tensor:
    """Output [total queries, H, d] of some tiles over gathered keys."""
    device = query.device
    asked = _rows(query, part.query_slots.to(device))
    groups = part.key_slots.shape[0]
    keys, values = [], []
    for group in range(groups):
        heads = slice(None) if groups == 1 else slice(group, group + 1)
        slots = part.key_slots[group].to(device)
        picked = _rows(key[:, heads], slots)
        if problem.shift is not None:
            moved = problem.shift(picked.transpose(0, 1)[None], part.delta[group, None].to(device))
            picked = moved[0].transpose(0, 1)
        keys.append(picked)
        values.append(_rows(value[:, heads], slots))
    query_ends, key_ends = part.query_ends.to(device), part.key_ends.to(device)
    longest = (int(part.query_ends.diff().max()), int(part.key_ends.diff().max()))
    options = {"softmax_scale": problem.scaling, "causal": True}
    if groups == 1:
        return attend(asked, keys[0], values[0], query_ends, key_ends, *longest, **options)
    shared = asked.unflatten(1, (groups, -1))
    found = attend(
        shared.transpose(0, 1).flatten(0, 1),
        torch.cat(keys),
        torch.cat(values),
        _repeated(query_ends, groups),
        _repeated(key_ends, groups),
        *longest,
        **options,
    )
    return found.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)


def _repeated(ends: Tensor, groups: int) -> Tensor:
    """Cumulative lengths of the same sequences several times over."""
    lengths = ends.diff().repeat(groups)
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def _rows(tensor: Tensor, slots: Tensor) -> Tensor:
    """Flat slots of a tensor [B, H, N, d]: [slots, H, d]."""
    return tensor[slots // tensor.shape[2], :, slots % tensor.shape[2]]


def pages_serve(key: Tensor, problem: AttentionProblem) -> bool:
    """Whether blocks lie in the cache page by page, and every head reads the same ones."""
    layout = problem.layout
    if layout.block_size % PAGE or layout.keys % layout.block_size or problem.shift is not None:
        return False
    starts = layout.key_slots[:, 0]
    full = layout.key_slots[:, -1] >= 0
    in_order = (layout.key_slots[full] == starts[full, None] + np.arange(layout.block_size)).all()
    return problem.selection.groups == 1 and bool(
        (starts % layout.block_size == 0).all() & in_order
    )


def _paged(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    problem: AttentionProblem,
) -> Tensor:
    """Output [B, Q, H, d] over pages of each row's cache."""
    layout, selection = problem.layout, problem.selection
    rows, heads, queries, size = query.shape
    output = query.new_zeros(rows, queries, heads, size)
    row_of = layout.query_slots[:, 0] // queries
    for row in range(rows):
        tiles = np.flatnonzero(row_of == row)
        if not len(tiles):
            continue
        slots = layout.query_slots[tiles]
        columns = torch.from_numpy(slots[slots >= 0] % queries).to(query.device)
        table, lengths = _page_table(layout, selection, tiles)
        pages = [_pages(x[row], layout.block_size) for x in (key, value)]
        found = attend(
            query[row].transpose(0, 1)[columns],
            *pages,
            _ends(layout.tile_length[tiles]).to(query.device),
            _ends(lengths).to(query.device),
            int(layout.tile_length[tiles].max()),
            int(lengths.max()),
            softmax_scale=problem.scaling,
            causal=True,
            block_table=table.to(query.device),
        )
        output[row, columns] = found
    return output


def _page_table(layout: Any, selection: Any, tiles: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Pages of each tile within its row, int32 [T, C + 1], and the keys in them [T]."""
    counts = selection.counts[tiles]
    inside = layout.tile_position[tiles] % layout.block_size + layout.tile_length[tiles]
    most = int(counts.max(initial=0))
    chosen = selection.blocks[0].cpu().numpy()[tiles, :most]
    page = (layout.key_slots[:, 0] % layout.keys // layout.block_size).astype(np.int32)
    table = np.zeros((len(tiles), most + 1), dtype=np.int32)
    table[:, :most] = np.where(np.arange(most) < counts[:, None], page[chosen], 0)
    table[np.arange(len(tiles)), counts] = page[layout.own_block[tiles]]
    return torch.from_numpy(table), counts * layout.block_size + inside


def _pages(tensor: Tensor, size: int) -> Tensor:
    """One row's cache [K, N, d] as pages [N / size, size, K, d], without a copy."""
    return tensor.transpose(0, 1).unflatten(0, (-1, size))
