"""The figures of a reward model on one split: every dimension's accuracy, calibration and gates.

Letters: N items, D dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.rewards import measures
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.reward_data import Examples, Levels


def split_figures(
    output: StructuredRewardOutput,
    examples: Examples,
    dimensions: tuple[str, ...],
    threshold: float,
    before: Tensor | None = None,
) -> dict[str, dict[str, Any]]:
    """Figures by dimension; a dimension of which nothing is known is left out.

    Args:
        output: of all items, [N, D] each.
        examples: of the split.
        dimensions: names of the columns.
        threshold: confidence from which a gate is open.
        before: [N, D] confidences before calibration.

    Returns:
        Dimension → pairs, statements, pairwise_accuracy, level_accuracy, ece, ece_before, auroc,
        open_share, errors_flagged, mean_chosen, mean_rejected, rating_error, reliability,
        reliability_before, risk_coverage; None where there is nothing to measure.
    """
    levels = examples.levels()
    found = {}
    for column, name in enumerate(dimensions):
        inside = levels.dimension == column
        if inside.any():
            one = _one(output, examples, levels, column, inside, threshold)
            if before is not None:
                one |= _before(before, levels, inside, column, output)
            found[name] = one
    return found


def _one(
    output: Any,
    examples: Examples,
    levels: Levels,
    column: int,
    inside: Tensor,
    threshold: float,
) -> dict[str, Any]:
    correct = levels.correct(output.scores)[inside]
    confidence = output.confidence[levels.item[inside], column]
    pairs = examples.pairs[examples.pair_dimension == column]
    logits, scores = output.logits[:, column], output.scores[:, column]
    chosen, rejected = pairs[:, 0], pairs[:, 1]
    return {
        "pairs": len(pairs),
        "statements": int(inside.sum()),
        "pairwise_accuracy": measures.pairwise_accuracy(logits[chosen], logits[rejected]),
        "level_accuracy": float(correct.float().mean()),
        "ece": measures.calibration_error(confidence, correct),
        "auroc": measures.auroc(confidence, correct),
        "open_share": float((confidence >= threshold).float().mean()),
        "errors_flagged": measures.flagged_errors(confidence, correct, threshold),
        "mean_chosen": _mean(scores[chosen]),
        "mean_rejected": _mean(scores[rejected]),
        "rating_error": _rating_error(output.scores, examples, column),
        "reliability": measures.reliability(confidence, correct),
        "risk_coverage": measures.risk_coverage(confidence, correct),
    }


def _before(
    before: Tensor, levels: Levels, inside: Tensor, column: int, output: Any
) -> dict[str, Any]:
    correct = levels.correct(output.scores)[inside]
    confidence = before[levels.item[inside], column]
    return {
        "ece_before": measures.calibration_error(confidence, correct),
        "reliability_before": measures.reliability(confidence, correct),
    }


def _rating_error(scores: Tensor, examples: Examples, column: int) -> float | None:
    """Mean absolute difference of score and rating."""
    ratings = examples.ratings[:, column]
    known = ~torch.isnan(ratings)
    if not known.any():
        return None
    return _mean((scores[examples.rated[known], column] - ratings[known]).abs())


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def source_figures(
    output: StructuredRewardOutput,
    examples: Examples,
    dimensions: tuple[str, ...],
    sources: list[str],
    threshold: float,
) -> dict[str, dict[str, dict[str, Any]]]:
    """`split_figures` of each source that has examples, without its curves."""
    found = {}
    for number, source in enumerate(sources):
        part = examples.of_sources([number])
        if len(part):
            figures = split_figures(output, part, dimensions, threshold)
            found[source] = {name: plain(one) for name, one in figures.items()}
    return found


def plain(figures: dict[str, Any]) -> dict[str, Any]:
    """The numbers of one dimension, without curves."""
    return {name: value for name, value in figures.items() if not isinstance(value, list)}
