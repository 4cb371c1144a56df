from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.reinforcement import NegativeReinforcement


def test_wrong_rows_weigh_three_times_as_much():
    scores = torch.tensor([[0.39, 1.0, 1.0], [0.4, 0.0, 0.0], [0.9, 0.0, 0.0], [0.1, 1.0, 1.0]])
    weights = NegativeReinforcement().weights(scores)
    assert weights.tolist() == pytest.approx([1.5, 0.5, 0.5, 1.5])


def test_a_closed_dimension_condemns_no_row():
    scores = torch.tensor([[0.1, 1.0, 1.0], [0.1, 1.0, 1.0], [float("nan"), 1.0, 1.0]])
    mask = torch.tensor([[True] * 3, [False, True, True], [True] * 3])
    assert NegativeReinforcement().weights(scores, mask).tolist() == pytest.approx([1.8, 0.6, 0.6])


@given(
    arrays("float64", (6, 3), elements=st.floats(0, 1)),
    arrays("int64", (6,), elements=st.integers(1, 50)),
)
def test_the_step_keeps_its_size(scores, tokens):
    table, n = torch.from_numpy(scores), torch.from_numpy(tokens)
    rule = NegativeReinforcement(factor=3.0)
    assert rule.weights(table).mean().item() == pytest.approx(1.0)
    by_token = rule.weights(table, n_tokens=n)
    assert ((by_token * n).sum() / n.sum()).item() == pytest.approx(1.0)
    ratio = by_token.max() / by_token.min()
    assert ratio.item() == pytest.approx(1.0) or ratio.item() == pytest.approx(3.0)


def test_neutral_is_exactly_one():
    assert torch.equal(NegativeReinforcement(factor=1.0).weights(torch.rand(5, 3)), torch.ones(5))


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="did you mean 'factual'"):
        NegativeReinforcement(dimension="factuel")
    with pytest.raises(ConfigError, match="factor"):
        NegativeReinforcement(factor=-1)
    with pytest.raises(DataError, match="factual of row 0"):
        NegativeReinforcement().weights(torch.tensor([[-0.1, 0.5, 0.5]]))
    with pytest.raises(DataError, match=r"n_tokens: must be \[1\]"):
        NegativeReinforcement().weights(torch.rand(1, 3), n_tokens=torch.ones(2))
