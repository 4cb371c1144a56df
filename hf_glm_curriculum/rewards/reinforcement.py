"""Negative reinforcement: rows that are factually wrong weigh more in policy and value loss.

Source: article 1, §4.2, which copies samples with a factual score below 0.4 three times into the
batch. A weight does the same without the copies, and without changing the step size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.dimensions import (
    DIMENSIONS,
    check_scores,
    dimension_index,
    open_mask,
)


@dataclass(frozen=True)
class NegativeReinforcement:
    """v_i = `factor` where the dimension is open and below `threshold`, else 1; w = v / mean(v).

    Raises:
        ConfigError: if a number is out of range or the dimension is unknown.
    """

    threshold: float = 0.4
    """Scores below this are reinforced."""

    factor: float = 3.0
    """How much such a row weighs."""

    dimension: str = "factual"
    """Whose score decides."""

    dimensions: Sequence[str] = DIMENSIONS
    """Names of the columns."""

    def __post_init__(self) -> None:
        """Check every field."""
        dimension_index(self.dimension, self.dimensions)
        if not 0.0 <= self.threshold <= 1.0:
            raise ConfigError(f"threshold: must lie in [0, 1], got {self.threshold}")
        if not 0.0 <= self.factor < float("inf"):
            raise ConfigError(f"factor: must be at least 0 and finite, got {self.factor}")

    def weights(
        self, scores: Tensor, mask: Tensor | None = None, n_tokens: Tensor | None = None
    ) -> Tensor:
        """The weight of every row.

        Args:
            scores: [B, D] in [0, 1], before shaping; NaN is null.
            mask: [B, D], true where open; a closed dimension condemns no row.
            n_tokens: [B], response tokens of each row, where the loss is a mean over tokens: then
                the token-weighted mean is 1 instead of the plain one.

        Returns:
            [B] in the dtype of the scores.

        Raises:
            DataError: if a score is out of range or shapes do not fit.
        """
        check_scores(scores, self.dimensions)
        column = dimension_index(self.dimension, self.dimensions)
        wrong = open_mask(scores, mask)[:, column] & (scores[:, column] < self.threshold)
        raw = torch.where(wrong, self.factor, 1.0).to(scores)
        return raw / _mean(raw, n_tokens).clamp_min(1e-30) if raw.numel() else raw


def _mean(raw: Tensor, n_tokens: Tensor | None) -> Tensor:
    if n_tokens is None:
        return raw.mean()
    if n_tokens.shape != raw.shape:
        raise DataError(f"n_tokens: must be [{len(raw)}], got {list(n_tokens.shape)}")
    tokens = n_tokens.to(raw)
    return (raw * tokens).sum() / tokens.sum().clamp_min(1.0)
