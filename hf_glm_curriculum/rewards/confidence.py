"""Confidence: learned from the heads' mistakes on held-out folds, then calibrated.

Letters: N items, H features, D dimensions, M statements (item, dimension, right or wrong).
"""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.heads import ConfidenceHeads, RewardHeads
from hf_glm_curriculum.rewards.levels import anchor_shifts
from hf_glm_curriculum.rewards.reward_data import Examples
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from hf_glm_curriculum.storage import load_tensors, save_tensors

logger = logging.getLogger(__name__)

_STEPS = 20


@dataclass
class Judged:
    """What heads said of responses they were not trained on.

    Attributes:
        features: [M, H] standardised features.
        logits: [M, D] anchored logits.
        dimension: [M] int64 which of them was judged.
        correct: [M] bool whether it was right.
    """

    features: Tensor
    logits: Tensor
    dimension: Tensor
    correct: Tensor

    @classmethod
    def of(cls, features: Tensor, logits: Tensor, examples: Examples) -> Judged:
        """Judge logits [N, D] by what examples say; features [N, H] are standardised."""
        levels = examples.levels()
        correct = levels.correct(torch.sigmoid(logits))
        return cls(features[levels.item], logits[levels.item], levels.dimension, correct)


def fold_of(prompts: Sequence[str], folds: int, seed: int) -> Tensor:
    """[N] int64 fold of each item; items of one prompt are in one fold."""
    found = []
    for prompt in prompts:
        digest = hashlib.sha256(f"fold {seed}\0{prompt}".encode("utf-8", "replace")).digest()
        found.append(int.from_bytes(digest[:8], "big") % folds)
    return torch.tensor(found, dtype=torch.int64)


def held_out_logits(
    fresh: RewardHeads,
    features: Tensor,
    prompts: Sequence[str],
    train: Examples,
    validation: Examples,
    config: RewardTrainingConfig,
    folder: Path | None = None,
) -> Tensor:
    """[N, D] anchored logits of training items by heads that never saw their prompts.

    Args:
        fresh: heads as they were before training, standardised; copied for every fold.
        features: [N, H] of all items.
        prompts: [N] of all items.
        train: the examples to cut into folds.
        validation: examples that every fold stops and is anchored by.
        config: settings.
        folder: keeps every fold's logits, so that a killed run need not repeat them.

    Returns:
        NaN for items of no training example.
    """
    fold = fold_of(prompts, config.folds, config.seed)
    found = torch.full((len(features), len(fresh.heads)), float("nan"))
    with progress(config.folds, "Held-out folds") as bar:
        for number in range(config.folds):
            file = None if folder is None else folder / f"fold-{number}.safetensors"
            inside = torch.zeros(len(features), dtype=torch.bool)
            inside[train.items()] = True
            inside &= fold == number
            if file is not None and file.exists():
                logits = load_tensors(file)[0]["logits"]
            else:
                rest = train.where_items(fold != number)
                logits = _fold_logits(fresh, features, rest, validation, config, number)
                if file is not None:
                    save_tensors(file, {"logits": logits})
            found[inside] = logits[inside]
            bar.advance()
    return found


def _fold_logits(
    fresh: RewardHeads,
    features: Tensor,
    rest: Examples,
    validation: Examples,
    config: RewardTrainingConfig,
    number: int,
) -> Tensor:
    """[N, D] anchored logits of heads trained without one fold."""
    heads = copy.deepcopy(fresh)
    train_heads(heads, features, rest, validation, config, seed=config.seed + 1 + number)
    with torch.no_grad():
        logits = heads(features)
    return logits + anchor_shifts(logits, validation) if config.anchor else logits


