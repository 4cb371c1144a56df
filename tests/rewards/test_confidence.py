"""Levels and confidences: anchored at 0.5, learned from held-out mistakes, calibrated."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum.rewards.confidence import (
    Judged,
    calibrate,
    fit_calibration,
    fold_of,
    held_out_logits,
    train_confidence,
)
from hf_glm_curriculum.rewards.heads import ConfidenceHeads, RewardHeads
from hf_glm_curriculum.rewards.levels import anchor_shift, anchor_shifts
from hf_glm_curriculum.rewards.measures import auroc, calibration_error
from hf_glm_curriculum.rewards.reward_data import reward_data
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows, tiny_data
from tests.rewards.test_head_training import features_of


def test_the_anchor_brings_scores_to_a_mean_of_one_half():
    for logits in (torch.randn(99) * 3 + 40, torch.tensor([-7.0]), torch.tensor([5.0, 5.0])):
        shift = anchor_shift(logits)
        mean = torch.sigmoid(logits.double() + shift).mean()
        assert float(mean) == pytest.approx(0.5, abs=1e-9)


def test_only_dimensions_without_ratings_are_anchored():
    rated = [row | {"factual": None} for row in rating_rows(40) if row["logic"] is not None]
    data = reward_data(preference_rows(20), rated, DIMENSIONS).split(0.3, 0.2, 0)
    logits = torch.randn(len(data.prompts), 2) + 3
    shifts = anchor_shifts(logits, data.splits["validation"])
    pairs = data.splits["validation"].pairs
    own = pairs[data.splits["validation"].pair_dimension == 0]
    mean = torch.sigmoid(logits[own, 0] + shifts[0]).mean()
    assert float(mean) == pytest.approx(0.5, abs=1e-5)
    assert shifts[1] == 0


def test_folds_keep_prompts_together():
    prompts = [f"p{n // 3}" for n in range(90)]
    fold = fold_of(prompts, 5, seed=0)
    assert set(fold.tolist()) == {0, 1, 2, 3, 4}
    assert all(len(set(fold[n : n + 3].tolist())) == 1 for n in range(0, 90, 3))


def test_held_out_logits_come_from_heads_that_never_saw_the_prompt(tmp_path):
    """Features that name the item can be learned by heart, and only by heart."""
    data = tiny_data(30)
    features = torch.eye(len(data.prompts))
    torch.manual_seed(0)
    heads = RewardHeads(features.shape[1], DIMENSIONS, hidden=32, dropout=0.0)
    config = RewardTrainingConfig(epochs=30, learning_rate=0.01, patience=30, anchor=False, folds=3)
    run = (heads, features, data.prompts, data.splits["train"], data.splits["validation"], config)
    logits = held_out_logits(*run, folder=tmp_path)
    pairs = data.splits["train"].pairs
    column = data.splits["train"].pair_dimension
    ahead = logits[pairs[:, 0], column] > logits[pairs[:, 1], column]
    assert 0.3 < ahead.float().mean() < 0.7
    unused = torch.ones(len(data.prompts), dtype=torch.bool)
    unused[data.splits["train"].items()] = False
    assert logits[unused].isnan().all() and not logits[~unused].isnan().any()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"fold-{n}.safetensors" for n in range(3)]
    torch.testing.assert_close(held_out_logits(*run, folder=tmp_path), logits, equal_nan=True)


def judged(count: int, seed: int) -> Judged:
    """Right with probability sigmoid(2·x₀), whatever the margin says."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 4, generator=generator)
    logits = torch.randn(count, 2, generator=generator) * 0.3
    correct = torch.rand(count, generator=generator) < torch.sigmoid(2 * features[:, 0])
    dimension = torch.arange(count) % 2
    return Judged(features, logits, dimension, correct)


def test_confidence_learns_where_the_score_errs_and_is_calibrated():
    torch.manual_seed(0)
    heads = ConfidenceHeads(4, DIMENSIONS, hidden=16)
    config = RewardTrainingConfig(learning_rate=0.01, confidence_weight_decay=0.01, patience=10)
    train_confidence(heads, judged(2000, 0), judged(400, 1), config)
    calibrate(heads, judged(400, 1))
    test = judged(4000, 2)
    with torch.no_grad():
        confidence = heads(test.features, test.logits)
    said = confidence.gather(1, test.dimension[:, None]).squeeze(1)
    for column in range(2):
        inside = test.dimension == column
        found = auroc(said[inside], test.correct[inside])
        assert found is not None and found > 0.75
        error = calibration_error(said[inside], test.correct[inside])
        assert error is not None and error < 0.05


def test_without_anything_to_learn_confidence_starts_from_the_margin():
    heads = ConfidenceHeads(4, DIMENSIONS)
    data = judged(50, 0)
    config = RewardTrainingConfig(confidence_epochs=1, learning_rate=1e-12)
    train_confidence(heads, data, data, config)
    with torch.no_grad():
        found = heads(data.features, data.logits)
    torch.testing.assert_close(found, torch.sigmoid(data.logits.abs()), atol=1e-5, rtol=0)


def test_calibration_undoes_a_known_distortion():
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(20000, generator=generator)
    correct = torch.rand(20000, generator=generator) < torch.sigmoid(true)
    temperature, offset = fit_calibration(true * 3 - 1.5, correct)
    assert temperature == pytest.approx(3, rel=0.1)
    assert offset == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("right", [True, False])
def test_one_sided_calibration_stays_finite(right):
    raw = torch.randn(30)
    temperature, offset = fit_calibration(raw, torch.full((30,), right))
    assert 0 < temperature < 100 and abs(offset) < 100
    confidence = torch.sigmoid((raw + offset) / temperature)
    assert (confidence.mean() > 0.8) == right


def test_judged_takes_the_side_of_pairs_and_the_distance_of_ratings():
    data = tiny_data(10)
    logits = torch.zeros(len(data.prompts), 2)
    train = data.splits["train"]
    logits[train.pairs[:, 0]] = 1.0
    logits[train.pairs[:, 1]] = -1.0
    found = Judged.of(features_of(data), logits, train)
    assert found.correct.all() and len(found.correct) == 2 * len(train.pairs)
