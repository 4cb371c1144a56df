"""Losses against hand cases; drawing every class equally often."""

from __future__ import annotations

import math

import pytest
import torch

from hf_glm_curriculum.rewards.head_training import local
from hf_glm_curriculum.rewards.objective import (
    balanced_order,
    classes,
    dimension_losses,
    pair_losses,
    rating_losses,
)
from hf_glm_curriculum.rewards.reward_data import reward_data
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows


def test_bradley_terry_by_hand():
    losses = pair_losses(torch.tensor([2.0, 0.0]), torch.tensor([0.0, 0.0]))
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-2)), math.log(2)])
    shifted = pair_losses(torch.tensor([102.0]), torch.tensor([100.0]))
    assert float(shifted) == pytest.approx(float(losses[0])), "levels are free without the center"
    centered = pair_losses(torch.tensor([3.0]), torch.tensor([1.0]), center_weight=0.1)
    assert float(centered) == pytest.approx(math.log(1 + math.exp(-2)) + 1.6)


def test_ratings_that_are_missing_cost_nothing():
    logits = torch.zeros(2, 2, requires_grad=True)
    ratings = torch.tensor([[1.0, float("nan")], [float("nan"), float("nan")]])
    losses = rating_losses(logits, ratings)
    torch.testing.assert_close(losses, torch.tensor([[math.log(2), 0.0], [0.0, 0.0]]))
    losses.sum().backward()
    assert logits.grad.tolist() == [[-0.5, 0.0], [0.0, 0.0]]


def test_a_pair_moves_its_own_dimension_only():
    data = reward_data(preference_rows(2), rating_rows(4), DIMENSIONS)
    logits = torch.randn(len(data.prompts), 2, dtype=torch.float64, requires_grad=True)
    examples = data.examples
    sums, counts = dimension_losses(logits, examples, 0.05)
    assert counts.tolist() == [2 + 2, 2 + 2]
    by_hand = torch.zeros(2, dtype=torch.float64)
    for (chosen, rejected), column in zip(
        examples.pairs.tolist(), examples.pair_dimension.tolist(), strict=True
    ):
        x, y = logits[chosen, column], logits[rejected, column]
        by_hand[column] += -torch.log(torch.sigmoid(x - y)) + 0.05 * (x + y) ** 2
    for item, row in zip(examples.rated.tolist(), examples.ratings, strict=True):
        for column in range(2):
            if not row[column].isnan():
                p = torch.sigmoid(logits[item, column])
                by_hand[column] -= row[column] * p.log() + (1 - row[column]) * (1 - p).log()
    torch.testing.assert_close(sums, by_hand)
    factual = examples.pairs[examples.pair_dimension == 0].flatten()
    sums[0].backward()
    assert logits.grad[factual, 1].abs().max() == 0 and logits.grad[factual, 0].abs().min() > 0


def test_a_batch_is_the_same_examples_over_its_own_items():
    data = reward_data(preference_rows(6), rating_rows(6), DIMENSIONS)
    logits = torch.randn(len(data.prompts), 2)
    part = torch.tensor([0, 7, 3, 13, 16])
    batch, items = local(data.examples, part)
    ratings = data.examples.select(
        torch.isin(torch.arange(12), part), torch.isin(torch.arange(12, 18), part)
    )
    whole = dimension_losses(logits, ratings)
    for one, two in zip(dimension_losses(logits[items], batch), whole, strict=True):
        torch.testing.assert_close(one, two)


def test_classes_are_drawn_equally_often():
    groups = torch.tensor([0] * 90 + [1] * 10)
    order = balanced_order(groups, seed=0, epoch=0)
    assert torch.bincount(groups[order]).tolist() == [50, 50]
    small = torch.bincount(order[groups[order] == 1] - 90)
    assert small.tolist() == [5] * 10, "a small class comes in full before it comes again"
    assert order.tolist() != balanced_order(groups, 0, 1).tolist()
    assert order.tolist() == balanced_order(groups, 0, 0).tolist()


def test_a_large_class_is_seen_in_full_over_epochs():
    groups = torch.tensor([0] * 90 + [1] * 10)
    seen = torch.cat([balanced_order(groups, 3, epoch) for epoch in range(9)])
    counts = torch.bincount(seen[seen < 90], minlength=90)
    assert counts.min() == counts.max() == 5


def test_without_balance_every_example_comes_once():
    order = balanced_order(torch.tensor([0] * 9 + [1]), 0, 0, balanced=False)
    assert sorted(order.tolist()) == list(range(10))


def test_ratings_are_classed_by_dimension_and_side():
    data = reward_data(preference_rows(1), rating_rows(4), DIMENSIONS)
    # pairs 0, 1; ratings: factual high, logic high, factual low, logic low
    assert classes(data.examples, 2).tolist() == [0, 1, 3, 5, 2, 4]
