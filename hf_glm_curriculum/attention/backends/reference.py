"""Dense attention under the mask that blocks and tiles amount to: what the others are tested by.

Straightforward and slow: scores of all queries and all keys are held at once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.base import AttentionProblem, Call


class ReferenceBackend:
    """Plain masked softmax; float64 too."""

    name = "reference"

    def supports(self, call: Call) -> str | None:
        """None, or why the call cannot be served."""
        return None if call.dtype.is_floating_point else f"it does not compute in {call.dtype}"

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem
    ) -> Tensor:
        """Attention output [B, Q, H, d]; see `Backend`."""
        group = query.shape[1] // key.shape[1]
        visible = visible_keys(problem).to(query.device)
        heads = visible.shape[1]
        visible = visible.repeat_interleave(query.shape[1] // heads, 1)
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        if problem.shift is None:
            scores = query @ key.transpose(-1, -2)
        else:
            scores = _shifted_scores(query, key, problem)
        scores = (scores.to(_exact(query.dtype)) * problem.scaling).masked_fill(
            ~visible, -torch.inf
        )
        weights = torch.softmax(scores, dim=-1).masked_fill(~visible.any(-1, keepdim=True), 0.0)
        weights = torch.nn.functional.dropout(weights, problem.dropout)
        return (weights.to(value.dtype) @ value).transpose(1, 2)


def visible_keys(problem: AttentionProblem) -> Tensor:
    """The mask as bool [B, G, Q, N]: which key slots each query sees."""
    layout, selection = problem.layout, problem.selection
    blocks = selection.blocks.cpu()
    seen = torch.zeros(selection.groups, layout.tiles + 1, layout.blocks + 1, dtype=torch.bool)
    seen[:, :-1].scatter_(-1, torch.where(blocks < 0, layout.blocks, blocks), True)
    seen[..., -1] = False
    tile, asked_at = _places(layout.query_slots, layout.rows * layout.queries, layout.tiles)
    block, key_at = _places(layout.key_slots, layout.rows * layout.keys, layout.blocks)
    own = torch.from_numpy(np.append(layout.own_block, -1))[tile]
    offset = torch.from_numpy(np.append(layout.tile_position % layout.block_size, 0))[tile]
    tile, asked_at = (x.view(layout.rows, -1) for x in (tile, asked_at + offset))
    own = own.view(layout.rows, -1)
    block, key_at = (x.view(layout.rows, -1) for x in (block, key_at))
    inside = (own[:, :, None] == block[:, None]) & (key_at[:, None] <= asked_at[:, :, None])
    rows = [seen[:, tile[row]][:, :, block[row]] for row in range(layout.rows)]
    return torch.stack(rows) | inside[:, None]


def _places(slots: np.ndarray, count: int, missing: int) -> tuple[Tensor, Tensor]:
    """For each flat slot, the line of a table it stands in and its place there, int64 [count]."""
    line = torch.full((count,), missing)
    place = torch.zeros(count, dtype=torch.int64)
    row, column = np.nonzero(slots >= 0)
    line[torch.from_numpy(slots[row, column])] = torch.from_numpy(row)
    place[torch.from_numpy(slots[row, column])] = torch.from_numpy(column)
    return line, place


def _exact(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _shifted_scores(query: Tensor, key: Tensor, problem: AttentionProblem) -> Tensor:
    """Scores [B, H, Q, N] where each tile's selected blocks moved in front of its own block."""
    assert problem.shift is not None
    layout, selection = problem.layout, problem.selection
    scores = query @ key.transpose(-1, -2)
    per_group = query.shape[1] // selection.groups
    for tile in range(layout.tiles):
        slots = torch.from_numpy(layout.query_slots[tile])
        slots = slots[slots >= 0]
        row, asked = int(slots[0]) // layout.queries, slots % layout.queries
        own = int(layout.own_block[tile])
        for group in range(selection.groups):
            chosen = [int(x) for x in selection.blocks[group, tile] if x >= 0]
            heads = slice(group * per_group, (group + 1) * per_group)
            for rank, block in enumerate(reversed(chosen), start=1):
                columns = torch.from_numpy(layout.key_slots[block]) % layout.keys
                moved = (own - rank - block) * layout.block_size
                part = key[row : row + 1, heads][:, :, columns]
                part = problem.shift(part, torch.full((1, len(columns)), moved))
                block_scores = query[row, heads][:, asked] @ part[0].transpose(-1, -2)
                place = torch.zeros_like(scores[row, heads])
                place[:, asked[:, None], columns[None]] = block_scores
                seen = torch.zeros(scores.shape[-2:]).bool()
                seen[asked[:, None], columns[None]] = True
                kept = torch.where(seen, place, scores[row, heads])
                scores = scores.clone()
                scores[row, heads] = kept
    return scores
