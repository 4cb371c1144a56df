"""Texts of chunks as vectors of weighted terms and as sets of shingles, without a model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from scipy import sparse

from hf_glm_curriculum.attention.minhash import Permutations, equal_values

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_CJK = re.compile(r"[㐀-䶿一-鿿豈-﫿]")
_TERM_SPACE = 1 << 20
_SHINGLE = 5  # terms in a row


def terms(text: str) -> list[str]:
    """Words in lower case; of Chinese, Japanese and Korean runs each pair of characters."""
    found: list[str] = []
    for word in _WORD.findall(text.lower()):
        if _CJK.search(word):
            found += [word[i : i + 2] for i in range(max(1, len(word) - 1))]
        else:
            found.append(word)
    return found


class TermVectors:
    """TF-IDF vectors of texts, for cosines between them and with a query."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Count the terms of these texts."""
        counts = _counts(texts)
        present = np.bincount(counts.indices, minlength=_TERM_SPACE)
        self._weights = np.log((1 + len(texts)) / (1 + present)) + 1
        self._rows = self._weighted(counts)

    def scores(self, query: str) -> np.ndarray:
        """Cosine of a query with every text: float64 [texts]."""
        return np.asarray((self._rows @ self._weighted(_counts([query])).T).todense()).ravel()

    def _weighted(self, counts: Any) -> sparse.csr_array:
        values = (1 + np.log(counts.data)) * self._weights[counts.indices]
        rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
        norms = np.sqrt(np.bincount(rows, values**2, minlength=counts.shape[0]))
        values /= norms[rows]
        return sparse.csr_array((values, counts.indices, counts.indptr), shape=counts.shape)


def _counts(texts: Sequence[str]) -> sparse.csr_array:
    """How often each term stands in each text: [texts, term numbers]."""
    columns: list[int] = []
    values: list[int] = []
    bounds = [0]
    for text in texts:
        numbers = Counter(crc32(term.encode()) % _TERM_SPACE for term in terms(text))
        columns += numbers.keys()
        values += numbers.values()
        bounds.append(len(columns))
    return sparse.csr_array(
        (np.array(values, np.int64), np.array(columns, np.int64), bounds),
        shape=(len(texts), _TERM_SPACE),
    )


def duplicate_groups(texts: Sequence[str], threshold: float) -> list[int]:
    """Group number of each text: near copies (estimated Jaccard of shingles) share one.

    A text joins the group of the first text it is a near copy of.
    """
    sets = [_shingles(text) for text in texts]
    bounds = np.cumsum([0, *map(len, sets)])
    members = np.concatenate([*map(np.array, sets), np.empty(0)]).astype(np.int64)
    permutations = Permutations()
    signatures = permutations.set_signatures(members, bounds)
    groups = list(range(len(texts)))
    for index in range(1, len(texts)):
        equal = equal_values(signatures[index : index + 1], signatures[:index])[0]
        first = int(np.argmax(equal >= threshold * permutations.num_perm))
        if equal[first] >= threshold * permutations.num_perm:
            groups[index] = groups[first]
    return groups


def _shingles(text: str) -> list[int]:
    words = terms(text)
    runs = range(max(1, len(words) - _SHINGLE + 1)) if words else range(0)
    return sorted({crc32(" ".join(words[i : i + _SHINGLE]).encode()) for i in runs})
