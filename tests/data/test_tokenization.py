"""Labels on the answers only, for templates of every habit."""

import datasets
import pytest
import torch

from hf_glm_curriculum.data.collator import SftCollator
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.errors import ConfigError, DataError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GLM = (  # a turn ends where the next begins
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKING = (  # only the last answer shows its (empty) thought
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"


def with_template(tokenizer, template, *special):
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template
    return tokenizer


def labelled(tokenizer, row):
    """The texts of the labelled stretches of a row."""
    stretches, current = [], []
    for label in [*row["labels"], -100]:
        if label != -100:
            current.append(label)
        elif current:
            stretches.append(tokenizer.decode(current))
            current = []
    return stretches


def turns(*contents):
    roles = ["user", "assistant"] * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def single(**extra):
    return datasets.Dataset.from_dict(
        {"prompt": ["What is 2 + 2?", "问"], "response": ["It is 4.", "答"], **extra}
    )


def test_chatml_labels_answer_and_end_of_turn(tiny_tokenizer):
    tokenizer = with_template(tiny_tokenizer, CHATML, "<|im_start|>", "<|im_end|>")
    found = tokenize_sft(single(), tokenizer)
    assert labelled(tokenizer, found[0]) == ["It is 4.<|im_end|>"]
    assert labelled(tokenizer, found[1]) == ["答<|im_end|>"]
    whole = tokenizer.decode(found[0]["input_ids"])
    assert whole == (
        "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\nIt is 4.<|im_end|>"
    )


def test_template_without_end_of_turn_gets_eos(tiny_tokenizer):
    tokenizer = with_template(tiny_tokenizer, GLM, "<|user|>", "<|assistant|>")
    found = tokenize_sft(single(), tokenizer)
    assert labelled(tokenizer, found[0]) == ["It is 4.<eos>"]
    assert found[0]["input_ids"][-1] == tokenizer.eos_token_id


def test_no_template_joins_with_a_line_break(tiny_tokenizer):
    for tokenizer, flag in ((tiny_tokenizer, False), (tiny_tokenizer, True)):
        if flag:
            tokenizer.chat_template = None
        found = tokenize_sft(single(), tokenizer, chat_template=flag)
        assert tokenizer.decode(found[0]["input_ids"]) == "What is 2 + 2?\nIt is 4.<eos>"
        assert labelled(tokenizer, found[0]) == ["It is 4.<eos>"]


@pytest.mark.parametrize("template", [CHATML, None])
def test_every_assistant_turn_is_labelled(tiny_tokenizer, template):
    tokenizer = with_template(tiny_tokenizer, template, "<|im_start|>", "<|im_end|>")
    conversation = turns("a", "first", "b", "second")
    data = datasets.Dataset.from_dict({"messages": [conversation]})
    end = "<|im_end|>" if template else "<eos>"
    found = tokenize_sft(data, tokenizer)
    assert labelled(tokenizer, found[0]) == [f"first{end}", f"second{end}"]


def test_messages_and_prompts_side_by_side(tiny_tokenizer):
    tokenizer = with_template(tiny_tokenizer, CHATML, "<|im_start|>", "<|im_end|>")
    data = single(messages=[None, turns("x", "y", "z", "w")])
    found = tokenize_sft(data, tokenizer)
    assert labelled(tokenizer, found[0]) == ["It is 4.<|im_end|>"]
    assert labelled(tokenizer, found[1]) == ["y<|im_end|>", "w<|im_end|>"]


def test_template_that_changes_earlier_turns_is_said_and_never_labels_prompts(
    tiny_tokenizer, caplog
):
    tokenizer = with_template(tiny_tokenizer, THINKING, "<|im_start|>", "<|im_end|>")
    data = datasets.Dataset.from_dict({"messages": [turns("a", "first", "b", "second")]})
    found = labelled(tokenizer, tokenize_sft(data, tokenizer)[0])
    assert found[-1] == "<think></think>second<|im_end|>"
    assert not any("user" in stretch or "b" in stretch for stretch in found[:-1])


def test_prompt_that_is_no_prefix_is_cut_back_and_said(tiny_tokenizer, caplog):
    merging = (  # the answer swallows the blank that ends the prompt
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}:"
        "{% else %}={{ m['content'] }}<eos>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %} {% endif %}"
    )
    tiny_tokenizer.chat_template = merging
    found = tokenize_sft(single(), tiny_tokenizer)
    assert labelled(tiny_tokenizer, found[0]) == ["=It is 4.<eos>"]
    assert "2 samples (first: row 0)" in caplog.text and "no prefix" in caplog.text


def test_other_columns_and_order_survive(tiny_tokenizer):
    data = single(meta=[{"a": 1}, {"a": 2}], input_ids=[[9], [9]]).select([1, 0])
    found = tokenize_sft(data, tiny_tokenizer)
    assert found["prompt"][:] == ["问", "What is 2 + 2?"]
    assert found["meta"][:] == [{"a": 2}, {"a": 1}]
    assert sorted(found.column_names) == ["input_ids", "labels", "meta", "prompt", "response"]
    assert found[0]["input_ids"] != [9] and len(found[1]["labels"]) == len(found[1]["input_ids"])


def test_truncation_is_said_and_a_cut_answer_has_no_eos(tiny_tokenizer, caplog):
    full = tokenize_sft(single(), tiny_tokenizer)
    size = len(full[0]["input_ids"]) - 3
    cut = tokenize_sft(single(), tiny_tokenizer, max_length=size)
    assert cut[0]["input_ids"] == full[0]["input_ids"][:size]
    assert cut[0]["input_ids"][-1] != tiny_tokenizer.eos_token_id
    assert cut[1] == full[1]
    assert f"1 of 2 samples cut to max_length={size}" in caplog.text


def test_samples_whose_answer_is_cut_away(tiny_tokenizer, caplog):
    with pytest.raises(DataError, match=r"1 of 2 samples \(first: row 0\).*max_length=10"):
        tokenize_sft(single(), tiny_tokenizer, max_length=10)
    left = tokenize_sft(single(), tiny_tokenizer, max_length=10, without_labels="drop")
    assert left["prompt"][:] == ["问"] and "are dropped" in caplog.text
    with pytest.raises(DataError, match="2 of 2 samples"):
        tokenize_sft(single(), tiny_tokenizer, max_length=2, without_labels="drop")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.remove_columns("response"), "need prompt and response, or messages"),
        (lambda d: d.select([]), "0 rows"),
        (lambda d: datasets.Dataset.from_dict({"prompt": ["a"], "response": [None]}), "row 0"),
        (lambda d: datasets.Dataset.from_dict({"messages": [turns("a")]}), "last turn"),
    ],
)
def test_wrong_data_are_named(tiny_tokenizer, change, message):
    with pytest.raises(DataError, match=message):
        tokenize_sft(change(single()), tiny_tokenizer)


