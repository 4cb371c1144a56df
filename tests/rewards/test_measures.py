"""Measures against hand cases and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch

from hf_glm_curriculum.rewards import measures


def test_pairwise_accuracy_counts_ties_half():
    chosen, rejected = torch.tensor([1.0, 2.0, 0.0, 5.0]), torch.tensor([0.0, 3.0, 0.0, 1.0])
    assert measures.pairwise_accuracy(chosen, rejected) == pytest.approx(2.5 / 4)
    assert measures.pairwise_accuracy(chosen[:0], rejected[:0]) is None


def test_calibration_error_by_hand():
    confidence = torch.tensor([0.95, 0.95, 0.95, 0.95, 0.15, 0.15])
    correct = torch.tensor([True, True, True, False, False, True])
    # bins: 4 statements said .95, were .75 right; 2 said .15, were .5 right
    expected = (4 * abs(0.75 - 0.95) + 2 * abs(0.5 - 0.15)) / 6
    assert measures.calibration_error(confidence, correct) == pytest.approx(expected)
    table = measures.reliability(confidence, correct)
    assert [(round(c, 2), r, n) for c, r, n in table] == [(0.15, 0.5, 2), (0.95, 0.75, 4)]
    assert measures.calibration_error(confidence[:0], correct[:0]) is None


def test_auroc_equals_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    score = torch.randint(0, 8, (200,)).float()
    positive = torch.rand(200) < 0.4
    expected = metrics.roc_auc_score(positive.numpy(), score.numpy())
    assert measures.auroc(score, positive) == pytest.approx(expected)
    assert measures.auroc(score, torch.ones(200, dtype=torch.bool)) is None


def test_risk_coverage_trusts_the_most_confident_first():
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6])
    correct = torch.tensor([True, True, False, False])
    found = measures.risk_coverage(confidence, correct, points=4)
    assert found == [(0.25, 0.0), (0.5, 0.0), (0.75, pytest.approx(1 / 3)), (1.0, 0.5)]
    assert measures.risk_coverage(confidence[:0], correct[:0]) == []


def test_flagged_errors():
    confidence = torch.tensor([0.9, 0.5, 0.95, 0.2])
    correct = torch.tensor([False, False, True, False])
    assert measures.flagged_errors(confidence, correct, 0.85) == pytest.approx(2 / 3)
    assert measures.flagged_errors(confidence, torch.ones(4, dtype=torch.bool), 0.85) is None


def test_joint_entropy_of_even_and_constant_scores():
    grid = torch.tensor([[i / 4 + 0.1, j / 4 + 0.1] for i in range(4) for j in range(4)])
    assert measures.joint_entropy_share(grid) == pytest.approx(1.0)
    assert measures.joint_entropy_share(torch.full((9, 2), 0.3)) == 0.0
    half = torch.tensor([[0.1, 0.1], [0.9, 0.9]] * 8)
    assert measures.joint_entropy_share(half) == pytest.approx(math.log(2) / (2 * math.log(4)))


def test_correlation_of_columns():
    x = torch.rand(50)
    found = measures.correlation(torch.stack([x, 1 - x], dim=1))
    assert found[0][1] == pytest.approx(-1.0, abs=1e-5)
    assert measures.correlation(torch.rand(1, 2)) == [[1.0, 0.0], [0.0, 1.0]]
