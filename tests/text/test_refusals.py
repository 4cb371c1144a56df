"""Refusals, boilerplate and truncation."""

import pytest

from hf_glm_curriculum.text import is_refusal, looks_truncated, template_opening
from hf_glm_curriculum.text.refusals import refusal_rate
from hf_glm_curriculum.text.templates import template_closing, template_share


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I’m unable to assist with this request.",
        "Sorry, that would be illegal.",
        "As an AI, I cannot provide instructions for this.",
        "抱歉，我不能帮你做这件事。",
        "很抱歉，我无法提供这类信息。",
        "对不起，这是违法的。",
    ],
)
def test_refusals(text):
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "Sorry I am late; the answer is 4.",
        "I can't say for sure, but it is probably Lisbon.",
        "You can't divide by zero.",
        "流动性风险是指市场参与者无法满足投资者的需求。",
        "当然可以，方法如下。",
        "Here is the plan. First, eat well. Later on I cannot help but smile.",
        "",
    ],
)
def test_answers_are_no_refusals(text):
    assert not is_refusal(text)


def test_refusal_rate():
    assert refusal_rate(["I can't help with that.", "Paris."]) == 0.5
    assert refusal_rate([]) == 0.0


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("As an AI language model, I think so.", "as an ai"),
        ("  **Sure!** Here it is", "sure!"),
        ("好的，以下是答案", "好的,"),
        ("作为一个人工智能，我没有感情", "作为一个人工智能"),
        ("Paris is the capital.", None),
        ("Surely not.", None),
    ],
)
def test_openings(text, phrase):
    assert template_opening(text) == phrase


def test_closings_and_share():
    assert template_closing("It is 4. I hope this helps!") == "i hope this helps"
    assert template_closing("答案是4。希望对你有帮助！") == "希望对你有帮助"
    assert template_closing("It is 4.") is None
    assert template_share(["Sure, ok.", "It is 4."]) == 0.5
    assert template_share([]) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "The cat sat on the",
        "First, open the box,",
        "It was (a long",
        "```python\nprint(1)",
        "The capital of France, a large country in Europe, is called Par",
        "好的，我们可以先打开盒子，然后把",
        "他说：“今天",
    ],
)
def test_truncated(text):
    assert looks_truncated(text)


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        "42 km",
        "It is done.",
        "他走了。",
        "- apples\n- pears",
        "He said “go.”",
        "",
        "1. a\n2. b",
    ],
)
def test_complete(text):
    assert not looks_truncated(text)
