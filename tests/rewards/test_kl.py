from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum import KLController
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.kl import sequence_kl

NAN = float("nan")


def by_hand(row, opened, base=0.05, kappa=1.0, margin=0.1, bounds=(0.001, 1.0)) -> float:
    others = [s for s, o in list(zip(row, opened, strict=True))[1:] if o]
    if not opened[0] or not others:
        return base
    gap = max(0.0, sum(others) / len(others) - row[0] - margin)
    return min(max(base * (1 + kappa * gap), bounds[0]), bounds[1])


@given(
    arrays("float64", (5, 3), elements=st.floats(0, 1)),
    arrays("bool", (5, 3)),
    st.floats(0, 5),
    st.floats(0, 0.5),
)
def test_coefficients_are_the_formula(scores, mask, kappa, margin):
    controller = KLController(kappa=kappa, margin=margin, bounds=(0.02, 0.2))
    got = controller.coefficients(torch.from_numpy(scores), torch.from_numpy(mask))
    wanted = [
        by_hand(s, m, kappa=kappa, margin=margin, bounds=(0.02, 0.2))
        for s, m in zip(scores.tolist(), mask.tolist(), strict=True)
    ]
    assert got.tolist() == pytest.approx(wanted)


def test_tightens_where_facts_lag_behind():
    scores = torch.tensor([[0.2, 0.8, 0.8], [0.75, 0.8, 0.8], [0.9, 0.1, 0.1]])
    coefficients = KLController().coefficients(scores)
    assert coefficients.tolist() == pytest.approx([0.05 * 1.5, 0.05, 0.05])


def test_base_where_factual_is_closed_or_alone():
    scores = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0], [NAN, 1.0, 1.0], [0.0, NAN, NAN]])
    mask = torch.tensor([[False, True, True], [True, False, False], [True] * 3, [True] * 3])
    assert KLController().coefficients(scores, mask).tolist() == pytest.approx([0.05] * 4)
    alone = KLController(dimensions=("factual",)).coefficients(torch.zeros(1, 1))
    assert alone.tolist() == pytest.approx([0.05])


def test_another_dimension_may_be_the_one_that_lags():
    scores = torch.tensor([[0.9, 0.1, 0.9]])
    got = KLController().coefficients(scores, dimension="logic")
    assert got.item() == pytest.approx(0.05 * 1.7)
    with pytest.raises(ConfigError, match="did you mean 'compliance'"):
        KLController().coefficients(scores, dimension="complience")


def test_adapts_as_the_closed_form():
    controller = KLController(base=0.1, target=6.0, horizon=1000, bounds=(0.0, 10.0))
    script = [6.0, 6.6, 60.0, 3.0, 0.0, 5.4, 7.2]
    errors = [0.0, 0.1, 0.2, -0.2, -0.2, -0.1, 0.2]
    expected = 0.1
    for kl, error in zip(script, errors, strict=True):
        expected *= 1 + error * 64 / 1000
        assert controller.update(kl, n=64) == pytest.approx(expected, rel=1e-12)
    # A tensor of rows gives the mean and its own number.
    again = KLController(base=0.1, target=6.0, horizon=1000)
    assert again.update(torch.tensor([6.0, 7.2])) == pytest.approx(0.1 * (1 + 0.1 * 2 / 1000))


def test_without_a_target_the_base_stays():
    controller = KLController()
    assert controller.update(100.0, n=64) == 0.05


def test_the_base_stays_inside_the_bounds():
    controller = KLController(base=0.1, target=1.0, horizon=1, bounds=(0.05, 0.2))
    assert controller.update(50.0, n=64) == 0.2
    assert controller.update(0.0, n=64) == 0.05


def test_steers_a_policy_whose_kl_answers_to_the_coefficient():
    # The stronger the penalty, the closer the policy stays: KL = 1/β is the simplest such policy.
    controller = KLController(base=1.0, target=5.0, horizon=500, bounds=(1e-3, 10.0))
    for _ in range(200):
        controller.update(1.0 / controller.base, n=64)
    assert 1.0 / controller.base == pytest.approx(5.0, rel=0.02)


def test_state():
    first = KLController(target=6.0)
    first.update(20.0, n=512)
    second = KLController(target=6.0)
    second.load_state_dict(first.state_dict())
    assert second.update(20.0, n=512) == first.update(20.0, n=512)


def test_sequence_kl_is_summed_over_the_response():
    new = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, math.inf]])
    old = torch.tensor([[-1.5, -1.0, -3.0], [-2.0, -1.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert sequence_kl(new, old, mask).tolist() == pytest.approx([-0.5, 1.0])
    with pytest.raises(DataError, match="one shape"):
        sequence_kl(new, old[:, :2], mask)


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="base: must be above 0"):
        KLController(base=0.0, bounds=(0.0, 1.0))
    with pytest.raises(ConfigError, match="inside bounds"):
        KLController(base=2.0)
    with pytest.raises(ConfigError, match="bounds"):
        KLController(bounds=(1.0, 0.5))
    with pytest.raises(ConfigError, match="target"):
        KLController(target=0.0)
    with pytest.raises(DataError, match="kl: must be finite"):
        KLController(target=1.0).update(NAN, n=4)
    with pytest.raises(DataError, match="give n"):
        KLController(target=1.0).update(3.0)
    with pytest.raises(DataError, match=r"factual of row 0 must lie in \[0, 1\]"):
        KLController().coefficients(torch.tensor([[1.5, 0.5, 0.5]]))
