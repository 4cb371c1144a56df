"""The loss of a reward model, and the order in which examples are drawn.

Letters: N items, P pairs, R rated responses, D dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hf_glm_curriculum.rewards.reward_data import Examples


def pair_losses(chosen: Tensor, rejected: Tensor, center_weight: float = 0.0) -> Tensor:
    """Bradley–Terry: −log σ(chosen − rejected) + center_weight·(chosen + rejected)²; [P] → [P].

    Ouyang et al. 2022, equation 1. A preference fixes differences only; the second term (Eisenstein
    et al. 2023, §3.1, and TRL's `center_rewards_coefficient`) keeps levels from drifting apart
    between prompts.
    """
    loss = -functional.logsigmoid(chosen - rejected)
    return loss + center_weight * (chosen + rejected).square()


def rating_losses(logits: Tensor, ratings: Tensor) -> Tensor:
    """Binary cross-entropy of σ(logits) against ratings in [0, 1]; a NaN rating costs nothing.

    Args:
        logits: [R, D].
        ratings: [R, D], NaN where a dimension was not rated.

    Returns:
        [R, D], 0 where nothing was rated.
    """
    known = ~torch.isnan(ratings)
    target = torch.where(known, ratings, torch.zeros_like(ratings))
    loss = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return torch.where(known, loss, torch.zeros_like(loss))


def dimension_losses(
    logits: Tensor, examples: Examples, center_weight: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Sum of the losses in each dimension, and of how many examples.

    Args:
        logits: [N, D] of the items that `examples` speak of.
        examples: pairs and ratings.
        center_weight: see `pair_losses`.

    Returns:
        Sums [D] and counts [D] float32.
    """
    width = logits.shape[1]
    sums, counts = logits.new_zeros(width), logits.new_zeros(width)
    if len(examples.pairs):
        column = examples.pair_dimension
        chosen = logits[examples.pairs[:, 0], column]
        rejected = logits[examples.pairs[:, 1], column]
        losses = pair_losses(chosen, rejected, center_weight)
        sums = sums.index_add(0, column, losses)
        counts = counts.index_add(0, column, torch.ones_like(losses))
    if len(examples.rated):
        losses = rating_losses(logits[examples.rated], examples.ratings)
        sums = sums + losses.sum(0)
        counts = counts + (~torch.isnan(examples.ratings)).sum(0)
    return sums, counts


def classes(examples: Examples, dimensions: int) -> Tensor:
    """[P + R] int64 classes that are drawn equally often.

    Pairs by dimension; ratings by their first rated dimension and its side of 0.5.
    """
    known = ~torch.isnan(examples.ratings)
    if not len(examples.rated):
        return examples.pair_dimension.clone()
    first = known.int().argmax(1)
    high = examples.ratings.gather(1, first[:, None]).squeeze(1) >= 0.5
    return torch.cat([examples.pair_dimension, dimensions + 2 * first + high.long()])


def balanced_order(groups: Tensor, seed: int, epoch: int, balanced: bool = True) -> Tensor:
    """Positions [M] of one epoch, every class equally often; the same for the same seed and epoch.

    A class smaller than its share comes in full and then again in a new order; one that is larger
    goes on in the next epoch where it stopped.

    Args:
        groups: [M] int64 class of each example.
        seed: of the run.
        epoch: counted from 0.
        balanced: False draws each example once.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    total = len(groups)
    if not balanced:
        return torch.randperm(total, generator=generator)
    names = torch.unique(groups)
    share = -(-total // len(names))
    drawn = [
        _endless((groups == name).nonzero().flatten(), epoch * share, share, seed, int(name))
        for name in names
    ]
    order = torch.cat(drawn)
    return order[torch.randperm(len(order), generator=generator)]


def _endless(members: Tensor, start: int, count: int, seed: int, name: int) -> Tensor:
    """Draws `start` … `start + count` of an endless row of permutations of the members."""
    size = len(members)
    found = []
    for turn in range(start // size, (start + count - 1) // size + 1):
        generator = torch.Generator().manual_seed((seed * 1009 + name) * 1_000_003 + turn)
        found.append(members[torch.randperm(size, generator=generator)])
    begin = start - (start // size) * size
    return torch.cat(found)[begin : begin + count]
