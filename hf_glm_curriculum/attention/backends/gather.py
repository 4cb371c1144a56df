"""Attention over gathered keys in pure torch: any device, forward and backward, bounded memory.

Tiles are taken a few at a time; the keys their selected blocks hold are gathered once per key-value
head, and all query heads that share it are served together. Only a tile's own block needs a mask.
Tiles at the start of a sequence that see all before them are one dense causal call.

The backward pass gathers again and recomputes the weights from the saved log-sum-exp, so that
nothing of size queries × keys is ever kept. Each query's output is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_glm_curriculum.attention.backends import kernels
from hf_glm_curriculum.attention.backends.base import AttentionProblem, Call
from hf_glm_curriculum.attention.backends.rows import HeadRows
from hf_glm_curriculum.attention.backends.tiles import TileBatch, dense_runs, tile_batches

CPU_BYTES = 6 * 2**20
"""Gathered keys and values held at a time on a CPU: about what its caches hold."""

DEVICE_BYTES = 256 * 2**20
"""Gathered keys and values held at a time on an accelerator."""

PLAIN_RUN = 4096
"""Queries in one dense causal call where no fused kernel bounds its memory."""


class GatherBackend:
    """Gathers each tile's keys; see the module."""

    name = "gather"

    def supports(self, call: Call) -> str | None:
        """None, or why the call cannot be served."""
        if call.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            return f"it computes in float32, bfloat16 or float16, not in {call.dtype}"
        if call.value_size != call.head_size:
            return f"values of {call.value_size} and keys of {call.head_size} numbers differ"
        return None

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem
    ) -> Tensor:
        """Attention output [B, Q, H, d]; see `Backend`."""
        seed = 0
        if problem.dropout > 0:
            seed = int(torch.randint(2**31 - 1, (1,)))
        return _Gathered.apply(query, key, value, problem, seed)


