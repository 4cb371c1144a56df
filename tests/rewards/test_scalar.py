from __future__ import annotations

import math

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_glm_curriculum import RewardPanel, ScalarReward
from hf_glm_curriculum.errors import DataError, IncompatibleError, ModelError
from hf_glm_curriculum.rewards.scorers import require_same_tokenizer
from tests.conftest import build_tokenizer
from tests.rewards.scorers import HashScorer

PROMPTS = ["Where is it?", "Say yes.", "2+2?"]
RESPONSES = ["In Paris, the capital of France.", "Yes", "Four it is"]


def scalar_model(num_labels: int = 1, pad: int | None = 0):
    config = AutoConfig.for_model(
        "llama",
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
        pad_token_id=pad,
        eos_token_id=1,
        bos_token_id=None,
        num_labels=num_labels,
    )
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config)


@pytest.mark.parametrize("pad", [0, None])
def test_a_rows_reward_does_not_depend_on_its_batch(pad):
    reward = ScalarReward(scalar_model(pad=pad), "helpful", build_tokenizer())
    together = reward.raw(PROMPTS, RESPONSES)
    alone = [reward.raw([p], [r]).item() for p, r in zip(PROMPTS, RESPONSES, strict=True)]
    assert together.tolist() == pytest.approx(alone, abs=1e-6)
    assert together.std() > 0


def test_equals_the_model_called_by_hand():
    model, tokenizer = scalar_model(), build_tokenizer()
    reward = ScalarReward(model, "helpful", tokenizer)
    turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    ids = tokenizer.apply_chat_template(turns, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        wanted = model.eval()(ids).logits[0, 0].item()
    assert reward.raw(["2+2?"], ["4"]).item() == pytest.approx(wanted, abs=1e-6)
    out = reward.score_texts(["2+2?"], ["4"])
    assert out.scores.item() == pytest.approx(1 / (1 + math.exp(-wanted)), abs=1e-6)
    assert out.scores.shape == out.confidence.shape == out.logits.shape == (1, 1)


def test_calibration_puts_typical_rewards_around_a_half():
    reward = ScalarReward(scalar_model(), "helpful", build_tokenizer())
    raw = reward.raw(PROMPTS, RESPONSES)
    scores = reward.calibrate(raw).score_texts(PROMPTS, RESPONSES).scores
    assert scores.median().item() == pytest.approx(0.5)
    assert (scores.squeeze().argsort() == raw.argsort()).all()
    with pytest.raises(DataError, match="two different finite rewards"):
        reward.calibrate([1.0, 1.0])


def short(prompts, responses):
    pairs = zip(prompts, responses, strict=True)
    return [None if prompt == "Say yes." else float(len(r) < 8) for prompt, r in pairs]


def test_a_function_is_a_dimension_and_none_is_null():
    out = ScalarReward(short, "brief").score_texts(PROMPTS, RESPONSES)
    assert out.scores[0, 0] == 0 and math.isnan(out.scores[1, 0])
    assert out.confidence[:, 0].tolist() == [1, 0, 1]


def test_a_functions_values_are_checked():
    with pytest.raises(DataError, match=r"long of row 0 must lie in \[0, 1\], got 32"):
        ScalarReward(lambda p, r: [float(len(x)) for x in r], "long").score_texts(
            PROMPTS, RESPONSES
        )
    squashed = ScalarReward(lambda p, r: [0.0, 100.0, -100.0], "any", squash=True)
    assert squashed.score_texts(PROMPTS, RESPONSES).scores[:, 0].tolist() == pytest.approx(
        [0.5, 1, 0]
    )
    with pytest.raises(DataError, match="returned 1 values for 3 rows"):
        ScalarReward(lambda p, r: [1.0], "few").score_texts(PROMPTS, RESPONSES)
    with pytest.raises(DataError, match="gave NaN for row 1"):
        ScalarReward(lambda p, r: [1.0, math.nan, 1.0], "nan").score_texts(PROMPTS, RESPONSES)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="num_labels=1, got 3"):
        ScalarReward(scalar_model(3), "helpful", build_tokenizer())
    with pytest.raises(ModelError, match="tokenizer"):
        ScalarReward(scalar_model(), "helpful")
    broken = scalar_model()
    with torch.no_grad():
        broken.score.weight.fill_(math.nan)
    with pytest.raises(ModelError, match="gave nan for row 0"):
        ScalarReward(broken, "helpful", build_tokenizer()).raw(PROMPTS, RESPONSES)


def test_panel_puts_dimensions_side_by_side():
    panel = RewardPanel(HashScorer(), ScalarReward(short, "brief"))
    assert panel.config.dimensions == ("factual", "logic", "compliance", "brief")
    out = panel.score_texts(PROMPTS, RESPONSES)
    assert out.scores.shape == (3, 4)
    assert torch.equal(out.scores[:, :3], HashScorer().score_texts(PROMPTS, RESPONSES).scores)
    with pytest.raises(ModelError, match="every dimension once"):
        RewardPanel(HashScorer(), ScalarReward(short, "logic"))


def test_tokenizers_that_differ_are_refused_for_ids():
    one, other = build_tokenizer(), build_tokenizer()
    require_same_tokenizer(one, other)
    other.add_tokens(["<extra>"])
    with pytest.raises(IncompatibleError, match="260 and 261 tokens"):
        require_same_tokenizer(one, other)
