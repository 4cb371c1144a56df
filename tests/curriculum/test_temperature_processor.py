"""The field in ``generate()``: batches, padding, cache, beams, warpers, against hand-made steps."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper, set_seed

from hf_glm_curriculum import TemperatureField, TemperatureFieldLogitsProcessor
from hf_glm_curriculum.errors import ConfigError, StateError
from tests.conftest import build_model

PROMPTS = torch.tensor([[0, 0, 9, 40, 17], [33, 8, 21, 5, 60]])
MASK = (PROMPTS != 0).long()


@pytest.fixture(scope="module")
def model():
    made = build_model()
    with torch.no_grad():
        made.lm_head.weight *= 12  # some positions sure, some not
    return made.eval()


def generate(model, *processors, seed=0, **settings):
    set_seed(seed)
    given = {"input_ids": PROMPTS, "attention_mask": MASK, "pad_token_id": 0, "eos_token_id": 1}
    given |= {"max_new_tokens": 7, "do_sample": True, "top_k": 0}
    given |= {"logits_processor": LogitsProcessorList(processors)}
    return model.generate(**(given | settings))


class Drawn(LogitsProcessor):
    """Keeps what the next step is drawn from."""

    def __init__(self):
        self.scores = []

    def __call__(self, input_ids, scores):
        self.scores.append(scores)
        return scores


def scores_by_hand(model, ids, mask, field):
    """log softmax(z / τ) of the next token, one row at a time, without cache or padding."""
    found = []
    for row, seen in zip(ids, mask, strict=True):
        with torch.no_grad():
            logits = model(row[seen > 0][None]).logits[0, -1]
        p = logits.softmax(-1)
        reading = -(p * p.log()).sum()
        temperature = 0.7 + 0.6 * (1 - torch.exp(-reading))
        found.append(torch.log_softmax(logits / temperature, -1))
    return torch.stack(found)


@pytest.mark.parametrize("use_cache", [True, False])
def test_every_step_of_a_padded_batch_equals_a_hand_made_one(model, use_cache):
    drawn = Drawn()
    field = TemperatureField()
    out = generate(model, TemperatureFieldLogitsProcessor(field), drawn, use_cache=use_cache)
    assert out.shape[1] > PROMPTS.shape[1] + 3
    for step, scores in enumerate(drawn.scores):
        ids = out[:, : PROMPTS.shape[1] + step]
        mask = torch.cat([MASK, torch.ones(2, step, dtype=torch.long)], 1)
        live = ~(ids[:, PROMPTS.shape[1] :] == 1).any(1)
        wanted = scores_by_hand(model, ids, mask, field)
        assert torch.allclose(scores[live], wanted[live], atol=1e-4)


def test_temperature_one_everywhere_is_the_identity(model):
    field = TemperatureField(1.0, 1.0)
    scores = torch.randn(2, 260)
    processor = TemperatureFieldLogitsProcessor(field)
    assert processor(PROMPTS, scores) is scores
    assert torch.equal(generate(model, processor), generate(model))


def test_a_constant_field_draws_as_a_fixed_temperature(model):
    field = TemperatureField(0.8, 0.8)
    divides = TemperatureFieldLogitsProcessor(field, renormalize=False)
    scores = torch.randn(2, 260)
    assert torch.equal(divides(PROMPTS, scores), TemperatureLogitsWarper(0.8)(PROMPTS, scores))
    fixed = generate(model, temperature=0.8)
    assert torch.equal(generate(model, divides), fixed)
    assert torch.equal(generate(model, TemperatureFieldLogitsProcessor(field)), fixed)


def test_a_fixed_temperature_multiplies_and_top_p_cuts_what_is_left(model):
    field = TemperatureField()
    divided = Drawn()
    generate(
        model,
        TemperatureFieldLogitsProcessor(field, renormalize=False),
        divided,
        temperature=1.6,
        top_p=0.6,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
    )
    out = generate(
        model,
        TemperatureFieldLogitsProcessor(field),
        temperature=1.6,
        top_p=0.6,
        max_new_tokens=1,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
    )
    raw = out.logits[0]
    wanted = (raw / field.temperatures(raw)[:, None] / 1.6).softmax(-1)
    found = out.scores[0].softmax(-1)
    kept = found > 0
    for row in range(2):
        assert 0 < kept[row].sum() < 260
        # The cut keeps the most probable tokens whose sum reaches top_p first.
        order = wanted[row].argsort(descending=True)
        size = int((wanted[row][order].cumsum(0) < 0.6).sum()) + 1
        assert set(kept[row].nonzero()[:, 0].tolist()) == set(order[:size].tolist())
        assert torch.allclose(
            found[row][kept[row]], wanted[row][kept[row]] / wanted[row][kept[row]].sum()
        )
    assert torch.allclose(divided.scores[0], raw / field.temperatures(raw)[:, None])


def test_greedy_is_unchanged(model):
    plain = generate(model, do_sample=False)
    for renormalize in (True, False):
        warmed = TemperatureFieldLogitsProcessor(TemperatureField(), renormalize=renormalize)
        assert torch.equal(generate(model, warmed, do_sample=False), plain)


def test_beam_scores_are_log_probabilities_of_the_fields_distribution(model):
    field = TemperatureField(0.5, 2.0)
    out = generate(
        model,
        TemperatureFieldLogitsProcessor(field),
        do_sample=False,
        num_beams=3,
        num_return_sequences=3,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    width = PROMPTS.shape[1]
    masks = MASK.repeat_interleave(3, 0)
    for row, mask, score in zip(out.sequences, masks, out.sequences_scores, strict=True):
        total = 0.0
        real = torch.cat([mask, torch.ones(len(row) - width, dtype=torch.long)]) > 0
        with torch.no_grad():
            logits = model(row[real][None]).logits[0]
        logp = (logits / field.temperatures(logits)[:, None]).log_softmax(-1)
        start = int(mask.sum())
        for place, token in enumerate(row[width:].tolist()):
            total += logp[start + place - 1, token].item()
            if token == 1:
                break
        assert score.item() == pytest.approx(total, abs=1e-3)


def test_beam_sampling_runs(model):
    out = generate(model, TemperatureFieldLogitsProcessor(TemperatureField()), num_beams=2)
    assert out.shape[0] == 2


def test_recorded_temperatures_stop_at_a_rows_end(model):
    field = TemperatureField()
    processor = TemperatureFieldLogitsProcessor(field, record=100, end_ids=[1])
    ends = torch.tensor([[0, 0, 9, 40, 17, 50, 1, 0, 0], [33, 8, 21, 5, 60, 61, 62, 63, 1]])
    scores = [torch.randn(2, 260) for _ in range(4)]
    for step in range(4):
        processor(ends[:, : 5 + step], scores[step])
    wanted = torch.stack([field.temperatures(one) for one in scores], 1)
    assert torch.equal(processor.recorded(), wanted)
    cut = processor.recorded(ends)
    assert cut.isnan().tolist() == [[False, False, True, True], [False] * 4]
    assert torch.equal(cut[1], wanted[1])


def test_recording_is_bounded_and_starts_anew_with_a_generation(model):
    processor = TemperatureFieldLogitsProcessor(TemperatureField(), record=3)
    generate(model, processor)
    first = processor.recorded()
    assert first.shape == (2, 3)
    generate(model, processor)
    assert torch.equal(processor.recorded(), first)
    with pytest.raises(StateError, match="nothing was recorded"):
        TemperatureFieldLogitsProcessor(TemperatureField()).recorded()
    with pytest.raises(ConfigError, match="record"):
        TemperatureFieldLogitsProcessor(TemperatureField(), record=-1)


def test_an_online_field_counts_running_rows_only(model):
    field = TemperatureField(online=True, half_life=1e9)
    processor = TemperatureFieldLogitsProcessor(field, end_ids=[1])
    out = generate(model, processor, eos_token_id=1)
    new = out[:, PROMPTS.shape[1] :]
    ended = (new == 1).cumsum(1) - (new == 1).int() > 0
    assert field.ranks.counts.sum().item() == pytest.approx((~ended).sum().item())


def test_an_online_step_uses_what_came_before_it():
    field = TemperatureField(online=True)
    processor = TemperatureFieldLogitsProcessor(field, record=2)
    scores = torch.randn(4, 260)
    processor(torch.zeros(4, 3, dtype=torch.long), scores)
    assert torch.equal(processor.recorded()[:, 0], TemperatureField().temperatures(scores))
    processor(torch.zeros(4, 4, dtype=torch.long), scores)
    assert not torch.equal(processor.recorded()[:, 1], processor.recorded()[:, 0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_keep_their_dtype(dtype):
    scores = torch.randn(2, 50).to(dtype)
    found = TemperatureFieldLogitsProcessor(TemperatureField())(PROMPTS, scores)
    assert found.dtype == dtype
    assert torch.equal(found.argmax(-1), scores.argmax(-1))


def test_banned_tokens_stay_banned():
    scores = torch.randn(2, 50)
    scores[:, 7] = -torch.inf
    found = TemperatureFieldLogitsProcessor(TemperatureField())(PROMPTS, scores)
    assert torch.isinf(found[:, 7]).all()
    assert torch.isfinite(found[:, :7]).all()
