"""What the rest of this part asks of a reward model, however it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from torch import Tensor

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.rendering import tokenizers_agree


class StructuredScorer(Protocol):
    """Scores texts: `StructuredRewardModel`, `RewardEnsemble`, `ScalarReward`, `RewardPanel`.

    `config.dimensions` names the columns of what `score_texts` returns.
    """

    @property
    def config(self) -> Any:
        """Holds `dimensions`."""
        ...

    @property
    def score_texts(self) -> Callable[..., StructuredRewardOutput]:
        """(prompts, responses, **options) → scores and confidences [B, D] of B pairs of texts."""
        ...


@dataclass(frozen=True)
class ScorerConfig:
    """The part of a reward model's config that its users read."""

    dimensions: tuple[str, ...]


def scores_of(output: StructuredRewardOutput) -> tuple[Tensor, Tensor]:
    """Scores and confidence of an output, both [B, D]."""
    return cast(Tensor, output.scores), cast(Tensor, output.confidence)


def require_same_tokenizer(policy: Any, reward: Any) -> None:
    """Check that token ids of the policy mean the same to the reward model.

    Needed only where ids are handed over; `score_texts` reads texts, so any two models go together.

    Args:
        policy: the policy's tokenizer.
        reward: the reward model's.

    Raises:
        IncompatibleError: if they differ, saying how.
    """
    if tokenizers_agree(policy, reward):
        return
    sizes = f"{len(policy)} and {len(reward)} tokens"
    raise IncompatibleError(
        f"tokenizer: the policy's and the reward model's differ ({sizes}), so the ids of one mean "
        "nothing to the other; hand over texts with score_texts(prompts, responses)"
    )
