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

CHOICE_NUMBERS = 2**25
"""Scores ranked at a time, for a bound on memory."""


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


def budget_counts(budgets: np.ndarray | int, before: np.ndarray) -> np.ndarray:
    """Blocks before its own that each tile sees, [T].

    Args:
        budgets: blocks a tile may see, its own among them.
        before: int64 [T], blocks before each tile's own.
    """
    return np.minimum(np.maximum(np.asarray(budgets) - 1, 0), before)


def always_in(before: np.ndarray, config: PositionGraphConfig) -> np.ndarray:
    """Numbers (within the sequence) of the blocks every tile sees, int64 [T, A], -1 where none.

    Nearest first: where the budget cannot hold them, the window's far end and the sink go last.

    Args:
        before: int64 [T], blocks before each tile's own.
        config: its window and sink.
    """
    back = config.window_blocks
    window = before[:, None] - np.arange(1, back + 1)[None]
    sink = np.broadcast_to(np.arange(config.sink_blocks)[None], (len(before), config.sink_blocks))
    sink = np.where(sink < before[:, None] - back, sink, -1)
    return np.concatenate([np.where(window >= 0, window, -1), sink], axis=1)


def choose_numbers(
    scores: Tensor, preferred: Tensor, counts: np.ndarray, before: np.ndarray
) -> Tensor:
    """Take the preferred blocks, then those of the highest scores, up to each tile's count.

    Args:
        scores: float [G, T, W] of the first W blocks of the tiles' sequence.
        preferred: int64 [T, A] numbers of blocks to take before any other, best first; -1 for
            none. May repeat.
        counts: int64 [T], blocks each tile takes, at most ``before``.
        before: int64 [T], blocks before each tile's own; no other can be taken.

    Returns:
        int64 [G, T, C], numbers in ascending order, then -1.
    """
    step = max(1, CHOICE_NUMBERS // max(1, scores.shape[0] * scores.shape[-1]))
    most = int(counts.max(initial=0))
    parts = [
        _choose(scores[:, part], preferred[part], counts[part], before[part], most)
        for part in (slice(at, at + step) for at in range(0, len(counts), step))
    ]
    return torch.cat(parts, dim=1) if parts else scores.new_empty(0, dtype=torch.int64)


def _choose(
    scores: Tensor, preferred: Tensor, counts: np.ndarray, before: np.ndarray, most: int
) -> Tensor:
    width, device = scores.shape[-1], scores.device
    hidden = torch.arange(width) >= torch.from_numpy(before)[:, None]
    ranked = _with_preferred(scores, preferred).masked_fill(hidden.to(device), -torch.inf)
    chosen = ranked.topk(most, dim=-1).indices
    beyond = torch.arange(most) >= torch.from_numpy(counts)[:, None]
    chosen = chosen.masked_fill(beyond.to(device), width).sort(dim=-1).values
    return torch.where(chosen < width, chosen, -1)


def _with_preferred(scores: Tensor, preferred: Tensor) -> Tensor:
    """Raise the scores of preferred blocks above all others, the first preferred the most."""
    groups, _, width = scores.shape
    places = preferred.shape[-1]
    if places == 0:
        return scores
    value = torch.arange(places, 0, -1, device=scores.device, dtype=torch.float32)
    slot = torch.where(preferred < 0, width, preferred)
    rank = scores.new_zeros(scores.shape[1], width + 1, dtype=torch.float32)
    rank = rank.scatter_reduce(-1, slot, value.expand(preferred.shape), "amax")[..., :width]
    top = torch.finfo(torch.float32).max / 4
    return torch.where(rank > 0, top * (1 + rank / places), scores.float()).view(groups, -1, width)
