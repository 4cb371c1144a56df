"""Training heads: what is learned, when it stops, and going on after a kill."""

from __future__ import annotations

import copy

import pytest
import torch

from hf_glm_curriculum.errors import ModelError, StateError
from hf_glm_curriculum.rewards.head_training import train_heads
from hf_glm_curriculum.rewards.heads import RewardHeads
from hf_glm_curriculum.rewards.measures import pairwise_accuracy
from hf_glm_curriculum.rewards.reward_data import reward_data
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows, tiny_data


@pytest.fixture
def data():
    return tiny_data(40)


def features_of(data) -> torch.Tensor:
    """Counts of letters: what a good backbone would know."""
    letters = "az19bcdefg"
    rows = [[text.count(letter) for letter in letters] for text in data.responses]
    return torch.tensor(rows, dtype=torch.float32) + 0.1 * torch.randn(len(rows), len(letters))


def fresh(features) -> RewardHeads:
    torch.manual_seed(0)
    heads = RewardHeads(features.shape[1], DIMENSIONS, hidden=16, dropout=0.1)
    heads.standardize.fit(features)
    return heads


def config(**settings) -> RewardTrainingConfig:
    return RewardTrainingConfig(
        **{"epochs": 6, "batch_size": 16, "learning_rate": 5e-3, **settings}
    )


def accuracy(heads, features, examples, column) -> float | None:
    with torch.no_grad():
        logits = heads(features)[:, column]
    pairs = examples.pairs[examples.pair_dimension == column]
    return pairwise_accuracy(logits[pairs[:, 0]], logits[pairs[:, 1]])


def test_heads_learn_their_own_dimension(data):
    features = features_of(data)
    heads = fresh(features)
    splits = data.splits
    run = (splits["train"], splits["validation"], config(epochs=30))
    state = train_heads(heads, features, *run)
    assert state.history[-1]["loss"] < 0.5 * state.history[0]["loss"]
    for column in range(2):
        assert accuracy(heads, features, splits["test"], column) == 1.0


def test_ratings_alone_are_learned(data):
    data = reward_data((), rating_rows(80), DIMENSIONS).split(0.2, 0.2, 0)
    features = features_of(data)
    heads = fresh(features)
    train_heads(heads, features, data.splits["train"], data.splits["validation"], config(epochs=80))
    test = data.splits["test"]
    with torch.no_grad():
        scores = torch.sigmoid(heads(features))[test.rated]
    known = ~torch.isnan(test.ratings)
    assert (scores[known] - test.ratings[known]).abs().mean() < 0.15


def test_each_dimension_keeps_its_own_best_epoch(data):
    features = features_of(data)
    # One dimension of noise cannot get better for long, the other can.
    examples = data.splits["train"]
    flip = (torch.arange(len(examples.pairs)) % 2 == 0) & (examples.pair_dimension == 1)
    examples.pairs[flip] = examples.pairs[flip].flip(1)
    heads = fresh(features)
    state = train_heads(
        heads, features, examples, data.splits["validation"], config(epochs=12, patience=12)
    )
    by_epoch = torch.tensor([[e[f"eval_loss_{n}"] for n in DIMENSIONS] for e in state.history])
    torch.testing.assert_close(state.best, by_epoch.min(0).values, check_dtype=False)
    assert (state.best_epoch == by_epoch.argmin(0)).all()
    assert int(state.best_epoch[0]) > 5


def test_training_stops_when_no_dimension_gets_better(data):
    features = torch.randn(len(data.prompts), 4)
    heads = fresh(features)
    state = train_heads(
        heads,
        features,
        data.splits["train"],
        data.splits["validation"],
        config(epochs=60, patience=2, learning_rate=0.05),
    )
    assert state.epoch < 30
    assert state.epoch - 1 - int(state.best_epoch.max()) == 2


def test_a_killed_training_goes_on_bit_for_bit(data, tmp_path):
    features = features_of(data)
    train, validation = data.splits["train"], data.splits["validation"]
    straight = fresh(features)
    whole = train_heads(straight, features, train, validation, config())

    def die(epoch, metrics):
        if epoch == 3:
            raise KeyboardInterrupt

    file = tmp_path / "heads.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_heads(
            fresh(features), features, train, validation, config(), checkpoint=file, on_epoch=die
        )
    epochs = []
    resumed = fresh(features)
    torch.rand(7)  # another process has other random numbers
    state = train_heads(
        resumed,
        features,
        train,
        validation,
        config(),
        checkpoint=file,
        on_epoch=lambda epoch, metrics: epochs.append(epoch),
    )
    assert epochs == [4, 5, 6]
    assert state.history == whole.history
    for one, two in zip(resumed.state_dict().values(), straight.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_a_checkpoint_of_another_shape_is_refused(data, tmp_path):
    features = features_of(data)
    splits, file = data.splits, tmp_path / "heads.safetensors"
    run = (splits["train"], splits["validation"], config(epochs=1))
    train_heads(fresh(features), features, *run, checkpoint=file)
    with pytest.raises(StateError, match="of another training"):
        train_heads(fresh(features[:, :5]), features[:, :5], *run, checkpoint=file)


def test_a_loss_that_is_not_finite_is_named(data):
    features = features_of(data)
    heads = fresh(features)
    features[data.splits["train"].items()[0]] = float("nan")
    with pytest.raises(ModelError, match="lower learning_rate"):
        train_heads(heads, features, data.splits["train"], data.splits["validation"], config())


def test_training_leaves_the_callers_random_numbers_alone(data):
    features = features_of(data)
    heads = fresh(features)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train_heads(
        copy.deepcopy(heads), features, data.splits["train"], data.splits["validation"], config()
    )
    assert torch.equal(torch.rand(1), expected)


def test_a_constant_coordinate_says_nothing():
    features = torch.cat([torch.randn(20, 3) * 5 + 2, torch.full((20, 1), 7.0)], dim=1)
    heads = fresh(features)
    standard = heads.standardize(features)
    torch.testing.assert_close(standard[:, :3].mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(standard[:, :3].std(0, correction=0), torch.ones(3))
    assert (standard[:, 3] == 0).all()


def test_a_dimension_without_validation_keeps_its_last_epoch(data):
    features = features_of(data)
    validation = data.splits["validation"]
    some = validation.select(validation.pair_dimension == 0, torch.zeros(0, dtype=torch.bool))
    heads = fresh(features)
    train_heads(heads, features, data.splits["train"], some, config(epochs=20, patience=20))
    assert accuracy(heads, features, data.splits["test"], 1) == 1.0


def test_mixed_rows_and_one_sided_data():
    rows = preference_rows(10)
    data = reward_data([r for r in rows if r["dimension"] == "logic"], rating_rows(40), DIMENSIONS)
    data = data.split(0.2, 0.2, 0)
    features = features_of(data)
    heads = fresh(features)
    state = train_heads(
        heads, features, data.splits["train"], data.splits["validation"], config(epochs=3)
    )
    assert torch.isfinite(state.best).all()
