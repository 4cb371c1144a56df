"""What happens to a reward model on sources it was not trained on.

Letters: N items, H features, D dimensions.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.heads import RewardHeads
from hf_glm_curriculum.rewards.levels import anchor_shifts
from hf_glm_curriculum.rewards.measures import pairwise_accuracy
from hf_glm_curriculum.rewards.reward_data import Examples, RewardData
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig

LOST = 0.10
"""Pairwise accuracy a source may lose against the others before it is flagged."""


def feature_distance(standard: Tensor, items: Tensor) -> float:
    """Mean square of standardised features [N, H] over some items: 1 for the training items.

    Above 1 the responses lie outside what the heads were fitted on.
    """
    return float(standard[items].square().mean()) if len(items) else float("nan")


def leave_one_source_out(
    fresh: RewardHeads, features: Tensor, data: RewardData, config: RewardTrainingConfig
) -> dict[str, dict[str, Any]]:
    """Train without each source and evaluate on it: "source" → dimension → figures.

    Only sources beside which their dimension has another one can be left out. Heads are trained
    on the training split of the other sources, stopped and anchored on their validation split.

    Args:
        fresh: heads before training, standardised.
        features: [N, H] of all items.
        data: split.
        config: settings.

    Returns:
        For each such source: pairs, pairwise_accuracy and level_accuracy on all its examples.
    """
    train, validation = data.splits["train"], data.splits["validation"]
    sources = [s for s in range(len(data.sources)) if _replaceable(train, s)]
    found: dict[str, dict[str, Any]] = {}
    with progress(len(sources), "Leaving sources out") as bar:
        for source in sources:
            rest = set(range(len(data.sources))) - {source}
            heads = copy.deepcopy(fresh)
            part, check = train.of_sources(rest), validation.of_sources(rest)
            train_heads(heads, features, part, check, config)
            with torch.no_grad():
                logits = heads(features)
            logits = logits + anchor_shifts(logits, check)
            name = data.sources[source]
            found[name] = _accuracies(logits, data.examples.of_sources([source]), data.dimensions)
            bar.advance()
    return found


def _replaceable(train: Examples, source: int) -> bool:
    """Whether every dimension that a source trains has another source."""
    mine = set(train.of_sources([source]).levels().dimension.tolist())
    others = set(train.pair_source.tolist() + train.rated_source.tolist()) - {source}
    return bool(mine) and mine <= set(train.of_sources(others).levels().dimension.tolist())


def _accuracies(logits: Tensor, examples: Examples, dimensions: tuple[str, ...]) -> dict[str, Any]:
    levels = examples.levels()
    correct = levels.correct(torch.sigmoid(logits))
    found = {}
    for column, name in enumerate(dimensions):
        inside = levels.dimension == column
        if inside.any():
            pairs = examples.pairs[examples.pair_dimension == column]
            chosen, rejected = logits[pairs[:, 0], column], logits[pairs[:, 1], column]
            found[name] = {
                "pairs": len(pairs),
                "pairwise_accuracy": pairwise_accuracy(chosen, rejected),
                "level_accuracy": float(correct[inside].float().mean()),
            }
    return found


def warnings_of(left_out: dict[str, Any], by_source: dict[str, Any]) -> list[str]:
    """One line for each source and dimension that heads do not carry over to.

    Args:
        left_out: from `leave_one_source_out`.
        by_source: figures by source of heads that were trained on all sources, held-out prompts.
    """
    lines = []
    for source, dimensions in left_out.items():
        for name, figures in dimensions.items():
            seen = by_source.get(source, {}).get(name, {})
            known, unseen = seen.get("pairwise_accuracy"), figures["pairwise_accuracy"]
            if known is None or unseen is None:
                continue
            if known - unseen > max(LOST, 2 * _deviation(known, seen["pairs"], figures["pairs"])):
                lines.append(
                    f"{name}: {unseen:.0%} of the pairs of {source} right without training on it, "
                    f"{known:.0%} with; expect as much on the next new source"
                )
    return lines


def _deviation(share: float, one: int, two: int) -> float:
    """Standard error of the difference of two shares of `one` and `two` pairs."""
    return math.sqrt(max(share * (1 - share), 0.01) * (1 / max(one, 1) + 1 / max(two, 1)))
