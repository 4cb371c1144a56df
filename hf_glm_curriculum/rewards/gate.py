"""The gate: a dimension of a row speaks only where the reward model is confident.

Source: article 1, §2.2 (confidence below 0.85 closes a dimension) and §5 (something must stay
open). The article's confidences are a softmax over the dimensions, of which at most one can pass
0.85, and its way out opens a whole row or nothing; here confidences are independent and the
fallback is decided row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.dimensions import (
    DIMENSIONS,
    check_dimensions,
    check_rows_known,
    check_scores,
    dimension_index,
)

MOST_CONFIDENT = "most_confident"


class RewardGate:
    """Opens dimension d of row i where confidence[i, d] ≥ threshold[d] and d is unlocked.

    A row in which that opens nothing gets one open dimension: its most confident one, or the one
    named, among those that are unlocked and not null. So no row is ever closed altogether.

    Args:
        threshold: least confidence, one for all or one by dimension (others: 0.85).
        fallback: ``"most_confident"`` or the name of a dimension. Where the named one is locked or
            null, the most confident takes its place.
        dimensions: names of the columns; without it the gate takes any number of columns, and
            names in `threshold` and `fallback` are of factual, logic, compliance.

    Raises:
        ConfigError: if a threshold is not in [0, 1] or a name is unknown.
    """

    def __init__(
        self,
        threshold: float | Mapping[str, float] = 0.85,
        fallback: str = MOST_CONFIDENT,
        dimensions: Sequence[str] | None = None,
    ) -> None:
        names = check_dimensions(DIMENSIONS if dimensions is None else dimensions)
        by_name = isinstance(threshold, Mapping) or fallback != MOST_CONFIDENT
        self.dimensions = None if dimensions is None and not by_name else names
        self.thresholds = _thresholds(threshold, names)
        self.fallback = fallback
        if fallback != MOST_CONFIDENT:
            dimension_index(fallback, (*names, MOST_CONFIDENT), "fallback")

    def __call__(
        self, scores: Tensor, confidence: Tensor, unlocked: Tensor | None = None
    ) -> Tensor:
        """Decide what is open.

        Args:
            scores: [B, D] in [0, 1]; NaN is null and stays closed.
            confidence: [B, D] in [0, 1].
            unlocked: bool [D], the dimensions in use (see `ProgressiveUnlock`); all without it.

        Returns:
            bool [B, D] on the device of the scores, with at least one open dimension a row.

        Raises:
            DataError: if a value is out of range, a row is null in every dimension (or in every
                unlocked one), or nothing is unlocked.
        """
        names = self.dimensions or _names(scores)
        check_scores(scores, names)
        check_scores(confidence, names, field="confidence", allow_null=False)
        check_rows_known(scores, names)
        usable = self._usable(scores, unlocked, names)
        confidence = confidence.to(scores.device)
        common = next(iter(self.thresholds.values()))
        limits = confidence.new_tensor([self.thresholds.get(name, common) for name in names])
        opened = usable & (confidence >= limits)
        closed_rows = ~opened.any(dim=1, keepdim=True)
        return opened | (closed_rows & self._fallback(confidence, usable))

    def _usable(self, scores: Tensor, unlocked: Tensor | None, dimensions: Sequence[str]) -> Tensor:
        known = ~torch.isnan(scores)
        if unlocked is None:
            return known
        if unlocked.shape != (len(dimensions),) or not bool(unlocked.any()):
            raise DataError(
                f"unlocked: must say for each of {', '.join(dimensions)} whether it is in "
                f"use, and one must be; got {unlocked.tolist()}"
            )
        usable = known & unlocked.to(scores.device).bool()
        names = [n for n, on in zip(dimensions, unlocked.tolist(), strict=True) if on]
        check_rows_known(
            scores.masked_fill(~usable, torch.nan), names, "scores of unlocked dimensions"
        )
        return usable

    def _fallback(self, confidence: Tensor, usable: Tensor) -> Tensor:
        """One usable dimension for each row, bool [B, D]."""
        ranking = confidence.masked_fill(~usable, -1.0)
        if self.fallback != MOST_CONFIDENT and self.dimensions is not None:
            column = self.dimensions.index(self.fallback)
            named = torch.where(usable[:, column], 2.0, -1.0).to(ranking.dtype)
            ranking = ranking.index_copy(1, ranking.new_tensor([column]).long(), named[:, None])
        best = ranking.argmax(dim=1, keepdim=True)
        return torch.zeros_like(usable).scatter_(1, best, True)


def _names(scores: Tensor) -> tuple[str, ...]:
    """Names for columns that nobody named, as messages call them."""
    width = scores.shape[-1] if scores.dim() else 0
    known = width == len(DIMENSIONS)
    return DIMENSIONS if known else tuple(f"column {i}" for i in range(width))


def _thresholds(given: float | Mapping[str, float], dimensions: Sequence[str]) -> dict[str, float]:
    by_name = dict(given) if isinstance(given, Mapping) else dict.fromkeys(dimensions, given)
    for name, value in by_name.items():
        dimension_index(name, dimensions, "threshold")
        if not 0.0 <= float(value) <= 1.0:
            raise ConfigError(f"threshold: must lie in [0, 1], got {value} for {name}")
    return {name: float(by_name.get(name, 0.85)) for name in dimensions}
