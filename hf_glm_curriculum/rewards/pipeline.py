"""From texts to rewards: model, gate, unlocking, shaping and weights in their order.

What the reward functions for TRL and the PPO trainer share; every part of it is usable alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.dimensions import check_scores
from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.rewards.scorers import StructuredScorer, scores_of
from hf_glm_curriculum.rewards.shaper import RewardShaper, ShapedRewards
from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock
from hf_glm_curriculum.rewards.weights import DimensionWeights
from hf_glm_curriculum.signals.distributed import gather_rows, world_size

PREFIX = "structured/"
"""Of the metrics that `ScoredBatch.metrics` names."""


@dataclass(frozen=True)
class ScoredBatch:
    """B rows scored in D dimensions."""

    dimensions: tuple[str, ...]
    """Names of the columns."""

    scores: Tensor
    """[B, D] in [0, 1], as the model gave them; NaN is null."""

    confidence: Tensor
    """[B, D] in [0, 1]."""

    mask: Tensor
    """bool [B, D], true where open. A row is closed altogether only where it is null."""

    shaped: Tensor
    """[B, D]: the scores after shaping; the scores themselves without a shaper."""

    reward: Tensor
    """[B]: one number a row; NaN in rows that are null in every dimension in use."""

    plain_reward: Tensor
    """[B]: the same from the scores as they are, without shaping; a level in [0, 1]."""

    shaping: ShapedRewards | None = None
    """What the shaper found and took off."""

    stage: int | None = None
    """Stage of the unlocking that decided the mask."""

    def metrics(self) -> dict[str, float]:
        """Means by dimension of score, confidence and openness, and what the shaper found."""
        found: dict[str, float] = {}
        for column, name in enumerate(self.dimensions):
            known = ~torch.isnan(self.scores[:, column])
            if bool(known.any()):
                found[f"score_{name}"] = float(self.scores[known, column].mean())
                found[f"confidence_{name}"] = float(self.confidence[known, column].mean())
            if len(known):
                found[f"open_{name}"] = float(self.mask[:, column].float().mean())
        for name in ("reward", "plain_reward"):
            values = getattr(self, name)
            values = values[~torch.isnan(values)]
            if len(values):
                found[name] = float(values.mean())
        if self.stage is not None:
            found["unlock_stage"] = float(self.stage)
        found |= {} if self.shaping is None else self.shaping.metrics()
        return {f"{PREFIX}{name}": value for name, value in found.items()}


class RewardPipeline:
    """Scores texts, decides what is open, shapes and weighs; carries the running state of all.

    Every rank scores its own rows; running means, normalisation and unlocking take in all ranks'
    rows, so that every rank decides alike. Each rank must then call `score` equally often.

    Args:
        model: scores texts in D dimensions.
        gate: closes what the model is not confident of; everything is open without it.
        weights: of the dimensions; equal without it.
        shaper: normalisation and penalties; none without it.
        unlock: which dimensions are in use; all without it.
        score_options: handed to `model.score_texts`, such as ``{"too_long": "cut"}``.
        bounded: whether scores are levels in [0, 1]. Without, any finite number is a score, and
            neither gate nor unlocking, which read levels, can be used.

    Raises:
        ConfigError: if a part is of other dimensions than the model.
    """

    def __init__(
        self,
        model: StructuredScorer,
        gate: RewardGate | None = None,
        weights: DimensionWeights | None = None,
        shaper: RewardShaper | None = None,
        *,
        unlock: ProgressiveUnlock | None = None,
        score_options: Mapping[str, Any] | None = None,
        bounded: bool = True,
    ) -> None:
        self.model, self.bounded = model, bounded
        for field, part in (("gate", gate), ("unlock", unlock)):
            if part is not None and not bounded:
                raise ConfigError(
                    f"{field}: reads levels in [0, 1], and this reward is any number; pass it "
                    "through ScalarReward, or leave the part out"
                )
        self.dimensions = tuple(model.config.dimensions)
        self.gate, self.shaper, self.unlock = gate, shaper, unlock
        for field, part in (("gate", gate), ("shaper", shaper)):
            named = None if part is None else part.dimensions
            if named is not None and named != self.dimensions:
                raise ConfigError(
                    f"{field}: is of the dimensions {', '.join(named)}, the reward model "
                    f"scores {', '.join(self.dimensions)}; pass dimensions=model.config.dimensions"
                )
        self.weights = DimensionWeights.of(dict.fromkeys(self.dimensions, 1.0))
        if weights is not None:
            same = weights.dimensions == self.dimensions
            self.weights = weights if same else weights.reordered(self.dimensions)
        if unlock is not None:
            unlock.unlocked(self.dimensions)
        self.score_options = dict(score_options or {})

    def score(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        *,
        n_tokens: Sequence[int] | Tensor | None = None,
        ended: Sequence[bool] | Tensor | None = None,
        refusal_ok: Sequence[bool] | Tensor | None = None,
        update: bool = True,
    ) -> ScoredBatch:
        """Score a batch of texts.

        Args:
            prompts: B texts.
            responses: B texts.
            n_tokens: [B], response lengths in tokens.
            ended: [B], whether generation came to the end-of-sequence token.
            refusal_ok: [B], whether the prompt calls for a refusal.
            update: whether running means and unlocking take the batch in; false in evaluation.

        Raises:
            DataError: if the model gives another shape, or a score outside [0, 1].
        """
        output = self.model.score_texts(prompts, responses, **self.score_options)
        return self.judge(
            *scores_of(output),
            responses,
            n_tokens=n_tokens,
            ended=ended,
            refusal_ok=refusal_ok,
            update=update,
        )

    def judge(
        self,
        scores: Tensor,
        confidence: Tensor,
        responses: Sequence[str],
        *,
        n_tokens: Sequence[int] | Tensor | None = None,
        ended: Sequence[bool] | Tensor | None = None,
        refusal_ok: Sequence[bool] | Tensor | None = None,
        update: bool = True,
    ) -> ScoredBatch:
        """Everything `score` does once the model has spoken.

        Args:
            scores: [B, D]; NaN is null.
            confidence: [B, D] in [0, 1].
            responses: B texts.
            n_tokens: as `score` takes it.
            ended: as `score` takes it.
            refusal_ok: as `score` takes it.
            update: as `score` takes it.

        Raises:
            DataError: if shapes do not fit, or a score lies outside [0, 1] where scores are levels.
        """
        if scores.shape[0] != len(responses):
            raise DataError(
                f"scores: the reward model returned {scores.shape[0]} rows for {len(responses)} "
                "responses"
            )
        check_scores(scores, self.dimensions, bounded=self.bounded)
        check_scores(confidence, self.dimensions, field="confidence", allow_null=False)
        unlocked = None if self.unlock is None else self.unlock.unlocked(self.dimensions)
        stage = None if self.unlock is None else self.unlock.stage
        mask = self._mask(scores, confidence, unlocked)
        if update:
            self._observe(scores, mask)
        shaping = None
        if self.shaper is not None:
            shaping = self.shaper.shape(
                scores,
                responses,
                n_tokens=n_tokens,
                ended=ended,
                refusal_ok=refusal_ok,
                update=False,
            )
        plain = self._combined(scores, mask, unlocked, self.weights.baseline)
        return ScoredBatch(
            dimensions=self.dimensions,
            scores=scores,
            confidence=confidence,
            mask=mask,
            shaped=scores if shaping is None else shaping.scores,
            reward=plain if shaping is None else self._shaped(shaping, mask, unlocked),
            plain_reward=plain,
            shaping=shaping,
            stage=stage,
        )

    def state_dict(self) -> dict[str, Any]:
        """State of weights, shaper and unlocking, as plain values."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`; parts that it does not hold start anew.

        Raises:
            StateError: if a part is of other dimensions.
        """
        for name, part in self._parts().items():
            if name in state:
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {"weights": self.weights, "shaper": self.shaper, "unlock": self.unlock}
        return {name: part for name, part in parts.items() if part is not None}

    def _mask(self, scores: Tensor, confidence: Tensor, unlocked: Tensor | None) -> Tensor:
        """What is open; rows that are null wherever it counts stay closed."""
        usable = ~torch.isnan(scores)
        if unlocked is not None:
            usable &= unlocked.to(usable.device)
        if self.gate is None:
            return usable
        mask, known = torch.zeros_like(usable), usable.any(dim=1)
        if bool(known.any()):
            mask[known] = self.gate(scores[known], confidence[known], unlocked)
        return mask

    def _observe(self, scores: Tensor, mask: Tensor) -> None:
        """Let every rank's rows into the running state."""
        if world_size() > 1:
            scores, mask = gather_rows(_movable(scores)), gather_rows(_movable(mask.byte())).bool()
        self.weights.observe(scores, mask)
        if self.shaper is not None:
            self.shaper.observe(scores, mask)
        if self.unlock is not None:
            self.unlock.update(scores, mask, self.dimensions)

    def _shaped(self, shaping: ShapedRewards, mask: Tensor, unlocked: Tensor | None) -> Tensor:
        """Normalised scores weighed, less the penalty, which no closed dimension can soften."""
        neutral = self.weights.baseline
        if self.shaper is not None and self.shaper.config.normalize:
            neutral = torch.zeros_like(neutral)
        return self._combined(shaping.normalised, mask, unlocked, neutral) - shaping.total

    def _combined(
        self, scores: Tensor, mask: Tensor, unlocked: Tensor | None, baseline: Tensor
    ) -> Tensor:
        reward = self.weights.combine(scores, mask, baseline, unlocked=unlocked)
        return reward.masked_fill(~mask.any(dim=1), torch.nan)


def _movable(rows: Tensor) -> Tensor:
    """The rows where the default process group can send them from."""
    nccl = torch.distributed.get_backend() == "nccl"
    return rows.cuda() if nccl and not rows.is_cuda else rows
