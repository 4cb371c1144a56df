"""Refreshing a reward model on what the policy says now.

A policy moves away from the answers its reward model was trained on, and finds what that model
gets wrong (article 2, §5: retrain it on the current policy's data). One round samples answers,
ranks them anew by rules, a judge or people, trains heads on old and new preferences together, and
keeps the new heads only where a fixed set says that nothing was lost.
"""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.construct import (
    Ranker,
    SamplingConfig,
    build_preferences,
    rule_ranker,
)
from hf_glm_curriculum.rewards.drift import DriftReport, compare_reward_models
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.rewards.reward_data import RewardData, reward_data
from hf_glm_curriculum.rewards.scorers import StructuredScorer, scores_of
from hf_glm_curriculum.rewards.train import train_reward_model
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, ensure_folder

logger = logging.getLogger(__name__)

Row = Mapping[str, Any]
Trainer = Callable[..., Any]


@dataclass
class RefreshConfig:
    """Settings of one round."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How the policy's answers are sampled and paired."""

    training: RewardTrainingConfig = field(default_factory=RewardTrainingConfig)
    """How the new heads are trained."""

    validation: float = 0.15
    """Share of the prompts that early stopping, levels and calibration are measured on."""

    tolerance: float = 0.02
    """Accuracy on the fixed set that a dimension may lose."""

    seed: int = 0
    """Of the split."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation: must lie in (0, 1), got {self.validation}")
        if not 0 <= self.tolerance <= 1:
            raise ConfigError(f"tolerance: must lie in [0, 1], got {self.tolerance}")


@dataclass(frozen=True)
class RefreshResult:
    """What one round came to."""

    model: StructuredRewardModel
    """The model to go on with: the new one if it was accepted, else the old one."""

    candidate: StructuredRewardModel
    """The new model in either case."""

    accepted: bool
    """Whether no dimension lost more than the tolerance on the fixed set."""

    drift: DriftReport
    """Old against new on the fixed set."""

    fresh_drift: DriftReport | None
    """Old against new on the policy's own pairs, most of which the new model was trained on: how
    wrong the old model had become where the policy is now. None without such pairs."""

    pairs: list[dict[str, Any]]
    """Preferences made of the policy's answers."""

    training: Any
    """What the trainer returned."""


def refresh_reward_model(
    model: StructuredRewardModel,
    policy: Any,
    tokenizer: Any,
    prompts: Iterable[Row],
    fixed: Sequence[Row],
    folder: str | os.PathLike[str],
    *,
    rankers: Mapping[str, Ranker] | Ranker = rule_ranker,
    replay: Sequence[Row] = (),
    ratings: Sequence[Row] = (),
    config: RefreshConfig | None = None,
    trainer: Trainer = train_reward_model,
    show_progress: bool | None = None,
) -> RefreshResult:
    """One round: sample, rank, retrain, compare.

    Args:
        model: the reward model in use; it is left as it is.
        policy: the current policy, a causal language model.
        tokenizer: the policy's.
        prompts: rows with `prompt`, and what the rankers read.
        fixed: dimension preferences that are compared on; prompts among them are not trained on.
        folder: for the sampled answers, the pairs, the new model and `drift.json`. A killed round
            called again goes on with the answers it had.
        rankers: rules or a judge; see `build_preferences`.
        replay: dimension preferences the old model was trained on. Heads are trained from the
            beginning: what is not here is forgotten.
        ratings: rated responses, such as a `rating_sheet` that people have filled in.
        config: settings.
        trainer: called as `train_reward_model(model, data, config, state_dir=...)`.
        show_progress: see `progress`.

    Raises:
        DataError: if a row does not fit, or nothing is left to train on.
        StateError: if the folder cannot be written.
    """
    config = config or RefreshConfig()
    target = ensure_folder(folder)
    pairs = build_preferences(
        policy,
        tokenizer,
        prompts,
        target / "preferences.jsonl",
        rankers=rankers,
        config=config.sampling,
        show_progress=show_progress,
    )
    names = tuple(model.config.dimensions)
    data = _training_data([*replay, *pairs], ratings, fixed, names, config)
    candidate = copy.deepcopy(model)
    trained = trainer(candidate, data, config.training, state_dir=target / "training")
    drift = compare_reward_models(model, candidate, fixed)
    fresh = compare_reward_models(model, candidate, pairs) if pairs else None
    losses = drift.losses(config.tolerance)
    _report(target, drift, fresh, losses, len(pairs), config.tolerance)
    if not losses:
        candidate.save_pretrained(target / "model")
    return RefreshResult(
        model if losses else candidate, candidate, not losses, drift, fresh, pairs, trained
    )


def rating_sheet(
    model: StructuredScorer,
    prompts: Sequence[str],
    responses: Sequence[str],
    path: str | os.PathLike[str],
    *,
    limit: int | None = None,
) -> int:
    """Write responses for people to rate, those first that the model is least sure of.

    Each line is (prompt, response, null a dimension); filled in with numbers in [0, 1], the file
    is a rating file for `refresh_reward_model(ratings=...)` and the `reward` command. The model's
    own scores are left out, so that nobody copies them.

    Args:
        model: scores the texts.
        prompts: B texts.
        responses: B texts, such as the current policy's.
        path: JSONL to write.
        limit: most lines.

    Returns:
        The lines written.

    Raises:
        DataError: if there is nothing to rate.
        StateError: if the file cannot be written.
    """
    if not prompts:
        raise DataError("prompts: a rating sheet needs at least one response, got none")
    _, confidence = scores_of(model.score_texts(prompts, responses))
    order = confidence.min(dim=1).values.argsort(stable=True).tolist()
    blank = dict.fromkeys(model.config.dimensions)
    rows = list(
        dict.fromkeys(
            json.dumps(
                {"prompt": prompts[i], "response": responses[i], **blank}, ensure_ascii=False
            )
            for i in order
        )
    )[:limit]
    atomic_write_text(path, "".join(f"{row}\n" for row in rows))
    return len(rows)


def _training_data(
    pairs: Sequence[Row],
    ratings: Sequence[Row],
    fixed: Sequence[Row],
    names: tuple[str, ...],
    config: RefreshConfig,
) -> RewardData:
    """Old and new rows without the prompts that the models are compared on."""
    held_out = {row.get("prompt") for row in fixed}
    trained, rated = (
        [row for row in rows if row["prompt"] not in held_out] for rows in (pairs, ratings)
    )
    left_out = len(pairs) + len(ratings) - len(trained) - len(rated)
    if left_out:
        logger.info("%d rows have prompts of the fixed set and are not trained on", left_out)
    return reward_data(trained, rated, names).split(config.validation, 0.0, config.seed)


def _report(
    folder: Path,
    drift: DriftReport,
    fresh: DriftReport | None,
    losses: list[str],
    pairs: int,
    tolerance: float,
) -> None:
    """Say and write what changed."""
    for line in drift.warnings(tolerance):
        logger.warning("hf_glm_curriculum: refreshed reward model: %s.", line)
    if losses:
        logger.warning(
            "hf_glm_curriculum: the old reward model stays: the new one lost more than %g on %s.",
            tolerance,
            ", ".join(losses),
        )
    content = {
        "accepted": not losses,
        "lost": losses,
        "tolerance": tolerance,
        "pairs": pairs,
        "fixed": drift.as_dict(),
        "policy_pairs": None if fresh is None else fresh.as_dict(),
    }
    atomic_write_json(folder / "drift.json", content)