def train_confidence(
    heads: ConfidenceHeads, train: Judged, validation: Judged, config: RewardTrainingConfig
) -> list[float]:
    """Train confidence heads in place to say whether the score was right.

    They start from the score's own margin; each dimension keeps the epoch that was best on the
    validation split, which may be the start.

    Args:
        heads: fresh confidence heads.
        train: from held-out folds.
        validation: the final heads' statements on the validation split.
        config: settings.

    Returns:
        The training loss of each epoch.
    """
    for head in heads.heads.values():
        torch.nn.init.zeros_(head[-1].weight)  # pyright: ignore
        torch.nn.init.zeros_(head[-1].bias)  # pyright: ignore
    optimizer = torch.optim.AdamW(
        heads.parameters(), lr=config.learning_rate, weight_decay=config.confidence_weight_decay
    )
    best = confidence_losses(heads, validation)
    kept, losses, since = copy.deepcopy(heads.state_dict()), [], 0
    for epoch in range(config.confidence_epochs):
        losses.append(_confidence_epoch(heads, train, config, optimizer, epoch))
        found = confidence_losses(heads, validation)
        better = found < best
        best = torch.where(better, found, best)
        _keep(kept, heads, better)
        since = 0 if better.any() else since + 1
        if since > config.patience:
            break
    heads.load_state_dict(kept)
    return losses


def _confidence_epoch(
    heads: ConfidenceHeads,
    train: Judged,
    config: RewardTrainingConfig,
    optimizer: torch.optim.Optimizer,
    epoch: int,
) -> float:
    generator = torch.Generator().manual_seed(config.seed * 6151 + epoch)
    order = torch.randperm(len(train.correct), generator=generator)
    total = 0.0
    for part in order.split(config.batch_size):
        raw = heads.raw(train.features[part], train.logits[part])
        said = raw.gather(1, train.dimension[part, None]).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(said, train.correct[part].float())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(part)
    return total / max(1, len(order))


def confidence_losses(heads: ConfidenceHeads, judged: Judged) -> Tensor:
    """[D] mean binary cross-entropy of uncalibrated confidences; inf where nothing is judged."""
    with torch.no_grad():
        raw = heads.raw(judged.features, judged.logits)
    said = raw.gather(1, judged.dimension[:, None]).squeeze(1)
    losses = functional.binary_cross_entropy_with_logits(
        said, judged.correct.float(), reduction="none"
    )
    found = torch.full((raw.shape[1],), float("inf"))
    for column in range(raw.shape[1]):
        inside = judged.dimension == column
        if inside.any():
            found[column] = losses[inside].mean()
    return found


def _keep(kept: dict[str, Tensor], heads: ConfidenceHeads, better: Tensor) -> None:
    """Copy the weights of the dimensions that are better than ever."""
    for column, name in enumerate(heads.heads):
        if better[column]:
            kept["slope"][column] = heads.slope.detach()[column]
            for key, value in heads.heads[name].state_dict().items():
                kept[f"heads.{name}.{key}"] = value.detach().clone()


def calibrate(heads: ConfidenceHeads, judged: Judged) -> None:
    """Fit temperature and offset of every dimension on statements not trained on.

    σ((raw + offset) / temperature) with the least binary cross-entropy (Platt 1999; Guo et al.
    2017 without the offset, which a binary confidence needs where its base rate is off), drawn
    towards no change by as much as one statement would. Where all statements are right, or all
    wrong, that alone keeps the figures finite.
    """
    with torch.no_grad():
        raw = heads.raw(judged.features, judged.logits)
    for column, name in enumerate(heads.heads):
        inside = judged.dimension == column
        if not inside.any():
            logger.warning("%s: nothing to calibrate its confidence on", name)
            continue
        temperature, offset = fit_calibration(raw[inside, column], judged.correct[inside])
        heads.temperature[column], heads.offset[column] = temperature, offset


def fit_calibration(raw: Tensor, correct: Tensor) -> tuple[float, float]:
    """(temperature, offset) of one dimension; raw [M] before the sigmoid, correct [M] bool."""
    values, target = raw.double(), correct.double()
    figures = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # log temperature, offset
    optimizer = torch.optim.LBFGS([figures], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        said = (values + figures[1]) / figures[0].exp()
        fit = functional.binary_cross_entropy_with_logits(said, target, reduction="sum")
        total = (fit + figures.square().sum() / 2) / len(values)
        total.backward()
        return total

    for _ in range(_STEPS):
        optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    log_temperature, offset = figures.detach().tolist()
    return float(torch.tensor(log_temperature).exp()), offset
