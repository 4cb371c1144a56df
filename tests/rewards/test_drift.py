from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.rewards.drift import (
    compare_reward_models,
    distribution_distance,
    rank_correlation,
)
from tests.rewards.scorers import HashScorer, ScriptedScorer

SAMPLE = arrays("float64", st.integers(3, 12), elements=st.integers(0, 5).map(float))


def preference(number: int, dimension: str = "factual") -> dict[str, str]:
    chosen, rejected = f"yes {number}", f"no {number}"
    return {"prompt": "q", "chosen": chosen, "rejected": rejected, "dimension": dimension}


@given(SAMPLE, SAMPLE)
def test_distance_is_kolmogorov_smirnovs(one, other):
    got = distribution_distance(torch.from_numpy(one), torch.from_numpy(other))
    assert got == pytest.approx(stats.ks_2samp(one, other, method="asymp").statistic)


@given(arrays("float64", (2, 8), elements=st.integers(0, 5).map(float)))
def test_rank_correlation_is_spearmans(table):
    one, other = table
    got = rank_correlation(torch.from_numpy(one), torch.from_numpy(other))
    if len(set(one)) == 1 or len(set(other)) == 1:
        assert got is None
    else:
        assert got == pytest.approx(stats.spearmanr(one, other).statistic)


def test_a_model_has_not_drifted_from_itself():
    fixed = [preference(n, d) for n in range(6) for d in ("factual", "logic")]
    report = compare_reward_models(HashScorer(), HashScorer(), fixed)
    for name, one in report.dimensions.items():
        assert one.shift == one.distance == 0
        assert one.rank_correlation == pytest.approx(1)
        assert (one.pairs, one.flipped) == ((0, None) if name == "compliance" else (6, 0))
    assert report.warnings() == [] and report.losses(0.0) == []


def test_shifts_flips_and_losses_are_told_apart():
    sure = [[0.9, 0.1, 0.9]] * 4
    old = ScriptedScorer([[0.8, 0.2, 0.5], [0.2, 0.4, 0.5]] * 2, sure)
    new = ScriptedScorer([[0.3, 0.6, 0.5], [0.6, 0.4, 0.5]] * 2, [[0.5, 0.9, 0.9]] * 4)
    fixed = [preference(0), preference(1, "logic")]
    report = compare_reward_models(old, new, fixed)
    factual, logic = report.dimensions["factual"], report.dimensions["logic"]
    assert (factual.accuracy_old, factual.accuracy_new, factual.flipped) == (1, 0, 1)
    assert (logic.accuracy_old, logic.accuracy_new, logic.flipped) == (0, 1, 1)
    assert factual.shift == pytest.approx(-0.05) and logic.shift == pytest.approx(0.2)
    assert (factual.open_old, factual.open_new) == (1, 0)
    assert report.losses(0.02) == ["factual"]
    warned = "; ".join(report.warnings())
    assert "factual: accuracy on the fixed set fell from 1.000 to 0.000" in warned
    assert "logic: the mean score moved by +0.20" in warned
    assert report.as_dict()["logic"]["shift"] == pytest.approx(0.2)


def test_bad_input_is_named():
    with pytest.raises(ModelError, match="same dimensions"):
        compare_reward_models(HashScorer(), HashScorer(("a",)), [preference(0)])
    with pytest.raises(DataError, match="at least one"):
        compare_reward_models(HashScorer(), HashScorer(), [])
    with pytest.raises(ConfigError, match=r"row 1: unknown dimension 'factul'.*'factual'"):
        compare_reward_models(HashScorer(), HashScorer(), [preference(0), preference(1, "factul")])
    with pytest.raises(DataError, match="row 0: chosen must be text"):
        compare_reward_models(HashScorer(), HashScorer(), [{**preference(0), "chosen": None}])
