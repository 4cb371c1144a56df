"""The blocks each tile of queries sees, and the choice of them from scores.

A tile sees its own block causally and, entirely, a number of blocks before it. Those are full: only
the last block of a sequence is not, and nothing comes after it.

Letters: G selections (one, or one a key-value head), T tiles, M blocks, C the most blocks chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.layout import BlockLayout


@dataclass(frozen=True)
class BlockSelection:
    """The blocks before its own that each tile sees.

    Attributes:
        blocks: int64 [G, T, C], places in the layout's list of blocks, ascending, then -1.
        counts: int64 numpy [T], how many of them are chosen; the same for all G.
    """

    blocks: Tensor
    counts: np.ndarray

    @property
    def groups(self) -> int:
        """G."""
        return self.blocks.shape[0]


def select_all(layout: BlockLayout, device: torch.device | str = "cpu") -> BlockSelection:
    """Every block before the own one: dense causal attention."""
    counts = layout.own_number
    place = np.arange(int(counts.max(initial=0)))[None]
    blocks = layout.first_block[layout.tile_sequence][:, None] + place
    blocks = np.where(place < counts[:, None], blocks, -1)
    return BlockSelection(torch.from_numpy(blocks)[None].to(device), counts)


def budget_counts(layout: BlockLayout, blocks: np.ndarray | int) -> np.ndarray:
    """Blocks before its own that each tile may see, [T], given its budget with the own one."""
    return np.minimum(np.maximum(np.asarray(blocks) - 1, 0), layout.own_number)


def always_in(layout: BlockLayout, config: PositionGraphConfig) -> np.ndarray:
    """Numbers (within the sequence) of the blocks every tile sees, int64 [T, A], -1 where none.

    Nearest first: where the budget cannot hold them, the window's far end and the sink go last.
    """
    own = layout.own_number
    back = -(-config.window // layout.block_size)
    window = own[:, None] - np.arange(1, back + 1)[None]
    sink = np.broadcast_to(np.arange(config.sink_blocks)[None], (len(own), config.sink_blocks))
    sink = np.where(sink < own[:, None] - back, sink, -1)
    return np.concatenate([np.where(window >= 0, window, -1), sink], axis=1)


def choose_blocks(
    scores: Tensor, preferred: Tensor, counts: np.ndarray, first_block: Tensor
) -> BlockSelection:
    """Take the preferred blocks, then those of the highest scores, up to each tile's count.

    Args:
        scores: float [G, T, W] of the blocks of each tile's sequence by number; -inf where there is
            none before the tile's own. No two should be equal.
        preferred: int64 [T, A] or [G, T, A], numbers of blocks to take before any other, best
            first; -1 for none. May repeat.
        counts: int64 [T], blocks each tile takes, at most those before its own.
        first_block: int64 [T], first block of each tile's sequence in the layout's list.

    Returns:
        The selection, sorted.
    """
    groups, tiles, width = scores.shape
    most = int(counts.max(initial=0))
    if most == 0:
        empty = torch.full((groups, tiles, 0), -1, dtype=torch.int64, device=scores.device)
        return BlockSelection(empty, counts)
    chosen = _with_preferred(scores, preferred).topk(most, dim=-1).indices
    limit = torch.as_tensor(counts, device=scores.device)[None, :, None]
    beyond = torch.arange(most, device=scores.device) >= limit
    chosen = chosen.masked_fill(beyond, width).sort(dim=-1).values
    blocks = torch.where(chosen < width, chosen + first_block[None, :, None], -1)
    return BlockSelection(blocks, counts)


def _with_preferred(scores: Tensor, preferred: Tensor) -> Tensor:
    """Raise the scores of preferred blocks above all others, the first preferred the most."""
    if preferred.dim() == 2:
        preferred = preferred[None].expand(scores.shape[0], -1, -1)
    width, places = scores.shape[-1], preferred.shape[-1]
    if places == 0:
        return scores
    value = torch.arange(places, 0, -1, device=scores.device, dtype=torch.float32)
    value = value.expand(preferred.shape).masked_fill(preferred < 0, 0.0)
    slot = torch.where(preferred < 0, width, preferred)
    rank = scores.new_zeros(*scores.shape[:2], width + 1, dtype=torch.float32)
    rank = rank.scatter_reduce(-1, slot, value, "amax")[..., :width]
    top = torch.finfo(torch.float32).max / 4
    return torch.where((rank > 0) & (scores > -torch.inf), top * (1 + rank / places), scores)
