from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum import RewardGate
from hf_glm_curriculum.errors import ConfigError, DataError

UNIT = st.floats(0, 1, width=32)
NAN = float("nan")


def tables(width: int = 3):
    return st.integers(1, 6).flatmap(
        lambda rows: st.tuples(*(arrays("float32", (rows, width), elements=UNIT),) * 2)
    )


@given(tables(), st.floats(0, 1), st.lists(st.booleans(), min_size=3, max_size=3))
def test_opens_by_threshold_and_never_leaves_a_row_closed(pair, threshold, flags):
    scores, confidence = map(torch.from_numpy, pair)
    unlocked = torch.tensor(flags) if any(flags) else torch.tensor([True, False, False])
    mask = RewardGate(threshold)(scores, confidence, unlocked)
    assert mask.any(dim=1).all()
    assert not mask[:, ~unlocked].any()
    passing = (confidence >= torch.tensor(threshold, dtype=torch.float32)) & unlocked
    several = passing.any(dim=1)
    assert (mask[several] == passing[several]).all()
    assert (mask[~several].sum(dim=1) == 1).all()


@given(tables())
def test_a_higher_threshold_opens_no_more_dimensions(pair):
    scores, confidence = map(torch.from_numpy, pair)
    counts = [RewardGate(t)(scores, confidence).sum() for t in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == scores.numel()


def test_fallback_is_decided_row_by_row():
    scores = torch.full((3, 3), 0.5)
    confidence = torch.tensor([[0.1, 0.6, 0.2], [0.9, 0.0, 0.0], [0.3, 0.2, 0.8]])
    mask = RewardGate(0.85)(scores, confidence)
    assert mask.tolist() == [[False, True, False], [True, False, False], [False, False, True]]
    named = RewardGate(0.85, fallback="logic")(scores, confidence)
    assert named.tolist() == [[False, True, False], [True, False, False], [False, True, False]]


def test_fallback_among_unlocked_dimensions_only():
    scores = torch.full((1, 3), 0.5)
    confidence = torch.tensor([[0.1, 0.6, 0.2]])
    unlocked = torch.tensor([True, False, True])
    assert RewardGate()(scores, confidence, unlocked).tolist() == [[False, False, True]]
    # The named dimension is locked: the most confident one in use takes its place.
    locked = RewardGate(fallback="logic")(scores, confidence, unlocked)
    assert locked.tolist() == [[False, False, True]]


def test_null_scores_stay_closed_whatever_the_confidence():
    scores = torch.tensor([[NAN, 0.5, 0.5]])
    confidence = torch.tensor([[1.0, 0.2, 0.1]])
    for fallback in ("most_confident", "factual"):
        mask = RewardGate(fallback=fallback)(scores, confidence)
        assert mask.tolist() == [[False, True, False]]


def test_thresholds_by_dimension():
    gate = RewardGate({"factual": 0.5})
    mask = gate(torch.full((1, 3), 0.5), torch.full((1, 3), 0.6))
    assert mask.tolist() == [[True, False, False]]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_without_names_it_takes_any_number_of_columns(width):
    mask = RewardGate(0.5)(torch.rand(4, width), torch.linspace(0, 1, 4)[:, None].expand(4, width))
    assert mask.all(dim=1).tolist() == [width == 1, width == 1, True, True]
    assert mask.any(dim=1).all()


def test_bad_input_is_named():
    gate = RewardGate()
    fine = torch.full((2, 3), 0.5)
    with pytest.raises(DataError, match=r"logic of row 1 must lie in \[0, 1\], got 1.2"):
        gate(torch.tensor([[0.1, 0.2, 0.3], [0.1, 1.2, 0.3]]), fine)
    with pytest.raises(DataError, match=r"confidence: factual of row 0 .* got nan"):
        gate(fine, torch.tensor([[NAN, 0.2, 0.3], [0.1, 0.2, 0.3]]))
    with pytest.raises(DataError, match="null in every dimension"):
        gate(torch.tensor([[0.1, 0.2, 0.3], [NAN, NAN, NAN]]), fine)
    with pytest.raises(DataError, match=r"unlocked dimensions: null .*\(logic\)"):
        gate(torch.tensor([[0.1, NAN, 0.3]]), fine[:1], torch.tensor([False, True, False]))
    with pytest.raises(DataError, match="unlocked: must say for each"):
        gate(fine, fine, torch.tensor([False, False, False]))
    with pytest.raises(DataError, match=r"must be \[rows, 3\]"):
        RewardGate(fallback="logic")(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(DataError, match=r"confidence: must be \[rows, 4\]"):
        gate(torch.zeros(2, 4), torch.zeros(2, 3))
    with pytest.raises(DataError, match="scores: must be"):
        gate(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ConfigError, match="did you mean 'factual'"):
        RewardGate(fallback="factul")
    with pytest.raises(ConfigError, match="threshold: must lie in"):
        RewardGate(85)
    with pytest.raises(ConfigError, match="did you mean 'compliance'"):
        RewardGate({"complience": 0.5})