def test_wrong_arguments_are_named(tiny_tokenizer):
    with pytest.raises(DataError, match="max_length"):
        tokenize_sft(single(), tiny_tokenizer, max_length=1)
    with pytest.raises(DataError, match="without_labels"):
        tokenize_sft(single(), tiny_tokenizer, without_labels="ignore")
    tiny_tokenizer.chat_template = NO_SYSTEM
    conversation = [{"role": "system", "content": "s"}, *turns("a", "b")]
    data = datasets.Dataset.from_dict({"messages": [conversation]})
    with pytest.raises(DataError, match=r"row 0: the chat template refuses.*no system"):
        tokenize_sft(data, tiny_tokenizer)
    tiny_tokenizer.eos_token = None
    with pytest.raises(DataError, match="EOS"):
        tokenize_sft(single(), tiny_tokenizer)


@pytest.mark.parametrize("side", ["left", "right"])
def test_collator_pads_and_ids_match_the_index(tiny_tokenizer, side):
    data = tokenize_sft(single(), tiny_tokenizer)
    batch = SftCollator(0, side, pad_to_multiple_of=8)([data[1], data[0]])
    assert batch["input_ids"].shape[1] % 8 == 0
    assert {name: value.dtype for name, value in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), torch.int64
    )
    for row, sample in ((0, data[1]), (1, data[0])):
        real = batch["attention_mask"][row] == 1
        assert batch["input_ids"][row][real].tolist() == sample["input_ids"]
        assert batch["labels"][row][real].tolist() == sample["labels"]
        assert (batch["labels"][row][~real] == -100).all()
        assert real[-1 if side == "left" else 0]
    ids = content_ids(batch["input_ids"], batch["attention_mask"])
    assert SampleIndex.from_dataset(data).lookup(ids).tolist() == [1, 0]


def test_collator_refuses_what_it_cannot_pad():
    with pytest.raises(ConfigError, match="padding_side"):
        SftCollator(0, "middle")
    with pytest.raises(ConfigError, match="pad_token_id"):
        SftCollator(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="labels: not in the sample"):
        SftCollator(0)([{"input_ids": [1]}])
    with pytest.raises(DataError, match="2 labels for 1"):
        SftCollator(0)([{"input_ids": [1], "labels": [1, 2]}])
