from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum import DimensionWeights
from hf_glm_curriculum.errors import ConfigError, DataError, StateError

UNIT = st.floats(0, 1, width=32)
ROW = torch.tensor([[0.35, 0.65, 0.95]])


def test_the_designs_numbers():
    weights = DimensionWeights()
    everything = torch.ones(1, 3, dtype=torch.bool)
    assert weights.combine(ROW, everything).item() == pytest.approx(1.825 / 3.5)
    closed = torch.tensor([[False, True, True]])
    r = weights.combine(ROW, closed, baseline=[0.35, 0.5, 0.5])
    assert r.item() == pytest.approx(1.825 / 3.5)  # worth its mean: closing it changed nothing


@given(
    arrays("float64", (5, 3), elements=st.floats(0, 1)),
    arrays("bool", (5, 3)),
    arrays("float64", (3,), elements=st.floats(0, 1)),
)
def test_combine_is_the_formula(scores, mask, baseline):
    scores, mask, b = map(torch.from_numpy, (scores, mask, baseline))
    w, m = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64), mask.double()
    wanted = (w * (m * scores + (1 - m) * b)).sum(1) / w.sum()
    got = DimensionWeights(factual=2.0, logic=1.0, compliance=0.5).combine(scores, mask, b)
    assert torch.allclose(got, wanted, atol=1e-12)


@given(arrays("float32", (4, 3), elements=UNIT), st.integers(0, 3), st.integers(0, 2))
def test_closing_a_dimension_takes_its_score_out_altogether(scores, row, column):
    table = torch.from_numpy(scores)
    mask = torch.ones(4, 3, dtype=torch.bool)
    mask[row, column] = False
    moved = table.clone()
    moved[row, column] = 1.0 - moved[row, column]
    base = [0.4, 0.5, 0.6]
    first, second = (DimensionWeights().combine(t, mask, base) for t in (table, moved))
    assert torch.equal(first, second)


def test_running_mean_of_open_scores():
    weights = DimensionWeights()
    assert weights.baseline.tolist() == [0.5, 0.5, 0.5]
    scores = torch.tensor([[0.2, 0.4, 0.6], [0.4, 0.8, 0.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    weights.combine(scores, mask)
    assert weights.baseline.tolist() == pytest.approx([0.3, 0.4, 0.5])
    weights.combine(scores, mask, update=False)
    weights.combine(scores, mask, baseline=[0, 0, 0])
    assert weights.baseline.tolist() == pytest.approx([0.3, 0.4, 0.5])
    # A closed row now earns the mean.
    r = weights.combine(torch.full((1, 3), 0.9), torch.zeros(1, 3, dtype=torch.bool))
    assert r.item() == pytest.approx((2 * 0.3 + 0.4 + 0.5 * 0.5) / 3.5)


def test_null_scores_count_as_closed():
    scores = torch.tensor([[float("nan"), 0.5, 0.5]])
    r = DimensionWeights().combine(scores, baseline=[0.5, 0.0, 0.0])
    assert r.item() == pytest.approx(0.5)


def test_a_locked_dimension_leaves_both_sums():
    r = DimensionWeights().combine(ROW, unlocked=torch.tensor([True, False, False]))
    assert r.item() == pytest.approx(0.35)


def test_names():
    assert DimensionWeights(logic=3).weights == {"factual": 2.0, "logic": 3.0, "compliance": 0.5}
    three = DimensionWeights(helpful=1, honest=2, harmless=1)
    assert three.dimensions == ("helpful", "honest", "harmless")
    assert three.vector(["harmless", "honest"]).tolist() == [1, 2]
    with pytest.raises(ConfigError, match="did you mean 'honest'"):
        three.vector(["honst"])
    with pytest.raises(ConfigError, match="logic must be at least 0"):
        DimensionWeights(logic=-1)
    with pytest.raises(ConfigError, match="all are 0"):
        DimensionWeights(a=0, b=0)


def test_bad_input_is_named():
    weights = DimensionWeights()
    with pytest.raises(DataError, match="factual of row 0 must be finite, got inf"):
        weights.combine(torch.tensor([[float("inf"), 0.0, 0.0]]))
    with pytest.raises(DataError, match=r"mask: must have the shape"):
        weights.combine(ROW, torch.ones(1, 2, dtype=torch.bool))
    with pytest.raises(DataError, match=r"baseline: must be \[3\]"):
        weights.combine(ROW, baseline=[0.5])
    with pytest.raises(DataError, match="no dimension of positive weight"):
        DimensionWeights(factual=0).combine(ROW, unlocked=torch.tensor([True, False, False]))


def test_state_goes_on_where_it_was():
    torch.manual_seed(0)
    first, second = DimensionWeights(window=50), DimensionWeights(window=50)
    batches = [torch.rand(16, 3) for _ in range(8)]
    for batch in batches[:4]:
        first.combine(batch)
    second.load_state_dict(first.state_dict())
    for batch in batches[4:]:
        assert torch.equal(first.combine(batch), second.combine(batch))
    with pytest.raises(StateError, match="resume with the dimensions"):
        DimensionWeights(a=1.0).load_state_dict(first.state_dict())
