from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hf_glm_curriculum import RewardShaper
from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.rewards.readings import read_responses
from hf_glm_curriculum.rewards.shaper import ShaperConfig, length_band

_KINDS = ("repetition", "length", "refusal", "template", "missing_eos", "empty")
OFF = {f"{kind}_penalty": 0.0 for kind in _KINDS}
GOOD = ["The capital of France is Paris.", "法国的首都是巴黎。"]


def penalties(response: str, **settings) -> dict[str, float]:
    shaper = RewardShaper(**settings)
    return {k: float(v) for k, v in shaper.penalties(read_responses([response])).items() if v > 0}


@given(arrays("float64", (8, 3), elements=st.floats(0, 1)))
def test_everything_off_changes_nothing(scores):
    table = torch.from_numpy(scores)
    shaped = RewardShaper(normalize=False, **OFF).shape(table, ["yes"] * 8)
    assert torch.equal(shaped.scores, table)


@given(arrays("float64", (8, 3), elements=st.floats(0, 1)), st.floats(0.5, 3))
def test_normalised_scores_are_bounded_and_ordered(scores, clip):
    table = torch.from_numpy(scores)
    shaped = RewardShaper(clip=clip, **OFF).shape(table, ["yes"] * 8)
    assert shaped.scores.abs().max() <= clip
    for column in range(3):
        order = table[:, column].argsort(stable=True)
        assert (shaped.scores[order, column].diff() >= -1e-9).all()


def test_normalises_each_dimension_over_open_rows():
    scores = torch.tensor([[0.1, 0.5, 0.0], [0.3, 0.9, 0.0], [0.9, 0.7, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, True], [False, True, True]])
    shaped = RewardShaper(**OFF).shape(scores, ["yes"] * 3, mask)
    assert shaped.scores[:2, 0].tolist() == pytest.approx([-1, 1], abs=1e-5)
    assert shaped.scores[2, 0].item() == pytest.approx(5)  # 7 deviations, clipped
    assert shaped.scores[:, 1].mean().item() == pytest.approx(0, abs=1e-6)
    assert shaped.scores[:, 2].tolist() == [0, 0, 0]


@pytest.mark.parametrize("good", GOOD)
def test_a_good_answer_costs_nothing(good):
    assert penalties(good) == {}


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ("I'm sorry, but I can't help with that.", "refusal"),
        ("抱歉，我无法回答这个问题。", "refusal"),
        ("Great question! Paris.", "template"),
        ("作为一个人工智能，我认为是巴黎。", "template"),
        ("Paris is big. I hope this helps!", "template"),
        ("no way out " * 12, "repetition"),
        ("非常好的答案" * 8, "repetition"),
        ("  \n", "empty"),
    ],
)
def test_each_fault_costs_in_both_languages(bad, kind):
    assert set(penalties(bad)) == {kind}


def test_repetition_costs_in_proportion_to_the_excess():
    light = penalties("a b c d e f g h a b c " * 1)
    heavy = penalties("a b c " * 30)
    assert "repetition" not in light
    assert 0.9 < heavy["repetition"] <= 1.0


def test_a_refusal_that_is_called_for_costs_nothing():
    shaper = RewardShaper()
    texts = ["I can't help with that."] * 2
    shaped = shaper.shape(torch.full((2, 3), 0.5), texts, refusal_ok=[True, False])
    assert shaped.penalties["refusal"].tolist() == [0.0, 1.0]
    assert shaped.metrics()["refusal_rate"] == 0.5


def test_length_band():
    texts = ["one two three four", " ".join(map(str, range(10))), " ".join(map(str, range(45)))]
    shaper = RewardShaper(length_band=(8, 30), length_penalty=0.5)
    found = shaper.penalties(read_responses(texts))["length"]
    assert found.tolist() == pytest.approx([0.5, 0.0, 0.5])
    # Never more than twice the penalty, so that one endless answer does not drown the batch.
    endless = shaper.penalties(read_responses(["x " * 5000]))["length"]
    assert endless.item() == pytest.approx(1.0)
    in_tokens = RewardShaper(
        length_band=(8, 30), length_unit="tokens", **{**OFF, "length_penalty": 1}
    )
    shaped = in_tokens.shape(torch.zeros(1, 3), ["four words are here"], n_tokens=[12])
    assert shaped.total.item() == 0.0
    with pytest.raises(DataError, match="n_tokens"):
        in_tokens.shape(torch.zeros(1, 3), ["four words are here"])
    low, high = length_band([" ".join("a" * n) for n in range(1, 102)])
    assert (low, high) == pytest.approx((6, 96))


def test_missing_eos_comes_off_every_dimension_after_the_clip():
    shaper = RewardShaper(clip=1.0, missing_eos_penalty=1.5)
    scores = torch.tensor([[0.2, 0.2, 0.2], [0.8, 0.8, 0.8]])
    shaped = shaper.shape(scores, GOOD, ended=[True, False])
    assert (shaped.normalised - shaped.scores)[0].tolist() == [0, 0, 0]
    assert shaped.scores[1].tolist() == pytest.approx([-0.5] * 3, abs=1e-5)
    assert shaped.metrics()["unfinished_rate"] == 0.5


def test_null_scores_stay_null():
    scores = torch.tensor([[float("nan"), 0.2, 0.4], [0.8, 0.3, 0.1]])
    shaped = RewardShaper().shape(scores, GOOD)
    assert math.isnan(shaped.scores[0, 0]) and torch.isfinite(shaped.scores).sum() == 5


def test_evaluation_does_not_move_the_moments():
    shaper = RewardShaper()
    shaper.shape(torch.rand(4, 3), ["yes"] * 4)
    before = shaper.state_dict()
    shaper.shape(torch.rand(4, 3), ["yes"] * 4, update=False)
    assert shaper.state_dict() == before


def test_state_goes_on_where_it_was():
    torch.manual_seed(0)
    first, second = RewardShaper(), RewardShaper()
    batches = [torch.rand(6, 3) for _ in range(6)]
    for batch in batches[:3]:
        first.shape(batch, ["yes"] * 6)
    second.load_state_dict(first.state_dict())
    for batch in batches[3:]:
        one, two = (s.shape(batch, ["yes"] * 6).scores for s in (first, second))
        assert torch.equal(one, two)
    with pytest.raises(StateError, match="dimensions"):
        RewardShaper(dimensions=("a", "b", "c")).load_state_dict(first.state_dict())


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="did you mean 'normalize'"):
        RewardShaper(normalise=False)
    with pytest.raises(ConfigError, match="clip: must be above 0"):
        RewardShaper(clip=0)
    with pytest.raises(ConfigError, match="length_band"):
        ShaperConfig(length_band=(30, 8))
    with pytest.raises(ConfigError, match="refusal_penalty: must be at least 0"):
        ShaperConfig(refusal_penalty=-1)
    with pytest.raises(DataError, match="one text for each of 2 rows"):
        RewardShaper().shape(torch.rand(2, 3), ["yes"])
    with pytest.raises(DataError, match="ended: needs one value for each of 2"):
        RewardShaper().shape(torch.rand(2, 3), GOOD, ended=[True])
