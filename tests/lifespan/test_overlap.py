"""Neighbours by shared words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.lifespan.overlap import WordOverlap

PROMPTS = [
    "What is the capital of France?",
    "Name the capital city of France.",
    "What is the boiling point of water?",
    "法国的首都是哪里？",
    "请写出法国的首都。",
    "Sort these words.",
]


def test_the_prompt_with_the_rarest_words_in_common_comes_first():
    overlap = WordOverlap(PROMPTS)
    assert overlap.nearest(PROMPTS[0], without=frozenset({0}))[0][0] == 1
    assert overlap.nearest(PROMPTS[3], without=frozenset({3}))[0][0] == 4


def test_itself_is_at_similarity_one_and_strangers_are_left_out():
    overlap = WordOverlap(PROMPTS)
    assert overlap.nearest(PROMPTS[5], count=5) == [(5, pytest.approx(1.0))]
    assert overlap.nearest("Entirely unrelated gibberish") == []
    assert overlap.nearest("") == [] and WordOverlap([]).nearest("anything") == []


def test_the_words_of_a_template_do_not_make_neighbours():
    wrapped = [f"system You are a helpful assistant user {p}" for p in PROMPTS]
    overlap = WordOverlap(wrapped)
    assert overlap.nearest(wrapped[0], count=1, without=frozenset({0}))[0][0] == 1


@given(st.lists(st.text(max_size=30), max_size=8), st.text(max_size=30))
def test_any_text_gives_sorted_similarities_in_bounds(prompts, prompt):
    found = WordOverlap(prompts).nearest(prompt, count=4, least=0.0)
    scores = [score for _, score in found]
    assert scores == sorted(scores, reverse=True) and all(0 <= s <= 1 + 1e-9 for s in scores)
