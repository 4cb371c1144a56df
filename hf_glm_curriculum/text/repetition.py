"""Repetition and diversity over English words and Chinese characters."""

from collections import Counter
from collections.abc import Iterable

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.words import words


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """Return the n-grams of a text's lower-cased units (words, Han characters), in order.

    Raises:
        DataError: if n is below 1.
    """
    if n < 1:
        raise DataError(f"n: must be at least 1, got {n}; pass 1 for single words")
    units = [unit.lower() for unit in words(text)]
    return [tuple(units[start : start + n]) for start in range(len(units) - n + 1)]


def distinct_n(texts: str | Iterable[str], n: int = 2) -> float:
    """Compute distinct-n: different n-grams over all n-grams, pooled over the texts.

    Source: Li et al. 2016, "A Diversity-Promoting Objective Function". Returns 1.0 when there is
    no n-gram at all.

    Raises:
        DataError: if n is below 1.
    """
    pool = [texts] if isinstance(texts, str) else texts
    counts: Counter[tuple[str, ...]] = Counter()
    for text in pool:
        counts.update(ngrams(text, n))
    total = counts.total()
    return len(counts) / total if total else 1.0


def repeated_ngram_share(text: str, n: int = 3) -> float:
    """Compute the share of n-grams that already occurred earlier in the text, in [0, 1).

    Raises:
        DataError: if n is below 1.
    """
    grams = ngrams(text, n)
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def longest_repeat(text: str) -> int:
    """Return how many times in a row the most repeated block of up to 8 units is said.

    "go go go" gives 3, text without an immediate repetition gives 1, an empty text 0.
    """
    units = [unit.lower() for unit in words(text)]
    best = 1 if units else 0
    for size in range(1, min(8, len(units) // 2) + 1):
        run = 0
        for position in range(len(units) - size):
            run = run + 1 if units[position] == units[position + size] else 0
            best = max(best, 1 + run // size)
    return best
