"""How far a new reward model has moved from the old one, on a fixed set of preferences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from hf_glm_curriculum.errors import DataError, ModelError
from hf_glm_curriculum.rewards.dimensions import dimension_index
from hf_glm_curriculum.rewards.measures import pairwise_accuracy
from hf_glm_curriculum.rewards.scorers import StructuredScorer, scores_of

LARGE_SHIFT = 0.1
"""Change of a dimension's mean score that moves thresholds on levels (0.4, 0.7, the KL gap)."""


@dataclass(frozen=True)
class DimensionDrift:
    """One dimension, old model against new, over every text of the fixed set."""

    mean_old: float
    """Mean score of the old model."""

    mean_new: float
    """Mean score of the new model."""

    std_old: float
    """Standard deviation of the old model's scores."""

    std_new: float
    """Standard deviation of the new model's scores."""

    distance: float
    """Kolmogorov–Smirnov distance of the two distributions of scores, in [0, 1]."""

    rank_correlation: float | None
    """Spearman correlation of old and new scores; None where one of them is constant."""

    open_old: float
    """Share of texts of which the old model is at least as confident as the threshold."""

    open_new: float
    """The same of the new model."""

    pairs: int
    """Preferences of the fixed set that are about this dimension."""

    accuracy_old: float | None
    """Share of them that the old model orders rightly, ties half; None without a pair."""

    accuracy_new: float | None
    """The same of the new model."""

    flipped: float | None
    """Share of them that the two models order differently."""

    @property
    def shift(self) -> float:
        """Change of the mean score."""
        return self.mean_new - self.mean_old


@dataclass(frozen=True)
class DriftReport:
    """What changed between two reward models."""

    dimensions: dict[str, DimensionDrift]
    """By name."""

    def losses(self, tolerance: float) -> list[str]:
        """Dimensions whose accuracy fell by more than the tolerance."""
        return [
            name
            for name, one in self.dimensions.items()
            if one.accuracy_old is not None
            and one.accuracy_new is not None
            and one.accuracy_old - one.accuracy_new > tolerance
        ]

    def warnings(self, tolerance: float = 0.02) -> list[str]:
        """What a user should know before taking the new model, a line each."""
        found = []
        for name, one in self.dimensions.items():
            if abs(one.shift) > LARGE_SHIFT:
                found.append(
                    f"{name}: the mean score moved by {one.shift:+.2f}; thresholds on levels mean "
                    "something else now"
                )
            if name in self.losses(tolerance):
                found.append(
                    f"{name}: accuracy on the fixed set fell from {one.accuracy_old:.3f} to "
                    f"{one.accuracy_new:.3f}"
                )
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: {**asdict(d), "shift": d.shift} for name, d in self.dimensions.items()}


def compare_reward_models(
    old: StructuredScorer,
    new: StructuredScorer,
    fixed: Sequence[Mapping[str, Any]],
    *,
    threshold: float = 0.85,
    score_options: Mapping[str, Any] | None = None,
) -> DriftReport:
    """Score a fixed set of preferences with two models of the same dimensions.

    Args:
        old: the model in use.
        new: the one that may take its place.
        fixed: rows with `prompt`, `chosen`, `rejected` and `dimension`, never trained on.
        threshold: of the gate.
        score_options: handed to `score_texts` of both.

    Raises:
        ModelError: if the models score different dimensions.
        DataError: if there is no row, or one lacks a field.
        ConfigError: if a row names an unknown dimension.
    """
    names = tuple(old.config.dimensions)
    if tuple(new.config.dimensions) != names:
        raise ModelError(
            f"new: scores {', '.join(new.config.dimensions)}, the old model {', '.join(names)}; "
            "compare models of the same dimensions"
        )
    if not fixed:
        raise DataError("fixed: needs at least one preference to compare on, got none")
    prompts, responses, columns = _texts(fixed, names)
    options = dict(score_options or {})
    outputs = [model.score_texts(prompts, responses, **options) for model in (old, new)]
    scores, confidence = zip(*(scores_of(out) for out in outputs), strict=True)
    logits = [cast(Tensor, out.logits) for out in outputs]
    found = {}
    for column, name in enumerate(names):
        about = torch.tensor([c == column for c in columns])
        ordered = [_margins(part[:, column])[about] for part in logits]
        found[name] = _drift(
            [part[:, column].double().cpu() for part in scores],
            [float((part[:, column] >= threshold).float().mean()) for part in confidence],
            ordered,
        )
    return DriftReport(found)


def distribution_distance(one: Tensor, other: Tensor) -> float:
    """Kolmogorov–Smirnov distance: the largest gap between two empirical distributions.

    Args:
        one: [N] numbers.
        other: [M] numbers.
    """
    places = torch.cat([one, other]).sort().values
    shares = [
        torch.searchsorted(sample.sort().values, places, right=True).double() / len(sample)
        for sample in (one, other)
    ]
    return float((shares[0] - shares[1]).abs().max())


def rank_correlation(one: Tensor, other: Tensor) -> float | None:
    """Spearman correlation with average ranks for ties; None where one sample is constant."""
    ranks = torch.stack([_ranks(one), _ranks(other)])
    if bool((ranks.std(dim=1, correction=0) == 0).any()):
        return None
    return float(torch.corrcoef(ranks)[0, 1])


def _drift(scores: list[Tensor], opened: list[float], margins: list[Tensor]) -> DimensionDrift:
    old, new = scores
    zero = torch.zeros_like(margins[0])
    right = [pairwise_accuracy(margin, zero) for margin in margins]
    disagree = (margins[0].sign() != margins[1].sign()).double()
    return DimensionDrift(
        mean_old=float(old.mean()),
        mean_new=float(new.mean()),
        std_old=float(old.std(correction=0)),
        std_new=float(new.std(correction=0)),
        distance=distribution_distance(old, new),
        rank_correlation=rank_correlation(old, new),
        open_old=opened[0],
        open_new=opened[1],
        pairs=len(disagree),
        accuracy_old=right[0],
        accuracy_new=right[1],
        flipped=float(disagree.mean()) if len(disagree) else None,
    )


def _texts(
    fixed: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> tuple[list[str], list[str], list[int]]:
    """Prompts and responses with chosen and rejected in turn, and each pair's column."""
    prompts, responses, columns = [], [], []
    for number, row in enumerate(fixed):
        for field in ("prompt", "chosen", "rejected", "dimension"):
            if not isinstance(row.get(field), str):
                raise DataError(
                    f"fixed, row {number}: {field} must be text, got {row.get(field)!r}; give a "
                    "dimension preference"
                )
        prompts += [row["prompt"]] * 2
        responses += [row["chosen"], row["rejected"]]
        columns.append(dimension_index(row["dimension"], names, f"fixed, row {number}"))
    return prompts, responses, columns


def _margins(logits: Tensor) -> Tensor:
    """Chosen less rejected of each pair, [P]."""
    return logits[0::2].double().cpu() - logits[1::2].double().cpu()


def _ranks(values: Tensor) -> Tensor:
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1).double() / 2)[inverse]
