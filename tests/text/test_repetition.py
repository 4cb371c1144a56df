"""Repetition and diversity."""

import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.repetition import distinct_n, longest_repeat, repeated_ngram_share


def test_distinct_n_pools_texts_and_counts_han_characters():
    assert distinct_n(["a b", "a b"], 2) == 0.5
    assert distinct_n("我我我", 1) == pytest.approx(1 / 3)
    assert distinct_n([], 2) == 1.0


def test_repeated_share_grows_with_repetition_and_ignores_case():
    varied = "the quick brown fox jumps over the lazy dog"
    looped = "Go home now. go home now. Go home now."
    assert repeated_ngram_share(varied, 3) == 0.0
    assert repeated_ngram_share(looped, 3) == pytest.approx(1 - 3 / 7)
    assert repeated_ngram_share("天天向上天天向上", 2) == pytest.approx(1 - 4 / 7)
    assert repeated_ngram_share("a", 3) == 0.0


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("go go go", 3),
        ("I see, I see, I see it", 3),
        ("one two three", 1),
        ("", 0),
        ("哈哈哈哈", 4),
    ],
)
def test_longest_repeat(text, times):
    assert longest_repeat(text) == times


def test_n_below_one_is_refused():
    with pytest.raises(DataError, match=r"^n:"):
        distinct_n("a b", 0)
