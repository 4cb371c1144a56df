"""FlexAttention over a block mask that is built from indices, never from queries × keys.

Keys are laid out block by block and queries tile by tile, so that padding and packing leave no
trace. A tile's own block is a partial block under a mask; the selected ones are full. The mask
function says the same as the indices do, because uncompiled FlexAttention reads it alone.

Letters: T tiles, w queries a tile is padded to, M blocks, b keys a block, H heads, K key-value
heads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.base import AttentionProblem, Call
from hf_glm_curriculum.attention.layout import BlockLayout
from hf_glm_curriculum.attention.selection import BlockSelection

CPU_TOKENS = 4096
"""Queries and keys up to which FlexAttention is used on a CPU, where it holds all scores."""

BUCKET = 16
"""Tiles and blocks are padded to a multiple of this, so that few lengths are compiled for."""


class FlexBackend:
    """FlexAttention; compiled on accelerators."""

    name = "flex"

    def supports(self, call: Call) -> str | None:
        """None, or why the call cannot be served."""
        if call.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"it computes in float32, bfloat16 or float16, not in {call.dtype}"
        if call.device.type == "cpu" and call.gradients:
            return "FlexAttention has no backward pass on a CPU"
        if call.device.type == "cpu" and call.tokens > CPU_TOKENS:
            return f"FlexAttention holds all scores of more than {CPU_TOKENS} tokens on a CPU"
        if call.compact:
            return "compact positions move a key differently for each query block"
        return "FlexAttention has no dropout" if call.dropout else None

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem
    ) -> Tensor:
        """Attention output [B, Q, H, d]; see `Backend`."""
        layout = problem.layout
        tiles, blocks = _bucket(layout.tiles), _bucket(layout.blocks)
        mask = block_mask(layout, problem.selection, query.shape[1], tiles, blocks, query.device)
        attend: Any = _attention(query.device.type)
        found = attend(
            _tiled(query, layout, tiles),
            _blocked(key, layout, blocks),
            _blocked(value, layout, blocks),
            block_mask=mask,
            scale=problem.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return _untiled(found, layout, query)


def _bucket(count: int) -> int:
    return -(-count // BUCKET) * BUCKET


@cache
def _attention(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled where there is a kernel to compile it to."""
    from torch.nn.attention.flex_attention import flex_attention

    if device != "cpu":
        return torch.compile(flex_attention, dynamic=False)

    def uncompiled(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():  # that it holds all scores is why CPU_TOKENS is there
            warnings.filterwarnings("ignore", message="flex_attention called without")
            return flex_attention(*args, **kwargs)

    return uncompiled


def block_mask(
    layout: BlockLayout,
    selection: BlockSelection,
    heads: int,
    tiles: int,
    blocks: int,
    device: torch.device,
) -> Any:
    """The block mask of a selection.

    Args:
        layout: T tiles and M blocks.
        selection: the blocks each tile sees besides its own.
        heads: H.
        tiles: T padded; the padding sees block 0.
        blocks: M padded.
        device: of the mask.

    Returns:
        A ``BlockMask`` over [1, 1 or H, tiles · w, blocks · b].
    """
    from torch.nn.attention.flex_attention import BlockMask

    chosen = selection.blocks.to(device)
    groups, real, most = chosen.shape
    own = torch.zeros(tiles, dtype=torch.int32, device=device)
    own[:real] = torch.from_numpy(layout.own_block).to(device)
    offset = torch.zeros(tiles, dtype=torch.int32, device=device)
    offset[:real] = torch.from_numpy(layout.tile_position % layout.block_size).to(device)
    full = torch.zeros(groups, tiles, blocks, dtype=torch.int32, device=device)
    full[:, :real, :most] = chosen.clamp(min=0)
    counts = torch.zeros(groups, tiles, dtype=torch.int32, device=device)
    counts[:, :real] = (chosen >= 0).sum(-1)
    seen = torch.zeros(groups, tiles, blocks + 1, dtype=torch.bool, device=device)
    seen[:, :real].scatter_(-1, torch.where(chosen < 0, blocks, chosen), True)
    partial = torch.zeros(1, tiles, blocks, dtype=torch.int32, device=device)
    partial[..., 0] = own
    wide = groups if groups == 1 else heads
    full, counts = (x.repeat_interleave(wide // groups, 0)[None] for x in (full, counts))
    width, size = layout.tile_width, layout.block_size
    return BlockMask.from_kv_blocks(
        torch.ones(1, wide, tiles, dtype=torch.int32, device=device),
        partial.expand(wide, -1, -1)[None].contiguous(),
        counts,
        full,
        BLOCK_SIZE=(width, size),
        mask_mod=_mask_function(seen, own, offset, heads // groups, width, size),
        seq_lengths=(tiles * width, blocks * size),
        compute_q_blocks=device.type != "cpu",
    )


def _mask_function(
    seen: Tensor, own: Tensor, offset: Tensor, per_group: int, width: int, size: int
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """Which key a query sees, by place in tiles and blocks."""

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        tile, block = query // width, key // size
        inside = (own[tile] == block) & (key % size <= offset[tile] + query % width)
        return seen[head // per_group, tile, block] | inside

    return mask


def _blocked(tensor: Tensor, layout: BlockLayout, blocks: int) -> Tensor:
    """Keys or values [B, K, N, d] as [1, K, blocks · b, d]."""
    slots = layout.key_slots
    return _taken(tensor, torch.from_numpy(slots).reshape(-1), blocks * slots.shape[1])


def _tiled(tensor: Tensor, layout: BlockLayout, tiles: int) -> Tensor:
    """Queries [B, H, Q, d] as [1, H, tiles · w, d]."""
    slots = layout.query_slots
    return _taken(tensor, torch.from_numpy(slots).reshape(-1), tiles * slots.shape[1])


def _taken(tensor: Tensor, slots: Tensor, length: int) -> Tensor:
    """Flat slots of a tensor [B, H, N, d] in order, padded with slot 0: [1, H, length, d]."""
    slots = torch.nn.functional.pad(slots.clamp(min=0), (0, length - len(slots)))
    slots = slots.to(tensor.device)
    return tensor[slots // tensor.shape[2], :, slots % tensor.shape[2]].transpose(0, 1)[None]


def _untiled(found: Tensor, layout: BlockLayout, query: Tensor) -> Tensor:
    """Output [1, H, tiles · w, d] back as [B, Q, H, d]; zeros where no query was asked."""
    slots = torch.from_numpy(layout.query_slots).reshape(-1).to(found.device)
    real = (slots >= 0).nonzero()[:, 0]
    rows, heads, queries, size = query.shape
    output = found.new_zeros(rows * queries, heads, size)
    output = output.index_copy(0, slots[real], found[0].transpose(0, 1)[real])
    return output.view(rows, queries, heads, size)
