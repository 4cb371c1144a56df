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
from hf_glm_curriculum.attention.backends.tile_work import Gathering, TileQueries
from hf_glm_curriculum.attention.backends.tiles import TileBatch, dense_runs, tile_batches

CPU_BYTES = 32 * 2**20
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
        tensors = Gathering((query, key, value), problem, seed)
        for batch in _batches(tensors):
            tiles = TileQueries(tensors, batch)
            tile_output, tile_total = tiles.attend()
            output.view(-1, size).index_copy_(0, tiles.places, tiles.real_rows(tile_output))
            total.view(-1).index_copy_(
                0, tiles.places, tiles.real_rows(tile_total[..., None])[:, 0]
            )
        ctx.save_for_backward(query, key, value, output, total)
        ctx.problem, ctx.seed = problem, seed
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total = ctx.saved_tensors
        size = query.shape[-1]
        tensors = Gathering((query, key, value), ctx.problem, ctx.seed)
        d_query = torch.zeros_like(output)
        d_key, d_value = (torch.zeros_like(x.flat, dtype=torch.float32) for x in tensors.rows[1:])
        results = (grad.contiguous().view(-1, size), output.view(-1, size), total.view(-1, 1))
        for batch in _batches(tensors):
            tiles = TileQueries(tensors, batch)
            grad_here, output_here, total_here = (tiles.take(x) for x in results)
            slopes = tiles.differentiate(grad_here, output_here, total_here, d_key, d_value)
            d_query.view(-1, size).index_copy_(0, tiles.places, tiles.real_rows(slopes))
        return d_query.transpose(1, 2), _like(d_key, key), _like(d_value, value), None, None


def _like(rows: Tensor, tensor: Tensor) -> Tensor:
    """Give flat rows of gradients the shape and dtype of their tensor."""
    steps = tuple(step * tensor.shape[-1] for step in HeadRows.of(tensor).strides)
    return rows.as_strided(tensor.shape, (*steps, 1)).to(tensor.dtype)


def _batches(tensors: Gathering) -> Iterator[TileBatch]:
    """Cut a call into batches of tiles that fit the memory meant for gathered keys."""
    problem, query, key = tensors.problem, tensors.query, tensors.rows[1].flat
    room = CPU_BYTES if query.device.type == "cpu" else DEVICE_BYTES
    room_keys = max(1, room // (2 * tensors.kv_heads * key.shape[-1] * key.element_size()))
    tiles = np.arange(problem.layout.tiles)
    if problem.dropout == 0.0:
        longest = None if kernels.fused_serves(query) else PLAIN_RUN
        runs, tiles = dense_runs(problem, query.device, longest)
        yield from runs
    yield from tile_batches(problem, tiles, room_keys, query.device)
