"""How rare words are without a corpus of one's own: tables bundled with the package.

An n-gram's frequency p becomes the share of documents it occurs in, 1 − exp(−L·p), for documents of
L units, so that bundled and counted figures are both inverse document frequencies in bits.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources

import numpy as np

from hf_glm_curriculum.text.words import is_han

DOCUMENT_UNITS = 64
"""Units (words, Han characters) of the document that a frequency is turned into a share of."""

MOST_BITS = 24.0
"""Most bits of one n-gram: one that occurs in a document of 17 million."""

LONGEST = 3
"""Units of the longest n-grams."""

NUMBER_BITS = 5.6
"""Bits of a number, whichever it is: about 2 % of running text are numbers (wordfreq's digit
classes together)."""

UNSEEN_BITS = 3.0
"""Bits above the rarest word of its table that a word in no table has."""


@cache
def read_table(name: str) -> dict[str, int]:
    """A bundled table: text → number."""
    path = resources.files("hf_glm_curriculum.curriculum") / "tables" / f"{name}.tsv.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()
    return {text: int(number) for text, _, number in (line.partition("\t") for line in lines)}


@cache
def _unseen(name: str) -> float:
    return max(read_table(name).values()) / 100 + UNSEEN_BITS


def unit_surprisal(unit: str) -> float:
    """−log₂ of the frequency of a word, number or Han character, in bits.

    All numbers are one word: how often 1,749 is written says nothing of what is asked.
    """
    if unit[:1].isdigit():
        return NUMBER_BITS
    name = "ngrams_zh" if unit and is_han(unit[0]) else "words_en"
    found = read_table(name).get(unit)
    return _unseen(name) if found is None else found / 100


def document_bits(surprisal: np.ndarray) -> np.ndarray:
    """Inverse document frequency of n-grams with these −log₂ frequencies, bits, float64."""
    share = -np.expm1(-DOCUMENT_UNITS * np.exp2(-np.asarray(surprisal, dtype=np.float64)))
    return np.minimum(-np.log2(np.maximum(share, np.exp2(-MOST_BITS))), MOST_BITS)


class BackgroundTable:
    """Bits of n-grams by the bundled tables.

    Runs of Han characters are looked up; a run of words, or of characters in no table, is as rare
    as its parts together would be if they stood side by side by chance.
    """

    def bits(self, units: list[str]) -> list[np.ndarray]:
        """Inverse document frequencies of all n-grams of a text.

        Args:
            units: its words, numbers and Han characters, lower case.

        Returns:
            One float64 array for n = 1, 2, 3, each with the n-grams in order.
        """
        single = np.array([unit_surprisal(unit) for unit in units], dtype=np.float64)
        found = [document_bits(single)]
        sums = np.concatenate([[0.0], np.cumsum(single)])
        table = read_table("ngrams_zh")
        han = [bool(unit) and is_han(unit[0]) for unit in units]
        for n in range(2, LONGEST + 1):
            surprisal = sums[n:] - sums[:-n] if len(units) >= n else np.empty(0)
            for start in range(len(surprisal)):
                if all(han[start : start + n]):
                    known = table.get("".join(units[start : start + n]))
                    surprisal[start] = surprisal[start] if known is None else known / 100
            found.append(document_bits(surprisal))
        return found
