"""Weights, suspicion and life vectors: pure functions over per-sample histories.

Shape letters: M samples of a step, R reference samples, K history length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.signals.slopes import mean_valid, robust_scale, slope, std_valid

EPSILON = 1e-8
REFERENCE_ROWS = 2048
"""Ledger rows the population is estimated from; a fixed number keeps a step's cost flat."""


TEXT_SUSPICION = 1.9
"""Suspicion of a row that its own text speaks against as much as a text can."""

READINGS = ("onset", "opening", "first", "closing", "loss")
"""Ledger means that suspicion reads."""

LEAST_POPULATION = 16
"""Samples that must have been seen before one of them may be called unlike the rest."""


def relative_progress(losses: Tensor) -> Tensor:
    """Relative progress r = −b / mean loss: the share of its loss a sample sheds per visit.

    Args:
        losses: [M, K] float32 nats, oldest first, NaN where absent.

    Returns:
        [M]; NaN with fewer than two losses.
    """
    return -slope(losses) / (mean_valid(losses) + EPSILON)


def instability(grad_norms: Tensor) -> Tensor:
    """Instability s = std(g) / (mean(g) + 1e-8) (article 1, §3.1), [M]; NaN under two norms."""
    return std_valid(grad_norms) / (mean_valid(grad_norms) + EPSILON)


@dataclass(frozen=True)
class Population:
    """Robust location and scale of the samples seen so far; 0-dim tensors, NaN while unknown."""

    progress: tuple[Tensor, Tensor]
    """Median of r and 1.48 × its median absolute deviation."""
    instability: Tensor
    """Median of s."""
    readings: dict[str, tuple[Tensor, Tensor]]
    """Median and upper deviation of each of ``READINGS``, nats."""
    loss_median: Tensor
    """Median of the mean loss, nats."""
    mean_weight: Tensor
    """Token-weighted mean raw weight of samples in training; 1 while unknown."""


def progress_weight(
    losses: Tensor, grad_norms: Tensor, population: Population, floor: float, cap: float
) -> Tensor:
    """Weigh by progress relative to the population.

    w = clip(1 + tanh((r − median r) / (1.48·MAD r + ε)) − ½(s − median s), floor, cap).

    A term without an observation yet (fewer than two visits, or a population that has none)
    is left out, so that a sample nobody knows anything of weighs 1.

    Args:
        losses: [M, K] losses including the current visit, oldest first, NaN where absent.
        grad_norms: [M, K] gradient norms before the current visit.
        population: statistics r and s are compared with.
        floor: smallest weight.
        cap: largest weight.

    Returns:
        [M] float32.
    """
    median, deviation = population.progress
    # The floor on the deviation keeps identical samples (MAD 0) from being split by rounding.
    z = (relative_progress(losses) - median) / deviation.clamp(min=1e-6)
    excess = instability(grad_norms) - population.instability
    weight = 1 + torch.tanh(z).nan_to_num(0.0) - 0.5 * excess.nan_to_num(0.0)
    return weight.clamp(floor, cap)


def article_weight(losses: Tensor, grad_norms: Tensor, floor: float, cap: float) -> Tensor:
    """The article's weight: clip(1.5 − 10·b + 0.5·(1 − s), floor, cap); 1 before visit 3.

    Source: article 1, §3.1. Kept for comparison: with b in nats per visit nearly every sample
    sits at the cap.

    Args:
        losses: [M, K] losses including the current visit, oldest first, NaN where absent.
        grad_norms: [M, K] gradient norms, aligned likewise; s counts as 0 under two of them.
        floor: smallest weight.
        cap: largest weight.

    Returns:
        [M] float32.
    """
    weight = 1.5 - 10 * slope(losses) + 0.5 * (1 - instability(grad_norms).nan_to_num(0.0))
    known = torch.isfinite(losses).sum(1) >= 3
    return torch.where(known, weight.clamp(floor, cap), torch.ones_like(weight))


def first_visit_weight(suspicion: Tensor, floor: float) -> Tensor:
    """Weight before a sample has a history: 1, less for an answer unlike the population's.

    w = max(floor, 1 − tanh(max(0, z − 1))) with z the suspicion of this visit. It only takes
    away: an easy answer earns nothing.

    Args:
        suspicion: [M] deviations above the median; NaN while the population is unknown.
        floor: smallest weight.

    Returns:
        [M] float32.
    """
    return (1 - torch.tanh((suspicion - 1).clamp(min=0)).nan_to_num(0.0)).clamp(min=floor)


def deviations(values: Tensor, scale: tuple[Tensor, Tensor]) -> Tensor:
    """(value − median) / deviation; NaN while the population is unknown."""
    median, deviation = scale
    return (values - median) / deviation.clamp(min=1e-6)


