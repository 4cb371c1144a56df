"""Training a structured reward model: features, heads, levels, confidence, figures."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.rewards.confidence import (
    Judged,
    calibrate,
    held_out_logits,
    train_confidence,
)
from hf_glm_curriculum.rewards.features import feature_key, pooled_features
from hf_glm_curriculum.rewards.figures import plain, source_figures, split_figures
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.heads import RewardHeads
from hf_glm_curriculum.rewards.levels import anchor_shifts
from hf_glm_curriculum.rewards.measures import correlation, joint_entropy_share
from hf_glm_curriculum.rewards.model import StructuredRewardModel
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.reward_data import Examples, RewardData
from hf_glm_curriculum.rewards.shift import feature_distance, leave_one_source_out, warnings_of
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from hf_glm_curriculum.storage import ensure_folder

Hook = Callable[[int, Mapping[str, float]], None]
REPORTED = {"validation": "validation", "test": "test", "unseen": "unseen sources"}


@dataclass
class RewardTrainingResult:
    """What training came to.

    Attributes:
        figures: split → dimension → figures of `split_figures`.
        by_source: source → dimension → figures, on held-out prompts.
        shift: source left out → dimension → figures, and "warnings".
        history: metrics of each epoch of the heads.
        anchors: [D] what was added to the logits.
        output: of all items, for pictures.
        joint_entropy: share of its maximum that the binned score vectors reach.
        correlation: of the dimensions' scores over all held-out items.
        seconds: of each stage.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    by_source: dict[str, Any] = field(default_factory=dict)
    shift: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    anchors: list[float] = field(default_factory=list)
    output: StructuredRewardOutput | None = None
    joint_entropy: float | None = None
    correlation: list[list[float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Everything but the scores themselves."""
        return {name: value for name, value in vars(self).items() if name != "output"}


class _Clock:
    def __init__(self, result: RewardTrainingResult) -> None:
        self.result, self.last = result, time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.result.seconds[name] = round(now - self.last, 2)
        self.last = now


def train_reward_model(
    model: StructuredRewardModel,
    data: RewardData,
    config: RewardTrainingConfig | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    on_epoch: Hook | None = None,
    shift_check: bool = True,
) -> RewardTrainingResult:
    """Train the heads of a model with a frozen backbone, in place.

    Args:
        model: with its tokenizer.
        data: split by `RewardData.split`.
        config: settings.
        state_dir: keeps checkpoints of heads and folds; a killed run called again goes on there.
        cache_dir: keeps pooled features, for this run and others; None keeps none.
        on_epoch: called after each epoch of the heads with its metrics.
        shift_check: also train without each source, where a dimension has several.

    Raises:
        DataError: Texts cannot be rendered.
        ModelError: The loss is not finite.
        StateError: A folder cannot be written.
    """
    config = config or RewardTrainingConfig()
    result = RewardTrainingResult()
    clock = _Clock(result)
    features = features_of(model, data, config, cache_dir)
    clock.lap("features")
    folder = None if state_dir is None else _state_folder(Path(state_dir), model, data, config)
    fresh = fresh_heads(model, features, data, config)
    heads = copy.deepcopy(fresh)
    train, validation = data.splits["train"], data.splits["validation"]
    checkpoint = None if folder is None else folder / "heads.safetensors"
    state = train_heads(
        heads, features, train, validation, config, checkpoint=checkpoint, on_epoch=on_epoch
    )
    result.history = state.history
    model.score.load_state_dict(heads.state_dict())
    clock.lap("heads")
    out_of_fold = held_out_logits(fresh, features, data.prompts, train, validation, config, folder)
    clock.lap("folds")
    finish(model, features, data, config, result, out_of_fold)
    clock.lap("confidence")
    if shift_check:
        result.shift = leave_one_source_out(fresh, features, data, config)
        result.shift["warnings"] = warnings_of(result.shift, result.by_source)
        clock.lap("shift")
    return result


def features_of(
    model: StructuredRewardModel,
    data: RewardData,
    config: RewardTrainingConfig,
    cache_dir: str | os.PathLike[str] | None,
) -> Tensor:
    """Pooled features [N, H] of the data's items, from the cache where they are there."""
    return pooled_features(
        model, data.prompts, data.responses, cache_dir, batch_size=config.feature_batch_size
    )


def fresh_heads(
    model: StructuredRewardModel, features: Tensor, data: RewardData, config: RewardTrainingConfig
) -> RewardHeads:
    """New heads, the same for the same seed, standardised by the training items' features."""
    settings = model.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        heads = RewardHeads(
            features.shape[1],
            settings.dimensions,
            settings.head_hidden_size,
            settings.head_dropout,
        )
    heads.standardize.fit(features[data.splits["train"].items()])
    return heads


def finish(
    model: StructuredRewardModel,
    features: Tensor,
    data: RewardData,
    config: RewardTrainingConfig,
    result: RewardTrainingResult,
    out_of_fold: Tensor | None,
) -> None:
    """Anchor levels, train and calibrate confidences, measure, and note it all in the config.

    Args:
        model: with trained heads, on any device.
        features: [N, H] of all items.
        data: split.
        config: settings.
        result: gets the figures.
        out_of_fold: [N, D] anchored logits of the training items by heads that never saw them;
            None (a backbone that has seen them) takes half of the validation split in their place.
    """
    device = model.score.standardize.mean.device
    parts = (model.score, model.confidence_heads)
    for part in parts:
        part.cpu().eval()
    validation = data.splits["validation"]
    with torch.no_grad():
        logits = model.score(features)
        shifts = anchor_shifts(logits, validation) if config.anchor else torch.zeros(1)
        if config.anchor:
            model.score.shift(shifts)
        standard = model.score.standardize(features)
        logits = model.score(features)
    result.anchors = shifts.tolist()
    checked = Judged.of(standard, logits, validation)
    if out_of_fold is None:
        first, second = _halves(validation, data.prompts)
        learned, checked = (Judged.of(standard, logits, part) for part in (first, second))
    else:
        learned = Judged.of(standard, out_of_fold, data.splits["train"])
    train_confidence(model.confidence_heads, learned, checked, config)
    with torch.no_grad():
        before = model.from_features(features).confidence
    if config.calibrate:
        calibrate(model.confidence_heads, checked)
    with torch.no_grad():
        result.output = model.from_features(features).require_finite(data.dimensions)
    measure(data, config, result, before)
    describe(model, data, config, result)
    for part in parts:
        part.to(device)


def measure(
    data: RewardData,
    config: RewardTrainingConfig,
    result: RewardTrainingResult,
    before: Tensor | None = None,
) -> None:
    """Fill in the figures of every split and source from the result's scores."""
    out, threshold = result.output, config.gate_threshold
    if out is None:
        return
    for split, examples in data.splits.items():
        if len(examples):
            result.figures[split] = split_figures(out, examples, data.dimensions, threshold, before)
    held = data.splits["test"] if len(data.splits["test"]) else data.splits["validation"]
    result.by_source = source_figures(out, held, data.dimensions, data.sources, threshold)
    scores = out.scores[held.items()]  # pyright: ignore[reportOptionalSubscript]
    result.joint_entropy = joint_entropy_share(scores)
    result.correlation = correlation(scores)


def describe(
    model: StructuredRewardModel,
    data: RewardData,
    config: RewardTrainingConfig,
    result: RewardTrainingResult,
) -> None:
    """Note in the model's config what its card says."""
    model.config.gate_threshold = config.gate_threshold
    model.config.calibration = {
        title: {name: plain(one) for name, one in result.figures[split].items()}
        for split, title in REPORTED.items()
        if split in result.figures
    }
    model.config.training = {
        **model.config.training,
        "sources": ", ".join(data.sources),
        "pairs": len(data.splits["train"].pairs),
        "ratings": len(data.splits["train"].rated),
        "trained": "heads" if config.tuning.backbone == "frozen" else config.tuning.backbone,
        "seed": config.seed,
    }


def unseen_distance(model: StructuredRewardModel, features: Tensor, data: RewardData) -> float:
    """How far the unseen sources' features lie from the training items', which have 1."""
    standard = model.score.standardize(features)
    return feature_distance(standard, data.splits["unseen"].items())


def _halves(examples: Examples, prompts: list[str]) -> tuple[Examples, Examples]:
    """Two halves of a split, no prompt in both."""
    items = examples.items().tolist()
    names = sorted({prompts[i] for i in items}, key=lambda p: hashlib.sha256(p.encode()).digest())
    first = set(names[: (len(names) + 1) // 2])
    inside = torch.tensor([prompt in first for prompt in prompts])
    return examples.where_items(inside), examples.where_items(~inside)


def _state_folder(
    root: Path, model: StructuredRewardModel, data: RewardData, config: RewardTrainingConfig
) -> Path:
    """Where checkpoints of exactly this training are kept."""
    rows = [[len(prompt) for prompt in data.prompts]]
    parts = [
        data.fingerprint(),
        feature_key(model, rows),
        json.dumps(asdict(config), sort_keys=True),
        f"{model.config.head_hidden_size} {model.config.head_dropout}",
    ]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return ensure_folder(root / key)
