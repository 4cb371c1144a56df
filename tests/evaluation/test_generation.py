"""Batched greedy generation and the held-out loss against one prompt, one sample at a time."""

import math

import datasets
import pytest
import torch

from hf_glm_curriculum.data.collator import SftCollator
from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.evaluation.generation import generate_answers, prompt_text
from hf_glm_curriculum.evaluation.heldout import held_out_loss, sample_losses

PROMPTS = ["Hi", "What is 2 + 2?", "a", "Name a city in the far north of Norway."]


def one_by_one(model, tokenizer, prompt, tokens):
    """Greedy decoding without cache, padding or `generate`."""
    text = prompt_text(tokenizer, prompt)
    ids = tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"]
    start = len(ids)
    for _ in range(tokens):
        with torch.no_grad():
            best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        if best == tokenizer.eos_token_id:
            break
        ids.append(best)
    return tokenizer.decode(ids[start:], skip_special_tokens=True).strip()


@pytest.mark.parametrize("template", [True, False])
def test_batched_answers_equal_answers_one_by_one(tiny_model, tiny_tokenizer, template):
    model = tiny_model("llama", seed=1)
    if not template:
        tiny_tokenizer.chat_template = None
    got = generate_answers(model, tiny_tokenizer, PROMPTS, max_new_tokens=9, batch_size=3)
    assert got == [one_by_one(model, tiny_tokenizer, p, 9) for p in PROMPTS]
    assert len(set(got)) > 1, "the prompts must matter, or the test would prove nothing"


def test_model_and_tokenizer_come_back_as_they_were(tiny_llama, tiny_tokenizer):
    tiny_llama.train()
    own = tiny_llama.generation_config
    generate_answers(tiny_llama, tiny_tokenizer, ["Hi"], max_new_tokens=2)
    assert tiny_llama.training
    assert tiny_llama.generation_config is own
    assert tiny_tokenizer.padding_side == "right"


def test_the_models_own_generation_settings_do_not_leak(tiny_llama, tiny_tokenizer):
    before = generate_answers(tiny_llama, tiny_tokenizer, PROMPTS, max_new_tokens=6)
    tiny_llama.generation_config.update(suppress_tokens=list(range(4, 200)), repetition_penalty=9.0)
    assert generate_answers(tiny_llama, tiny_tokenizer, PROMPTS, max_new_tokens=6) == before


def test_answers_stop_at_the_end_of_sequence(tiny_llama, tiny_tokenizer):
    with torch.no_grad():  # a head that says <eos> whatever it reads
        tiny_llama.lm_head.weight.zero_()
        tiny_llama.lm_head.weight[1] = 1.0
        tiny_llama.model.norm.weight.fill_(0.0)
        tiny_llama.lm_head.bias = torch.nn.Parameter(torch.zeros(260))
        tiny_llama.lm_head.bias[1] = 5.0
    assert generate_answers(tiny_llama, tiny_tokenizer, PROMPTS, max_new_tokens=50) == [""] * 4


def test_no_prompts_and_wrong_sizes(tiny_llama, tiny_tokenizer):
    assert generate_answers(tiny_llama, tiny_tokenizer, []) == []
    with pytest.raises(DataError, match="at least 1, got 0, 8"):
        generate_answers(tiny_llama, tiny_tokenizer, ["x"], max_new_tokens=0)


def rows(tokenizer, max_length=None):
    data = datasets.Dataset.from_list(
        [
            {"prompt": "What is 1 + 1?", "response": "2"},
            {"prompt": "Name a colour.", "response": "Blue is a colour, and so is green."},
            {"prompt": "x", "response": "yes"},
        ]
    )
    return tokenize_sft(data, tokenizer, max_length)


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_held_out_loss_equals_one_sample_at_a_time(tiny_llama, tiny_tokenizer, batch_size):
    data = rows(tiny_tokenizer)
    total, tokens, means = 0.0, 0, []
    for row in data:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
        with torch.no_grad():
            log_probs = tiny_llama(ids).logits[0, :-1].log_softmax(-1)
        picked = [
            float(-log_probs[t, label]) for t, label in enumerate(labels[0, 1:]) if label >= 0
        ]
        total, tokens = total + sum(picked), tokens + len(picked)
        means.append(sum(picked) / len(picked))
    got = held_out_loss(tiny_llama, data, SftCollator(0), batch_size=batch_size)
    assert got["loss"] == pytest.approx(total / tokens, abs=1e-5)
    assert got["sample_loss"] == pytest.approx(sum(means) / 3, abs=1e-5)
    assert got["perplexity"] == pytest.approx(math.exp(got["loss"]))
    assert got["tokens"] == tokens and got["samples"] == 3


def test_held_out_loss_of_rows_without_labels_is_an_error(tiny_llama):
    data = [{"input_ids": [4, 5, 6], "labels": [-100, -100, -100]}]
    with pytest.raises(DataError, match="none of the 1 rows has a label token"):
        held_out_loss(tiny_llama, data, SftCollator(0))
    assert tiny_llama.training, "the mode it came with"


def test_rows_without_labels_count_zero_beside_others(tiny_llama):
    batch = SftCollator(0)(
        [
            {"input_ids": [4, 5, 6], "labels": [-100, -100, -100]},
            {"input_ids": [4, 5, 6, 7], "labels": [-100, -100, 6, 7]},
        ]
    )
    sums, counts = sample_losses(tiny_llama, batch)
    assert counts.tolist() == [0, 2]
    assert sums[0] == 0 and sums[1] > 0
