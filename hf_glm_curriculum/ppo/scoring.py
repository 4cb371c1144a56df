"""From a rollout to what trains: scores, masks, importance, weights of rows, KL coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.ppo.reward_source import RewardSource
from hf_glm_curriculum.ppo.rollout import Rollout
from hf_glm_curriculum.rewards.gate import RewardGate
from hf_glm_curriculum.rewards.kl import KLController
from hf_glm_curriculum.rewards.pipeline import RewardPipeline, ScoredBatch
from hf_glm_curriculum.rewards.reinforcement import NegativeReinforcement
from hf_glm_curriculum.rewards.shaper import RewardShaper
from hf_glm_curriculum.rewards.unlock import ProgressiveUnlock
from hf_glm_curriculum.rewards.weights import DimensionWeights
from hf_glm_curriculum.signals.distributed import gather_rows, rank, world_size

REFUSAL_COLUMN = "refusal_ok"
"""Column that says whether a prompt calls for a refusal."""


@dataclass(frozen=True)
class Judged:
    """A rollout scored; B rows, D reward dimensions, C critics (D, or 1 in scalar mode)."""

    scored: ScoredBatch
    """What the reward says, [B, D]."""

    terminal: Tensor
    """What each critic's stream gets at the end, [B, C], finite."""

    open: Tensor
    """Whether a row trains critic c, bool [B, C]."""

    importance: Tensor
    """What each stream's advantage weighs beside the others', [C]."""

    weights: Tensor
    """v: what a row weighs in the losses, [B]; 0 in rows of which nothing is known."""

    kl_coefficients: Tensor
    """β, [B]."""


@dataclass(frozen=True)
class RewardParts:
    """What stands between scores and the policy; None leaves a part out."""

    gate: RewardGate | None = None
    weights: DimensionWeights | None = None
    shaper: RewardShaper | None = None
    unlock: ProgressiveUnlock | None = None
    kl_controller: KLController | None = None
    negative_reinforcement: NegativeReinforcement | None = None

    def with_defaults(
        self, dimensions: tuple[str, ...], kl_coef: float, own_eos_penalty: bool = False
    ) -> RewardParts:
        """Every part that is missing at its default, except unlocking.

        Args:
            dimensions: of the reward.
            kl_coef: the KL controller's base; without a penalty there is nothing to control.
            own_eos_penalty: whether the trainer takes a penalty of its own off cut answers.
        """
        usual = DimensionWeights()
        known = set(dimensions) <= set(usual.dimensions)
        factual = "factual" in dimensions and len(dimensions) > 1
        defaults: dict[str, Any] = {
            "gate": RewardGate(dimensions=dimensions),
            "weights": usual.reordered(dimensions) if known else None,
            "shaper": RewardShaper(
                dimensions=dimensions, missing_eos_penalty=0.0 if own_eos_penalty else 1.0
            ),
            "kl_controller": KLController(kl_coef, dimensions=dimensions)
            if factual and kl_coef > 0
            else None,
            "negative_reinforcement": NegativeReinforcement(dimensions=dimensions)
            if "factual" in dimensions
            else None,
        }
        given = {name: value for name, value in vars(self).items() if value is not None}
        return RewardParts(**{**defaults, **given})