class _Gathered(torch.autograd.Function):
    """Forward and backward over batches of tiles."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem, seed: int
    ) -> Tensor:
        rows, heads, queries, size = query.shape
        output = query.new_zeros(rows, queries, heads, size)
        total = query.new_full((rows, queries, heads), -torch.inf, dtype=torch.float32)
        flat, flat_total = output.view(-1, size), total.view(-1)
        for work in _work(query, key, value, problem, seed):
            tile_output, tile_total = work.forward()
            flat.index_copy_(0, work.places, work.real_rows(tile_output))
            flat_total.index_copy_(0, work.places, work.real_rows(tile_total.unsqueeze(-1))[:, 0])
        ctx.save_for_backward(query, key, value, output, total)
        ctx.problem, ctx.seed = problem, seed
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total = ctx.saved_tensors
        grad = grad.contiguous()
        d_query = torch.zeros_like(output)
        sums = [torch.zeros(HeadRows.of(x).flat.shape, device=x.device) for x in (key, value)]
        size = query.shape[-1]
        outs = (grad.view(-1, size), output.view(-1, size), total.view(-1, 1))
        for work in _work(query, key, value, ctx.problem, ctx.seed):
            slopes = work.backward(*(work.take(x) for x in outs))
            d_query.view(-1, size).index_copy_(0, work.places, work.real_rows(slopes[0]))
            for total_slope, index, slope in zip(sums, work.key_index, slopes[1:], strict=True):
                total_slope.index_add_(0, index.reshape(-1), slope.reshape(-1, size).float())
        return (
            d_query.transpose(1, 2),
            *(_as_tensor(rows, like) for rows, like in zip(sums, (key, value), strict=True)),
            None,
            None,
        )


def _as_tensor(rows: Tensor, like: Tensor) -> Tensor:
    """Give flat rows of gradients the shape, strides and dtype of their tensor."""
    seen = HeadRows.of(like)
    size = like.shape[-1]
    steps = tuple(step * size for step in seen.strides)
    return rows.as_strided(like.shape, (*steps, 1)).to(like.dtype)


class _Work:
    """One batch of tiles with its gathered queries, keys and values."""

    def __init__(
        self,
        tensors: tuple[HeadRows, HeadRows, HeadRows],
        heads: tuple[int, int],
        batch: TileBatch,
        problem: AttentionProblem,
        seed: int,
    ) -> None:
        query, key, value = tensors
        self.problem, self.batch, self.seed = problem, batch, seed
        self.heads, self.kv_heads = heads
        group = self.heads // self.kv_heads
        tiles, width = batch.queries.shape
        shape = (tiles, self.kv_heads, group * width, -1)
        self.query_index = query.index(batch.queries, self.heads).view(tiles, self.heads, width)
        self.query = query.flat[self.query_index.reshape(-1)].view(shape)
        self.key_index = tuple(_key_index(x, batch.keys, self.kv_heads) for x in (key, value))
        self.key, self.value = (
            x.flat.index_select(0, index.reshape(-1)).view(*index.shape, -1)
            for x, index in zip((key, value), self.key_index, strict=True)
        )
        if problem.shift is not None and batch.delta is not None:
            self.key = problem.shift(self.key, batch.delta)
        self.mask = batch.mask(group, self.query.dtype)
        self.causal = group if batch.causal else 0
        self._place(group, width)

    def _place(self, group: int, width: int) -> None:
        """Find where real queries stand in the tiles, and where their output goes."""
        slots = self.batch.queries
        head = torch.arange(self.heads, device=slots.device)
        places = (slots.unsqueeze(1) * self.heads + head[None, :, None]).view(
            slots.shape[0], self.kv_heads, group * width
        )
        self.all_places = places
        if self.batch.real is None:
            self.real = None
            self.places = places.reshape(-1)
        else:
            real = self.batch.real.unsqueeze(1).expand(-1, self.heads, -1)
            self.real = real.reshape(-1).nonzero()[:, 0]
            self.places = places.reshape(-1)[self.real]

    def real_rows(self, tiles: Tensor) -> Tensor:
        """The rows of real queries among those of the tiles, [P, d]."""
        flat = tiles.reshape(-1, tiles.shape[-1])
        return flat if self.real is None else flat.index_select(0, self.real)

    def take(self, flat: Tensor) -> Tensor:
        """Rows of an output-shaped tensor for the tiles' queries; zeros for padding queries."""
        places = self.all_places
        taken = flat.index_select(0, places.reshape(-1)).view(*places.shape, -1)
        if self.real is None or flat.shape[-1] == 1:
            return taken.squeeze(-1) if flat.shape[-1] == 1 else taken
        keep = torch.zeros(places.numel(), dtype=torch.bool, device=flat.device)
        keep[self.real] = True
        return taken * keep.view(*places.shape, 1)

    def forward(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp of the tiles."""
        inputs = (self.query, self.key, self.value, self.mask, self.problem.scaling)
        if self.problem.dropout > 0:
            return kernels.dropout_attention(*inputs, self._keep())
        return kernels.tile_attention(*inputs, causal=self.causal)

    def backward(self, grad: Tensor, output: Tensor, total: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the tiles' queries, keys (as they lie in the cache) and values."""
        inputs = (grad, self.query, self.key, self.value, output, total, self.mask)
        scaling = self.problem.scaling
        if self.problem.dropout > 0:
            slopes = kernels.dropout_gradients(*inputs, scaling, self._keep())
        else:
            slopes = kernels.tile_gradients(*inputs, scaling, causal=self.causal)
        if self.problem.shift is None or self.batch.delta is None:
            return slopes
        return slopes[0], self.problem.shift(slopes[1], -self.batch.delta), slopes[2]

    def _keep(self) -> Tensor:
        """The dropout of this batch of tiles, the same in forward and backward."""
        shape = (*self.query.shape[:3], self.key.shape[2])
        generator = torch.Generator(self.query.device).manual_seed(self.seed + self.batch.number)
        draw = torch.rand(shape, generator=generator, device=self.query.device)
        return (draw >= self.problem.dropout).float() / (1.0 - self.problem.dropout)


def _key_index(rows: HeadRows, slots: Tensor, heads: int) -> Tensor:
    """Row numbers [R, K, L] of key slots [R, L] (all heads) or [R, K, L] (each its own)."""
    if slots.dim() == 2:
        return rows.index(slots, heads)
    parts = [rows.index(slots[:, head], 1, head) for head in range(heads)]
    return torch.cat(parts, dim=1)


def _work(
    query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem, seed: int
) -> Iterator[_Work]:
    """Cut a call into batches of tiles that fit the memory meant for gathered keys."""
    tensors = (HeadRows.of(query), HeadRows.of(key), HeadRows.of(value))
    heads = (query.shape[1], key.shape[1])
    room = CPU_BYTES if query.device.type == "cpu" else DEVICE_BYTES
    room_keys = max(1, room // (2 * heads[1] * key.shape[-1] * key.element_size()))
    tiles = np.arange(problem.layout.tiles)
    if problem.dropout == 0.0:
        longest = None if kernels.fused_serves(query, 0.0) else PLAIN_RUN
        runs, tiles = dense_runs(problem, query.device, longest)
        for batch in runs:
            yield _Work(tensors, heads, batch, problem, seed)
    for batch in tile_batches(problem, tiles, room_keys, query.device):
        yield _Work(tensors, heads, batch, problem, seed)
