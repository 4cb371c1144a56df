"""The KL coefficient: tighter for rows whose facts lag behind, and steered to a target.

Notation: π the policy, π₀ the reference; KL of a row is Σ_t (log π − log π₀) over its response
tokens, in nats (a sum, not a mean: what the adaptive rule of Ziegler et al. 2019 steers).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.dimensions import (
    DIMENSIONS,
    check_dimensions,
    check_scores,
    dimension_index,
    open_mask,
)

_LARGEST_ERROR = 0.2


class KLController:
    """β_i = clip(base · (1 + κ·max(0, mean_{d≠f} s_id − s_if − margin)), bounds).

    f is the factual dimension: where it lies far below the others, the policy gains by inventing
    facts, and is held closer to the reference (article 1, §2.1, which gives no formula). The means
    are over open dimensions; where f is closed, or nothing else is open, β is the base.

    With a `target`, `update` moves the base after each batch (Ziegler et al. 2019, §2.2):
    e = clip((KL − target)/target, −0.2, 0.2), base ← base·(1 + e·n/horizon) for n rows.

    Args:
        base: the coefficient of a row without a gap, above 0.
        kappa: how much a gap of 1 adds, in bases.
        margin: gap that costs nothing.
        bounds: least and largest coefficient; the base stays inside as it adapts.
        target: sequence-summed KL to steer to, in nats; None leaves the base as it is.
        horizon: rows over which an error of 1 would double the base.
        dimensions: names of the columns.

    Raises:
        ConfigError: naming the field that is out of range.
    """

    def __init__(
        self,
        base: float = 0.05,
        kappa: float = 1.0,
        margin: float = 0.1,
        bounds: tuple[float, float] = (0.001, 1.0),
        target: float | None = None,
        horizon: int = 10_000,
        dimensions: Sequence[str] = DIMENSIONS,
    ) -> None:
        low, high = (float(bound) for bound in bounds)
        if not 0.0 <= low <= high < math.inf:
            raise ConfigError(f"bounds: must be 0 <= least <= largest, got {tuple(bounds)}")
        if not max(low, 1e-12) <= base <= high:
            raise ConfigError(
                f"base: must be above 0 and inside bounds [{low:g}, {high:g}], got {base}; "
                "a base of 0 could never adapt"
            )
        if not 0.0 <= kappa < math.inf or not 0.0 <= margin < math.inf:
            raise ConfigError(f"kappa, margin: must be at least 0, got {kappa} and {margin}")
        if target is not None and not 0.0 < target < math.inf:
            raise ConfigError(f"target: must be above 0 nats, got {target}; None turns it off")
        if horizon < 1:
            raise ConfigError(f"horizon: must be at least 1 row, got {horizon}")
        self.base, self.kappa, self.margin = float(base), float(kappa), float(margin)
        self.bounds, self.target, self.horizon = (low, high), target, int(horizon)
        self.dimensions = check_dimensions(dimensions)

    def coefficients(
        self, scores: Tensor, mask: Tensor | None = None, dimension: str = "factual"
    ) -> Tensor:
        """The KL coefficient of every row.

        Args:
            scores: [B, D] in [0, 1], anchored and before shaping: gaps are between levels. NaN is
                null.
            mask: [B, D], true where open.
            dimension: f, the one that must not lag behind.

        Returns:
            [B] in the dtype of the scores.

        Raises:
            DataError: if a score is out of range or the shapes do not fit.
            ConfigError: if the dimension is unknown; the message names the nearest.
        """
        check_scores(scores, self.dimensions)
        column = dimension_index(dimension, self.dimensions)
        opened = open_mask(scores, mask)
        others = opened.clone()
        others[:, column] = False
        number = others.sum(dim=1)
        mean = torch.where(others, scores, 0.0).sum(dim=1) / number.clamp_min(1)
        gap = (mean - scores[:, column] - self.margin).clamp_min(0.0)
        gap = torch.where(opened[:, column] & (number > 0), gap, 0.0)
        return (self.base * (1.0 + self.kappa * gap)).clamp(*self.bounds)

    def update(self, kl: Tensor | float, n: int | None = None) -> float:
        """Move the base toward the target KL; without a target, leave it.

        Args:
            kl: sequence-summed KL of each row, [B], or their mean. With several ranks, the mean
                over all of them, so that every rank takes the same step.
            n: rows behind it, over all ranks; B without it.

        Returns:
            The base from now on.

        Raises:
            DataError: if the KL is not finite, or a mean comes without `n`.
        """
        values = torch.as_tensor(kl, dtype=torch.float64)
        if n is None and values.dim() == 0:
            raise DataError("n: a mean KL needs the number of rows behind it; give n")
        mean = float(values.mean())
        if not math.isfinite(mean):
            raise DataError(f"kl: must be finite, got {mean}; the policy's log-probabilities broke")
        if self.target is None:
            return self.base
        error = mean / self.target - 1.0
        error = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        rows = values.numel() if n is None else n
        base = self.base * (1.0 + error * rows / self.horizon)
        # A base of 0 would stay 0 whatever the KL.
        self.base = min(max(base, self.bounds[0], 1e-12), self.bounds[1])
        return self.base

    def state_dict(self) -> dict[str, Any]:
        """The base as it has become."""
        return {"base": self.base}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.base = float(state["base"])


def sequence_kl(logprobs: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """Σ_t (log π − log π₀) over the response tokens of each row, in nats, [B].

    Args:
        logprobs: the policy's log-probabilities of the tokens drawn, [B, T].
        reference: the reference's, [B, T].
        mask: [B, T], true on response tokens.

    Raises:
        DataError: if the shapes differ.
    """
    if not logprobs.shape == reference.shape == mask.shape:
        raise DataError(
            f"logprobs, reference, mask: must have one shape, got {list(logprobs.shape)}, "
            f"{list(reference.shape)} and {list(mask.shape)}"
        )
    return torch.where(mask.bool(), logprobs - reference, 0.0).sum(dim=1)
