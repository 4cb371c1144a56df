"""PPO's losses against numbers worked out by hand, and what their gradients reach."""

import math

import pytest
import torch

from hf_glm_curriculum.ppo.objective import policy_terms, value_terms


def test_policy_loss_by_hand():
    """ρ = 1.5 with A = 2 is clipped to 1.2: −2.4; ρ = 0.5 with A = −1 is clipped to 0.8: 0.8."""
    old = torch.zeros(1, 3)
    new = torch.tensor([[math.log(1.5), math.log(0.5), 9.0]])
    mask = torch.tensor([[True, True, False]])
    found = policy_terms(new, old, torch.tensor([[2.0, -1.0, 5.0]]), mask, torch.ones(1), 0.2)
    assert found.loss == pytest.approx(-2.4 + 0.8)
    assert found.clipped == 2
    assert found.ratio == pytest.approx(2.0)
    assert found.approx_kl == pytest.approx(0.5 * (math.log(1.5) ** 2 + math.log(0.5) ** 2))


def test_value_loss_by_hand():
    """V = 2, V₀ = 1, ε = 0.5, R = 3: max((2 − 3)², (1.5 − 3)²)/2 = 1.125."""
    values = torch.tensor([[[2.0, 2.0]]])
    mask = torch.tensor([[[True, False]]])
    found = value_terms(
        values, torch.ones(1, 1, 2), torch.full((1, 1, 2), 3.0), mask, torch.ones(1), 0.5
    )
    assert found.loss.tolist() == [1.125, 0.0]
    assert found.clipped.tolist() == [1, 0]


def test_row_weights_scale_both_losses():
    torch.manual_seed(0)
    new, old, advantages = torch.randn(2, 4), torch.randn(2, 4), torch.randn(2, 4)
    mask = torch.ones(2, 4, dtype=torch.bool)
    each = [
        policy_terms(
            new[i : i + 1], old[i : i + 1], advantages[i : i + 1], mask[:1], torch.ones(1), 0.2
        )
        for i in range(2)
    ]
    weighed = policy_terms(new, old, advantages, mask, torch.tensor([3.0, 0.5]), 0.2)
    assert weighed.loss == pytest.approx(float(3 * each[0].loss + 0.5 * each[1].loss), rel=1e-5)


def test_gradients_stop_at_the_mask():
    new = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, False, True]])
    policy_terms(new, torch.zeros(1, 3), torch.ones(1, 3), mask, torch.ones(1), 0.2).loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[-1.0, 0.0, -1.0]]


def test_closed_dimension_trains_no_critic():
    values = torch.zeros(2, 3, 2, requires_grad=True)
    mask = torch.ones(2, 3, 2, dtype=torch.bool)
    mask[0, :, 1] = False
    returns = torch.ones(2, 3, 2)
    value_terms(
        values, torch.zeros(2, 3, 2), returns, mask, torch.ones(2), 0.2
    ).loss.sum().backward()
    assert values.grad is not None
    assert not values.grad[0, :, 1].any()
    assert values.grad[0, :, 0].all()
    assert values.grad[1].all()
