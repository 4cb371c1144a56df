"""Several reward models as one: pessimistic where they disagree, and less confident."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.scorers import ScorerConfig, StructuredScorer, scores_of

# The standard deviation of half zeros and half ones: the most that members can disagree.
_LARGEST_STD = 0.5


def pessimistic(scores: Tensor, confidence: Tensor, penalty: float = 1.0) -> tuple[Tensor, Tensor]:
    """Over M members: s = max(0, mean − λ·std), c = mean confidence · (1 − std/0.5).

    Worst-case and uncertainty-weighted ensembles: Coste et al. 2023, "Reward Model Ensembles Help
    Mitigate Overoptimization". The deviation is the population's, so one member changes nothing.

    Args:
        scores: [M, B, D] in [0, 1].
        confidence: [M, B, D] in [0, 1].
        penalty: λ ≥ 0.

    Returns:
        Scores and confidence, [B, D] each, both in [0, 1].

    Raises:
        ConfigError: if λ is negative.
        DataError: if the shapes differ.
    """
    if not 0.0 <= penalty < float("inf"):
        raise ConfigError(f"penalty: must be at least 0, got {penalty}")
    if scores.dim() != 3 or scores.shape != confidence.shape:
        raise DataError(
            f"scores, confidence: must both be [members, rows, dimensions], got "
            f"{list(scores.shape)} and {list(confidence.shape)}"
        )
    std = scores.std(dim=0, correction=0)
    agreement = (1.0 - std / _LARGEST_STD).clamp_min(0.0)
    low = (scores.mean(dim=0) - penalty * std).clamp(0.0, 1.0)
    return low, confidence.mean(dim=0) * agreement


class RewardEnsemble:
    """Members that score the same dimensions, joined by `pessimistic`; used like one model.

    Args:
        members: at least one scorer; trained on different folds or seeds, or they agree in error.
        penalty: λ, deviations taken off the mean.

    Raises:
        ModelError: if there is no member, or two name different dimensions.
        ConfigError: if λ is negative.
    """

    def __init__(self, members: Sequence[StructuredScorer], penalty: float = 1.0) -> None:
        if not members:
            raise ModelError("members: an ensemble needs at least one reward model, got none")
        if not 0.0 <= penalty < float("inf"):
            raise ConfigError(f"penalty: must be at least 0, got {penalty}")
        names = [tuple(member.config.dimensions) for member in members]
        for place, other in enumerate(names):
            if other != names[0]:
                raise ModelError(
                    f"members: number {place} scores {', '.join(other)}, the first "
                    f"{', '.join(names[0])}; train them on the same dimensions, in one order"
                )
        self.members, self.penalty = list(members), float(penalty)
        self.config = ScorerConfig(names[0])

    @property
    def tokenizer(self) -> Any:
        """The first member's tokenizer; every member reads texts with its own."""
        return getattr(self.members[0], "tokenizer", None)

    def score_texts(
        self, prompts: Sequence[str], responses: Sequence[str], **options: Any
    ) -> StructuredRewardOutput:
        """Score texts with every member.

        Args:
            prompts: B texts.
            responses: B texts.
            **options: handed on to each member.

        Returns:
            Scores and confidence of `pessimistic`, [B, D]; logits are those of the scores.

        Raises:
            DataError: as the members do.
        """
        parts = [scores_of(m.score_texts(prompts, responses, **options)) for m in self.members]
        device = parts[0][0].device
        scores, confidence = (
            torch.stack([part.float().to(device) for part in column])
            for column in zip(*parts, strict=True)
        )
        low, sure = pessimistic(scores, confidence, self.penalty)
        return StructuredRewardOutput(
            scores=low, confidence=sure, logits=torch.logit(low, eps=1e-6)
        )