class RewardJudge:
    """Scores rollouts and carries the running state of all parts.

    Args:
        source: of the scores.
        parts: gate, weights, shaper, unlocking, KL controller, negative reinforcement.
        kl_coef: β without a KL controller.
        scalar: one critic for the combined reward, in place of one for each dimension.
        missing_eos_penalty: off the score of an answer that generation cut off, in every
            dimension and stream; comes on top of a shaper's own.

    Raises:
        ConfigError: if a part reads levels in [0, 1] and the reward is any number, or is of other
            dimensions.
    """

    def __init__(
        self,
        source: RewardSource,
        parts: RewardParts,
        kl_coef: float,
        *,
        scalar: bool = False,
        missing_eos_penalty: float | None = None,
    ) -> None:
        self.source, self.parts, self.kl_coef = source, parts, kl_coef
        self.scalar, self.missing_eos_penalty = scalar, missing_eos_penalty
        controller = parts.kl_controller
        _check_reads("negative_reinforcement", parts.negative_reinforcement, source)
        if controller is not None and controller.kappa > 0:
            _check_reads("kl_controller", controller, source)
        self.pipeline = RewardPipeline(
            source,
            parts.gate,
            parts.weights,
            parts.shaper,
            unlock=parts.unlock,
            bounded=source.bounded,
        )
        weights = self.pipeline.weights.vector()
        self._importance = torch.ones(1) if scalar else weights.float()

    @property
    def critics(self) -> int:
        """C."""
        return 1 if self.scalar else len(self.source.dimensions)

    @property
    def one_scale(self) -> bool:
        """Whether the dimensions' scores can be compared: levels, or normalised by the shaper."""
        shaper = self.parts.shaper
        return self.source.bounded or (shaper is not None and shaper.config.normalize)

    def judge(self, rollout: Rollout) -> Judged:
        """Score a rollout to train on; running state takes it in, together on all ranks.

        Raises:
            DataError: if the reward fails.
        """
        return self._streams(self.scored(rollout), rollout)

    @torch.no_grad()
    def scored(self, rollout: Rollout, *, update: bool = True) -> ScoredBatch:
        """What the reward says of a rollout.

        Args:
            rollout: with texts and lengths.
            update: whether running state takes the batch in; false in evaluation.

        Raises:
            DataError: if the reward fails.
        """
        scores, confidence = self.source.scores(rollout)
        if scores.shape != (len(rollout), len(self.source.dimensions)):
            raise DataError(
                f"reward_model: must give {len(self.source.dimensions)} scores for each of "
                f"{len(rollout)} answers, got {list(scores.shape)}"
            )
        return self.pipeline.judge(
            scores,
            confidence,
            rollout.responses,
            n_tokens=rollout.lengths.cpu(),
            ended=rollout.ended.cpu(),
            refusal_ok=_refusal_ok(rollout),
            update=update,
        )

    def state_dict(self) -> dict[str, Any]:
        """Running state of every part, as plain values."""
        state = self.pipeline.state_dict()
        controller = self.parts.kl_controller
        return state if controller is None else {**state, "kl": controller.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`.

        Raises:
            StateError: if a part is of other dimensions.
        """
        self.pipeline.load_state_dict(state)
        if self.parts.kl_controller is not None and "kl" in state:
            self.parts.kl_controller.load_state_dict(state["kl"])

    def _streams(self, scored: ScoredBatch, rollout: Rollout) -> Judged:
        mask = scored.mask
        known = mask.any(dim=1)
        if self.scalar:
            terminal, opened = scored.reward[:, None], known[:, None]
        else:
            terminal, opened = scored.shaped, mask
        terminal = torch.where(opened, terminal, 0.0)
        if self.missing_eos_penalty is not None:
            terminal = terminal - self.missing_eos_penalty * (~rollout.ended)[:, None].float()
        return Judged(
            scored=scored,
            terminal=terminal,
            open=opened,
            importance=self._importance.to(terminal),
            weights=self._row_weights(scored, rollout, known),
            kl_coefficients=self._coefficients(scored),
        )

    def _row_weights(self, scored: ScoredBatch, rollout: Rollout, known: Tensor) -> Tensor:
        """Weights over all ranks' rows: the token-weighted mean over known rows is 1."""
        part = self.parts.negative_reinforcement
        if part is None:
            return known.float()
        scores, mask, lengths = (
            gather_rows(t) if world_size() > 1 else t
            for t in (scored.scores, scored.mask.byte(), rollout.lengths)
        )
        tokens = lengths * mask.bool().any(dim=1)
        weights = part.weights(scores, mask.bool(), tokens)
        start = rank() * len(rollout)
        return weights[start : start + len(rollout)] * known

    def _coefficients(self, scored: ScoredBatch) -> Tensor:
        controller = self.parts.kl_controller
        if controller is None or controller.kappa == 0:
            base = self.kl_coef if controller is None else controller.base
            return torch.full_like(scored.scores[:, 0], base)
        names = scored.dimensions
        gauge = "factual" if "factual" in names else names[0]
        return controller.coefficients(scored.scores, scored.mask, gauge)


def _check_reads(field: str, part: Any, source: RewardSource) -> None:
    """Refuse a part that reads levels where the reward is none, or other dimensions.

    Raises:
        ConfigError: naming the part.
    """
    if part is None:
        return
    if not source.bounded:
        raise ConfigError(
            f"{field}: reads levels in [0, 1], and this reward is any number; pass it through "
            "ScalarReward, or leave the part out"
        )
    if tuple(part.dimensions) != source.dimensions:
        raise ConfigError(
            f"{field}: is of the dimensions {', '.join(part.dimensions)}, the reward of "
            f"{', '.join(source.dimensions)}; pass dimensions="
        )


def _refusal_ok(rollout: Rollout) -> list[bool] | None:
    column = rollout.columns.get(REFUSAL_COLUMN)
    return None if column is None else [bool(value) for value in column]
