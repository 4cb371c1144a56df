from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum import RewardEnsemble
from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.rewards.ensemble import pessimistic
from tests.rewards.scorers import HashScorer, ScriptedScorer

UNIT = st.floats(0, 1)


@given(
    arrays("float64", (3, 2, 3), elements=UNIT),
    arrays("float64", (3, 2, 3), elements=UNIT),
    st.floats(0, 3),
)
def test_mean_less_deviations(scores, confidence, penalty):
    s, c = torch.from_numpy(scores), torch.from_numpy(confidence)
    low, sure = pessimistic(s, c, penalty)
    std = s.std(0, correction=0)
    assert torch.allclose(low, (s.mean(0) - penalty * std).clamp(0, 1))
    assert torch.allclose(sure, c.mean(0) * (1 - 2 * std).clamp(0))
    assert (low <= s.mean(0) + 1e-9).all() and (sure <= c.mean(0) + 1e-9).all()


@given(arrays("float64", (1, 4, 2), elements=UNIT), arrays("float64", (1, 4, 2), elements=UNIT))
def test_one_member_changes_nothing(scores, confidence):
    s, c = torch.from_numpy(scores), torch.from_numpy(confidence)
    low, sure = pessimistic(s, c, 2.0)
    assert torch.equal(low, s[0]) and torch.equal(sure, c[0])


def test_disagreement_lowers_score_and_confidence():
    agree = [ScriptedScorer([[0.8] * 3], [[0.9] * 3]) for _ in range(2)]
    split = [ScriptedScorer([[0.6] * 3], [[0.9] * 3]), ScriptedScorer([[1.0] * 3], [[0.9] * 3])]
    one, two = (RewardEnsemble(m).score_texts(["p"], ["r"]) for m in (agree, split))
    assert one.scores[0].tolist() == pytest.approx([0.8] * 3)
    assert two.scores[0].tolist() == pytest.approx([0.6] * 3)  # mean 0.8, deviation 0.2
    assert two.confidence[0].tolist() == pytest.approx([0.9 * 0.6] * 3)
    assert torch.sigmoid(two.logits).allclose(two.scores)


def test_is_used_like_one_model():
    ensemble = RewardEnsemble([HashScorer(), HashScorer()], penalty=0.5)
    assert ensemble.config.dimensions == HashScorer().dimensions
    scripted = [ScriptedScorer([[0.5] * 3], [[0.5] * 3]) for _ in range(2)]
    RewardEnsemble(scripted).score_texts(["p"], ["r"], batch_size=3)
    assert all(member.options == {"batch_size": 3} for member in scripted)


def test_bad_input_is_named():
    with pytest.raises(ModelError, match="number 1 scores a, b"):
        RewardEnsemble([HashScorer(), HashScorer(("a", "b"))])
    with pytest.raises(ModelError, match="at least one"):
        RewardEnsemble([])
    with pytest.raises(ConfigError, match="penalty"):
        RewardEnsemble([HashScorer()], penalty=-1)
    with pytest.raises(DataError, match=r"\[members, rows, dimensions\]"):
        pessimistic(torch.zeros(2, 3), torch.zeros(2, 3))
