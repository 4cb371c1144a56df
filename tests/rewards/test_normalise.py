from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.rewards.normalise import RunningMoments


@given(
    arrays("float64", (12, 2), elements=st.floats(-10, 10)),
    arrays("bool", (12, 2)),
    st.lists(st.integers(1, 11), max_size=4),
)
def test_moments_are_exact_however_the_rows_are_batched(values, mask, cuts):
    table, kept = torch.from_numpy(values), torch.from_numpy(mask)
    moments = RunningMoments(2)
    edges = sorted({0, 12, *cuts})
    for start, end in itertools.pairwise(edges):
        moments.update(table[start:end], kept[start:end])
    for column in range(2):
        rows = table[kept[:, column], column]
        assert moments.count[column] == len(rows)
        if len(rows):
            assert moments.mean[column].item() == pytest.approx(rows.mean().item(), abs=1e-9)
            variance = rows.var(correction=0).item()
            assert moments.variance[column].item() == pytest.approx(variance, abs=1e-8)


def test_masked_rows_may_hold_anything():
    moments = RunningMoments(1)
    values = torch.tensor([[1.0], [float("nan")], [3.0]])
    moments.update(values, ~torch.isnan(values))
    assert moments.mean.tolist() == [2.0] and moments.variance.tolist() == [1.0]


def test_old_rows_fade_beyond_the_window():
    short, long = RunningMoments(1, window=20), RunningMoments(1, window=10_000)
    torch.manual_seed(0)
    for level in (0.0, 5.0):
        for _ in range(50):
            batch = level + torch.randn(10, 1)
            for moments in (short, long):
                moments.update(batch, torch.ones_like(batch, dtype=torch.bool))
    assert long.mean.item() == pytest.approx(2.5, abs=0.2)
    assert short.mean.item() == pytest.approx(5.0, abs=0.5)
    assert short.variance.sqrt().item() == pytest.approx(1.0, abs=0.3)


def test_standardise():
    moments = RunningMoments(2)
    values = torch.tensor([[0.2, 0.5], [0.6, 0.5]])
    # Nothing known: nothing changed.
    assert torch.equal(moments.standardise(values, 0.01), values)
    moments.update(values, torch.ones(2, 2, dtype=torch.bool))
    out = moments.standardise(values, 0.01)
    assert out[:, 0].tolist() == pytest.approx([-1, 1])
    # A constant column is not blown up: 0.001 off it is a tenth of a deviation.
    near = moments.standardise(torch.tensor([[0.4, 0.501]]), 0.01)
    assert near[0, 1].item() == pytest.approx(0.1, abs=1e-4)


def test_state_and_shapes():
    first, second = RunningMoments(2), RunningMoments(2)
    first.update(torch.rand(5, 2), torch.ones(5, 2, dtype=torch.bool))
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    with pytest.raises(StateError, match="columns"):
        RunningMoments(3).load_state_dict(first.state_dict())
    with pytest.raises(DataError, match=r"must both be \[rows, 2\]"):
        first.update(torch.rand(5, 3), torch.ones(5, 3, dtype=torch.bool))
