"""Head verbs and named answers, in English and Chinese."""

import pytest

from hf_glm_curriculum.curriculum.answer_space import answer_space
from hf_glm_curriculum.curriculum.chinese_verbs import CHINESE_VERBS
from hf_glm_curriculum.curriculum.head_verbs import head_verb, verb_senses


@pytest.mark.parametrize(
    ("text", "verb", "lemma"),
    [
        ("Write a poem about rain.", "write", "write"),
        ("Please summarize the text below.", "summarize", "summarize"),
        ("Could you please explain how tides work?", "explain", "explain"),
        ("I want you to act as a travel guide.", "act", "act"),
        ("Your task is to translate the sentence.", "translate", "translate"),
        ("Let's compose a song together.", "compose", "compose"),
        ("Given a list of numbers, sort them ascendingly.", "sort", "sort"),
        ("You are a helpful tutor. Describe photosynthesis.", "describe", "describe"),
        ("1. Classify the review.", "classify", "classify"),
        ("Why is the sky blue?", "why", "explain"),
        ("How many legs does a spider have?", "how", "calculate"),
        ("Which planet is the largest?", "which", "identify"),
        ("Is the earth flat?", "is", "judge"),
        ("请写一首关于春天的诗", "写一", "write"),
        ("请帮我把下面的句子翻译成英文", "翻译", "translate"),
        ("你能介绍一下长城吗？", "介绍", "introduce"),
        ("如何学好英语？", "如何", "explain"),
        ("三国演义的作者是谁？", "谁", "identify"),
        ("一年有几个月？", "几个月？", "calculate"),
        ("请给我几个旅行建议", "建议", "suggest"),
        ("根据下面的文章，总结主要观点。", "总结", "summarize"),
    ],
)
def test_the_verb_that_an_instruction_asks_for(text, verb, lemma):
    found = head_verb(text)
    assert (found.verb, found.lemma) == (verb, lemma)
    assert found.senses == verb_senses(lemma) > 0


@pytest.mark.parametrize("text", ["", "  ", "12 + 5 =", "???", "The weather.", "日月星辰"])
def test_without_a_verb_there_is_none(text):
    found = head_verb(text)
    assert found.senses == 0 and found.breadth == 0.0 and found.rule == "no verb was found"


def test_every_chinese_verb_has_the_senses_of_a_verb_that_wordnet_knows():
    unknown = {english for english in CHINESE_VERBS.values() if not verb_senses(english)}
    assert not unknown


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("Write a story.", None),
        ("Tell me if the sentence is grammatical.", 2),
        ("Answer yes or no: is water wet?", 2),
        ("Classify the sentiment as positive, negative or neutral.", 3),
        ("Choose the right one. A) red B) green C) blue D) black", 4),
        ("How many people live in Oslo?", 1),
        ("What is the area of a circle of radius 2?", 1),
        ("12 * (3 + 4) =", 1),
        ("判断下面的说法是否正确", 2),
        ("小明有3个苹果，吃了1个，还剩多少个？", 1),
        ("谈谈春天", None),
        ("天空是蓝色的吗？", 2),
        ("你能写一首关于秋天的诗吗？", None),
        ("可以帮我想几个公司名字吗", None),
        ("写一篇关于计算机历史的文章", None),
        ("介绍一下云计算", None),
        ("请给我几个旅行建议", None),
        ("一年有几个月？", 1),
        ("计算 3 乘 7", 1),
        ("Write a Python function to compute the factorial of n.", None),
        ("Write a poem about one of the following topics: sea, sky.", None),
        ("Explain how to determine if a mushroom is edible.", None),
        ("Write yes or no: is water wet?", 2),
        ("Count the vowels.", 1),
    ],
)
def test_answers_that_a_text_names(text, answers):
    assert answer_space(text).answers == answers
