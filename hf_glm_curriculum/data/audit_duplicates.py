"""Near duplicates among many records in bounded memory: MinHash, banding by sorting, proof.

Signatures are datasketch's (``affine32``); the bands are those datasketch's ``MinHashLSH`` would
use, but are compared by sorting one band at a time. ``MinHashLSH`` keeps every band of every row
in Python dictionaries, gigabytes at a million rows; here a row costs ``4 * num_perm`` bytes, of a
temporary file where they are many.
A pair that shares a band is a candidate only: what is reported was compared in full.

Shape letters: N rows, P permutations, M pairs.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from datasketch import MinHash, MinHashLSH

from hf_glm_curriculum.data.audit_text import normalise, numbers, question_key, script

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_PIECES_AT_ONCE = 4096
_SLACK = 0.15  # an estimate from 64 permutations is off by 0.05 (standard deviation) at 0.8


def shingles(text: str) -> np.ndarray:
    """Hash the overlapping pieces of a normalised text.

    Pieces have 3 characters where the text is Chinese, Japanese or Korean, otherwise 5.

    Returns:
        uint32 [pieces], at least one; a shorter text is one piece.
    """
    size = 3 if script(text) in ("zh", "ja", "ko") else 5
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    count = max(len(codes) - size + 1, 1)
    value = np.zeros(count, dtype=np.uint64)
    for shift in range(min(size, len(codes))):
        value = (value + codes[shift : shift + count]) * _MULTIPLIER
        value ^= value >> np.uint64(29)
    return (value >> np.uint64(32)).astype(np.uint32)


def signatures(texts: Iterable[str], num_perm: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the MinHash signature, uint32 [P], of each normalised text, as datasketch's is."""
    sketch = MinHash(num_perm=num_perm, seed=seed, hashfunc=int, scheme="affine32")
    permutations = np.asarray(sketch.permutations, np.uint32)
    factors, shifts = permutations[0][:, None], permutations[1][:, None]
    for text in texts:
        hashes = _mixed(shingles(text))
        least = np.full(num_perm, np.uint32(0xFFFFFFFF))
        for start in range(0, len(hashes), _PIECES_AT_ONCE):
            some = hashes[start : start + _PIECES_AT_ONCE]
            np.minimum(least, (factors * some + shifts).min(axis=1), out=least)
        yield least


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of MurmurHash3 (Appleby, public domain), which ``affine32`` begins with."""
    values = (values ^ (values >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return values ^ (values >> np.uint32(16))


def candidate_pairs(table: np.ndarray, threshold: float) -> np.ndarray:
    """Find pairs of rows that share a band and look alike by their signatures.

    In a group that shares a band each row is paired with the first and with the one before it:
    the number of pairs stays linear in N however large a group grows.

    Args:
        table: uint32 [N, P] signatures.
        threshold: Jaccard similarity the bands are tuned for.

    Returns:
        int64 [M, 2], each (later row, earlier row), sorted.
    """
    lsh = MinHashLSH(threshold=threshold, num_perm=table.shape[1])
    found = [np.empty((0, 2), np.int64)]
    for band in range(lsh.b):
        pairs = _pairs_of_band(table[:, band * lsh.r : (band + 1) * lsh.r])
        alike = _estimate(table, pairs) >= threshold - _SLACK
        found.append(pairs[alike])
    return np.unique(np.concatenate(found), axis=0)


def _pairs_of_band(band: np.ndarray) -> np.ndarray:
    """Pair rows whose values in one band are equal."""
    key = np.zeros(len(band), dtype=np.uint64)
    for column in band.T:
        key = (key ^ column) * _MULTIPLIER
        key ^= key >> np.uint64(32)
    order = np.argsort(key, kind="stable")
    same = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    if not len(same):
        return np.empty((0, 2), np.int64)
    is_start = np.ones(len(order), dtype=bool)
    is_start[same] = False
    start = np.maximum.accumulate(np.where(is_start, np.arange(len(order)), 0))
    later = np.concatenate([order[same], order[same]])
    earlier = np.concatenate([order[start[same]], order[same - 1]])
    return np.stack([later, earlier], axis=1)


def _estimate(table: np.ndarray, pairs: np.ndarray, block: int = 65536) -> np.ndarray:
    """Estimate the Jaccard similarity of pairs, float [M], a block in memory at a time."""
    parts = [np.empty(0)]
    for first in range(0, len(pairs), block):
        part = pairs[first : first + block]
        parts.append((table[part[:, 0]] == table[part[:, 1]]).mean(axis=1))
    return np.concatenate(parts)


def jaccard(first: str, second: str) -> float:
    """Return the Jaccard similarity of two normalised texts' shingles."""
    one, two = np.unique(shingles(first)), np.unique(shingles(second))
    common = len(np.intersect1d(one, two, assume_unique=True))
    return common / (len(one) + len(two) - common)


def near_duplicate(
    first: tuple[str, str], second: tuple[str, str], threshold: float
) -> float | None:
    """Compare two records in full.

    Records built on one template are alike and yet distinct tasks: other numbers, or another word
    in the same place, make another question unless a long answer is the same too.

    Args:
        first: (prompt, answer).
        second: (prompt, answer).
        threshold: least similarity.

    Returns:
        The similarity if the second is a near duplicate of the first, else None.
    """
    prompt, answer = (question_key(normalise(text)) for text in first)
    prompt_2, answer_2 = (question_key(normalise(text)) for text in second)
    similarity = jaccard(f"{prompt}\n{answer}", f"{prompt_2}\n{answer_2}")
    if similarity < threshold:
        return None
    answers = 1.0 if answer == answer_2 else jaccard(answer, answer_2)
    if answers < 0.7 or numbers(answer) != numbers(answer_2):
        return None
    same_task = numbers(prompt) == numbers(prompt_2) and not _other_filling(prompt, prompt_2)
    return similarity if same_task or (len(answer) >= 80 and answers >= threshold) else None


def _other_filling(first: str, second: str) -> bool:
    """Return whether two texts differ by unlike words in one place, as fillings of a template."""
    start = 0
    limit = min(len(first), len(second))
    while start < limit and first[start] == second[start]:
        start += 1
    end = 0
    while end < limit - start and first[-1 - end] == second[-1 - end]:
        end += 1
    one, two = first[start : len(first) - end], second[start : len(second) - end]
    one, two = _letters(one), _letters(two)
    return bool(one and two) and jaccard(one, two) < 0.5


def _letters(text: str) -> str:
    """Return the letters and digits of a text."""
    return "".join(character for character in text if character.isalnum())
