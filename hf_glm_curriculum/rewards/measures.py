"""How good scores and confidences are: accuracy of pairs, calibration, what a gate catches.

Every function takes one dimension's figures: M statements with a confidence and whether it was
right, or P pairs of logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pairwise_accuracy(chosen: Tensor, rejected: Tensor) -> float | None:
    """Share of pairs [P] whose chosen response has the higher logit, ties counting half."""
    if not len(chosen):
        return None
    return float((chosen > rejected).float().mean() + (chosen == rejected).float().mean() / 2)


def reliability(
    confidence: Tensor, correct: Tensor, bins: int = 10
) -> list[tuple[float, float, int]]:
    """(mean confidence, share right, count) of each bin of equal width that is not empty.

    Args:
        confidence: [M] in [0, 1].
        correct: [M] bool.
        bins: how many.
    """
    found = []
    place = (confidence * bins).long().clamp(0, bins - 1)
    for number in range(bins):
        inside = place == number
        if inside.any():
            mean = float(confidence[inside].mean())
            found.append((mean, float(correct[inside].float().mean()), int(inside.sum())))
    return found


def calibration_error(confidence: Tensor, correct: Tensor, bins: int = 10) -> float | None:
    """Expected calibration error: Σ |share right − mean confidence| · count / M over the bins.

    Naeini et al. 2015; Guo et al. 2017, equation 3.
    """
    if not len(confidence):
        return None
    table = reliability(confidence, correct, bins)
    total = sum(count for *_, count in table)
    return sum(abs(right - mean) * count for mean, right, count in table) / total


def auroc(score: Tensor, positive: Tensor) -> float | None:
    """Chance that a positive has the higher score than a negative, ties counting half."""
    positive = positive.bool()
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return None
    _, inverse, counts = torch.unique(score, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = (last - (counts - 1).double() / 2)[inverse]
    return float((rank[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))


def risk_coverage(
    confidence: Tensor, correct: Tensor, points: int = 20
) -> list[tuple[float, float]]:
    """(coverage, share wrong among what is covered), most confident statements first.

    El-Yaniv and Wiener 2010: what trusting only the confident answers buys.
    """
    if not len(confidence):
        return []
    wrong = (~correct.bool())[torch.argsort(confidence, descending=True, stable=True)]
    risk = wrong.double().cumsum(0) / torch.arange(1, len(wrong) + 1)
    ends = [max(1, round(len(wrong) * (k + 1) / points)) for k in range(points)]
    return [(end / len(wrong), float(risk[end - 1])) for end in sorted(set(ends))]


def flagged_errors(confidence: Tensor, correct: Tensor, threshold: float) -> float | None:
    """Share of the wrong statements whose confidence lies below the threshold."""
    wrong = ~correct.bool()
    return float((confidence[wrong] < threshold).float().mean()) if wrong.any() else None


def joint_entropy_share(scores: Tensor, bins: int = 4) -> float:
    """Entropy of the binned score vectors [N, D] over its maximum, D·log(bins).

    The article's "68 % of the theoretical maximum" (article 1, §2.2) names no bins; with N
    vectors no more than log N can be reached, which the maximum takes into account.
    """
    count, width = scores.shape
    places = (scores * bins).long().clamp(0, bins - 1)
    powers = bins ** torch.arange(width)
    _, counts = torch.unique((places * powers).sum(1), return_counts=True)
    shares = counts.double() / count
    entropy = float(-(shares * shares.log()).sum())
    most = min(width * torch.log(torch.tensor(float(bins))).item(), _log(count))
    return entropy / most if most > 0 else 0.0


def _log(count: int) -> float:
    return float(torch.log(torch.tensor(float(max(count, 1)))))


def correlation(scores: Tensor) -> list[list[float]]:
    """Pearson correlation of the D columns of scores [N, D]."""
    if len(scores) < 2:
        return torch.eye(scores.shape[1]).tolist()
    found = torch.corrcoef(scores.T).reshape(scores.shape[1], -1)
    return torch.nan_to_num(found).tolist()


def mean_of(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
