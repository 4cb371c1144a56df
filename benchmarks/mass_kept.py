"""The share of a dense model's attention that falls on the blocks a selection keeps."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from hf_glm_curriculum.attention.layout import BlockLayout
from hf_glm_curriculum.attention.plan import ForwardPlan
from hf_glm_curriculum.attention.selection import always_in, budget_counts, choose_numbers
from hf_glm_curriculum.attention.selector import Selector
from hf_glm_curriculum.attention.sequence_state import SequenceState

EVERY = 4
ROWS = 256


@dataclass(frozen=True)
class Layer:
    """Rotated queries [1, H, n, d] and keys [1, K, n, d] of one layer."""

    query: Tensor
    key: Tensor
    scaling: float


@torch.no_grad()
def watched_layers(model: Any, ids: Tensor) -> list[Layer]:
    """Queries and keys of every fourth layer of a dense forward pass."""
    found: list[Layer] = []

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any):
        if module.layer_idx % EVERY == 1:
            found.append(Layer(query, key, more["scaling"]))
        dense = torch.nn.functional.scaled_dot_product_attention
        output = dense(query, key, value, is_causal=True, enable_gqa=True, scale=more["scaling"])
        return output.transpose(1, 2), None

    AttentionInterface.register("watched", attend)
    AttentionMaskInterface.register("watched", sdpa_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation("watched")
    model.model(ids, use_cache=False)
    model.set_attn_implementation(before)
    return found


@torch.no_grad()
def kept_mass(layers: list[Layer], selector: Selector, oracle: bool = False) -> float:
    """Mean share of attention kept, over layers, heads and the queries that had to choose.

    Args:
        layers: of a dense pass.
        selector: chooses the blocks.
        oracle: take the blocks of the largest true mass instead, tile by tile.
    """
    shares = []
    for layer in layers:
        length = layer.query.shape[2]
        state = SequenceState(1)
        state.extend(torch.zeros(1, length, dtype=torch.int64), None, None)
        plan = ForwardPlan(selector, state, length, keep=False)
        layout, _ = plan.layout(length)
        masses = _block_masses(layer, layout.block_size)
        if oracle:
            numbers = _oracle(masses, layout, plan)
        else:
            problem = plan.problem(1, layer.query, layer.key, layer.scaling, 0.0)
            numbers = problem.selection.blocks
        shares.append(_kept(masses, numbers, layout))
    return statistics.mean(shares)


def _block_masses(layer: Layer, block: int) -> Tensor:
    """True attention mass on each block, float32 [K, g, n, M]."""
    kv_heads, length = layer.key.shape[1:3]
    query = layer.query[0].unflatten(0, (kv_heads, -1)).float()
    key = layer.key[0].float().transpose(1, 2)
    blocks = -(-length // block)
    found = torch.empty(*query.shape[:3], blocks)
    column = torch.arange(length)
    for start in range(0, length, ROWS):
        scores = query[:, :, start : start + ROWS] @ key.unsqueeze(1) * layer.scaling
        future = column > torch.arange(start, min(start + ROWS, length))[:, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        weights = torch.nn.functional.pad(weights, (0, blocks * block - length))
        found[:, :, start : start + ROWS] = weights.unflatten(-1, (blocks, block)).sum(-1)
    return found


def _oracle(masses: Tensor, layout: BlockLayout, plan: ForwardPlan) -> Tensor:
    config, before = plan.config, layout.own_number
    tile = torch.from_numpy(_tile_of(layout))
    by_tile = torch.zeros(masses.shape[0], layout.tiles, masses.shape[-1])
    by_tile.index_add_(1, tile, masses.sum(1))
    counts = budget_counts(config.blocks(config.top_k), before)
    preferred = torch.from_numpy(always_in(before, config))
    return choose_numbers(by_tile, preferred, counts, before)


def _tile_of(layout: BlockLayout) -> np.ndarray:
    return np.repeat(np.arange(layout.tiles), layout.tile_length)


def _kept(masses: Tensor, numbers: Tensor, layout: BlockLayout) -> float:
    """Mean mass on the chosen blocks and the own one, over tiles with more blocks than chosen."""
    blocks = masses.shape[-1]
    seen = torch.zeros(*numbers.shape[:2], blocks + 1)
    seen.scatter_(-1, torch.where(numbers < 0, blocks, numbers), 1.0)
    seen = seen[..., :blocks]
    own = torch.from_numpy(layout.own_number)[None, :, None].expand(seen.shape[0], -1, 1)
    seen.scatter_(-1, own, 1.0)
    tile = torch.from_numpy(_tile_of(layout))
    kept = (masses * seen[:, tile].unsqueeze(1)).sum(-1)
    chose = torch.from_numpy(layout.own_number) > (numbers[0] >= 0).sum(-1)
    return float(kept[:, :, chose[tile]].mean())
