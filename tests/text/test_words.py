"""Words, sentences, paragraphs and whole-word search."""

import pytest

from hf_glm_curriculum.text.words import (
    contains_phrase,
    lines,
    paragraphs,
    phrase_positions,
    sentences,
    word_count,
    words,
)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("Don't stop, it's 3.5 km.", ["Don't", "stop", "it's", "3.5", "km"]),
        ("1,000 people", ["1,000", "people"]),
        ("我有3个apples", ["我", "有", "3", "个", "apples"]),
        ("well-known", ["well", "known"]),
        ("  ", []),
    ],
)
def test_words(text, units):
    assert words(text) == units
    assert word_count(text) == len(units)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("Dr. Smith paid $3.50. He left.", 2),
        ('He said "Go." Then he went.', 2),
        ("今天下雨。明天呢？好！", 3),
        ("1. First item\n2. Second item", 2),
        ("No end mark", 1),
        ("Wait... what?!", 2),
        ("", 0),
    ],
)
def test_sentences(text, count):
    assert len(sentences(text)) == count


def test_paragraphs_and_lines():
    text = "One\nstill one\n\n\nTwo\n"
    assert paragraphs(text) == ["One\nstill one", "Two"]
    assert lines(text) == ["One", "still one", "Two"]


def test_phrases_match_whole_words_only_next_to_latin_letters():
    assert not contains_phrase("We start now", "art")
    assert contains_phrase("Modern Art!", "art")
    assert not contains_phrase("Modern Art!", "art", case=True)
    assert contains_phrase("他住在北京市", "北京")
    assert not contains_phrase("13月12日", "3月12日")
    assert phrase_positions("a cat, a cat", "cat") == [2, 9]
    assert not contains_phrase("anything", "")