def with_text(suspicion: Tensor, reading: Tensor) -> Tensor:
    """Raise the suspicion of rows that their own text speaks against.

    max(z, 1.9 · reading): high in the ranking, below the threshold at which suspicion alone moves
    a sample, because of two conflicting answers one is right. Unknown stays unknown.

    Args:
        suspicion: [M] deviations above the median.
        reading: [M] from ``text_readings``, in [0, 1].
    """
    return torch.maximum(suspicion, TEXT_SUSPICION * reading)


def suspicion(readings: Mapping[str, Tensor], population: Population) -> Tensor:
    """How unlike the rest an answer looks, in deviations above the median.

    The largest of three, each free with training and each a mean of two deviations:

    - onset and opening loss: an answer that does not follow from its prompt;
    - first and opening loss: an answer in another language or form;
    - closing and mean loss: an answer that stops where none should.

    The middle of an answer is left out: given its own beginning, a wrong answer goes on as
    predictably as a right one. Ablation: ``benchmarks/bench_noise_detection.py``.

    Args:
        readings: [M] nats for each of ``READINGS``; means over the sample's visits, or one visit.
        population: location and upper scale of each.

    Returns:
        [M] float32; NaN for samples or populations without observations.
    """
    z = {name: deviations(readings[name], population.readings[name]) for name in READINGS}
    pairs = (("onset", "opening"), ("first", "opening"), ("closing", "loss"))
    found = [(z[one] + z[two]) / 2 for one, two in pairs]
    return torch.stack(found).amax(0)


def upper_scale(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Median and upper deviation, (95th percentile − median) / 1.6449, of the samples seen.

    Token losses are skewed: a scale of the lower half would call a tenth of clean data extreme.

    Args:
        values: [R] float32.
        seen: [R] bool.

    Returns:
        Two 0-dim tensors, NaN until ``LEAST_POPULATION`` samples were seen; the second is the
        standard deviation of a normal sample.
    """
    known = torch.where(seen & torch.isfinite(values), values, torch.nan)
    enough = torch.isfinite(known).sum() >= LEAST_POPULATION
    known = torch.where(enough, known, torch.nan)
    median = torch.nanmedian(known)
    ordered = known.sort().values  # NaN sorts last
    rank = (0.95 * (torch.isfinite(known).sum() - 1)).round().long().clamp(min=0)
    return median, (ordered.gather(0, rank.unsqueeze(0)).squeeze(0) - median) / 1.6449


def life_vector(losses: Tensor, grad_norms: Tensor, drift: Tensor) -> Tensor:
    """Magnitudes of a sample's three movements, before scaling.

    Args:
        losses: [M, K] losses, oldest first, NaN where absent.
        grad_norms: [M, K] gradient norms likewise.
        drift: [M] last drift.

    Returns:
        [M, 3]: |relative slope of the loss|, |relative slope of the gradient norm|, |drift|; NaN
        where a component is unknown.
    """
    grad_slope = slope(grad_norms) / (mean_valid(grad_norms) + EPSILON)
    return torch.stack([relative_progress(losses), grad_slope, drift], dim=1).abs()


def life_norm(vector: Tensor, scale: Tensor, used: tuple[bool, bool, bool]) -> Tensor:
    """‖v / scale‖ over the components in use.

    Args:
        vector: [M, 3] from :func:`life_vector`.
        scale: [3] medians frozen after the warm-up visits.
        used: which components count.

    Returns:
        [M] length; infinite where a component in use is unknown, so that nothing is concluded.
    """
    keep = torch.tensor(used, device=vector.device)
    ratio = (vector / (scale + EPSILON)).nan_to_num(torch.inf)
    return torch.where(keep, ratio, 0.0).square().sum(1).sqrt()


def token_weighted_mean(weight: Tensor, n_tokens: Tensor, keep: Tensor) -> Tensor:
    """Σ w·n / Σ n over the samples to keep, [R] each; 1 where there is none."""
    return mean_of_sums(*token_sums(weight, n_tokens, keep))


def token_sums(weight: Tensor, n_tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Σ w·n and Σ n over the samples to keep, [R] each."""
    tokens = torch.where(keep, n_tokens, 0).to(weight)
    return (torch.where(keep, weight, 0) * tokens).sum(), tokens.sum()


def mean_of_sums(weighted: Tensor, tokens: Tensor) -> Tensor:
    """The token-weighted mean out of :func:`token_sums`; 1 where there is none."""
    mean = weighted / tokens.clamp(min=1)
    return torch.where((tokens > 0) & (mean > 0), mean, torch.ones_like(mean))


def reference_scale(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Robust location and scale of the reference samples that were seen."""
    return robust_scale(torch.where(seen, values, torch.nan))
