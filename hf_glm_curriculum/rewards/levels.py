"""Levels: where a dimension's 0.5 lies. A preference fixes differences of logits, never levels."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_glm_curriculum.rewards.reward_data import Examples


def anchor_shift(logits: Tensor) -> float:
    """The c for which the mean of σ(logits + c) is 0.5, by bisection; logits [M]."""
    values = logits.double()
    low, high = -float(values.max()) - 1.0, -float(values.min()) + 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if torch.sigmoid(values + middle).mean() < 0.5:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def anchor_shifts(logits: Tensor, examples: Examples) -> Tensor:
    """[D] shifts that bring chosen and rejected scores of `examples` to a mean of 0.5.

    A dimension that has ratings keeps its level, which they fix; so does one without pairs.

    Args:
        logits: [N, D] of all items.
        examples: the validation split.
    """
    shifts = torch.zeros(logits.shape[1])
    rated = (~torch.isnan(examples.ratings)).any(0)
    for column in range(logits.shape[1]):
        pairs = examples.pairs[examples.pair_dimension == column]
        if len(pairs) and not rated[column]:
            shifts[column] = anchor_shift(logits[pairs, column].flatten())
    return shifts
