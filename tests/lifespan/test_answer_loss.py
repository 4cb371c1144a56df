"""Loss of answers with and without their prompts, against one forward a pair."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.answer_loss import answer_losses, conditional_gain
from tests.conftest import build_model, build_tokenizer

PAIRS = [
    ("Name a colour.", "Blue."),
    ("What is two and two? Answer with a word and nothing else.", "four"),
    ("Repeat.", "a long answer that goes on and on and on and on, longer than the rest"),
    ("x", "y"),
    ("翻译：天", "sky"),
]


def naive(model, ids: list[int], start: int) -> float:
    """Mean loss of ids[start:], one row, by hand."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
    return float(loss[start - 1 :].mean())


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_both_losses_equal_one_forward_a_pair(kind):
    model, tokenizer = build_model(kind).train(), build_tokenizer()
    losses = conditional_gain(model, tokenizer, PAIRS, batch_size=3)
    assert model.training  # as it was
    model.eval()
    for i, (prompt, response) in enumerate(PAIRS):
        for given, loss in ((prompt, losses.loss_with[i]), ("", losses.loss_without[i])):
            before = tokenizer(f"<user>{given}<assistant>", add_special_tokens=False)["input_ids"]
            whole = before + tokenizer(f"{response}<eos>", add_special_tokens=False)["input_ids"]
            assert float(loss) == pytest.approx(naive(model, whole, len(before)), abs=1e-5)
    assert torch.equal(losses.difficulty, losses.loss_with / losses.loss_without)


def test_a_tokenizer_without_a_template_joins_by_lines():
    model, tokenizer = build_model().eval(), build_tokenizer()
    losses = answer_losses(model, tokenizer, PAIRS[:1], chat_template=False)
    before = tokenizer("Name a colour.\n", add_special_tokens=False)["input_ids"]
    whole = before + tokenizer("Blue.<eos>", add_special_tokens=False)["input_ids"]
    assert float(losses.mean[0]) == pytest.approx(naive(model, whole, len(before)), abs=1e-5)
    assert losses.n_tokens.tolist() == [6]


def test_long_pairs_keep_the_answer_and_the_end_of_the_prompt():
    model, tokenizer = build_model().eval(), build_tokenizer()
    pair = ("a" * 100, "bcd")
    losses = answer_losses(model, tokenizer, [pair], max_length=10)
    tail = tokenizer("aaaaa<assistant>bcd<eos>", add_special_tokens=False)["input_ids"][-10:]
    assert float(losses.mean[0]) == pytest.approx(naive(model, tail, 6), abs=1e-5)
    short = answer_losses(model, tokenizer, [("q", "b" * 100)], max_length=10)
    assert short.n_tokens.tolist() == [9]


def test_nothing_to_read_is_an_error():
    with pytest.raises(DataError, match="needs at least one"):
        conditional_gain(build_model(), build_tokenizer(), [])
