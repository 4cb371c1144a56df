"""MinHash signatures of positions' neighbourhoods and of arbitrary sets, bit-equal to datasketch.

datasketch updates one signature with one element at a time. Here a window's signature is the
sliding minimum of the permuted hashes of single positions, taken for all permutations at once
(article 1, §3.4; Broder 1997).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from datasketch import MinHash

from hf_glm_curriculum.errors import ConfigError

EMPTY = np.uint32(0xFFFFFFFF)
"""What every permutation of an empty set's signature holds."""

SCHEMES = ("affine32", "legacy")
_MERSENNE_BITS = 61
_MERSENNE = np.uint64((1 << _MERSENNE_BITS) - 1)
_ROWS = 2048  # positions whose permuted hashes are held at once: two buffers of about a MiB
_PAIRS = 1 << 16  # signature pairs compared at once: their counts stay in the cache


@dataclass(frozen=True)
class Permutations:
    """The random permutations of a MinHash, and how elements are hashed (SHA-1, 32 bits).

    Signatures can be compared only where all three fields are the same.
    """

    num_perm: int = 128
    seed: int = 1
    scheme: str = "affine32"
    _factors: np.ndarray = field(init=False, repr=False, compare=False)
    _terms: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Draw the permutations as datasketch does.

        Raises:
            ConfigError: The scheme is unknown or there is no permutation.
        """
        if self.scheme not in SCHEMES:
            raise ConfigError(
                f"minhash_scheme: must be one of {', '.join(SCHEMES)}, got {self.scheme!r}."
            )
        if self.num_perm < 1:
            raise ConfigError(f"num_perm: must be at least 1, got {self.num_perm}.")
        scheme = "legacy" if self.scheme == "legacy" else "affine32"
        factors, terms = np.asarray(MinHash(self.num_perm, self.seed, scheme=scheme).permutations)
        object.__setattr__(self, "_factors", factors)
        object.__setattr__(self, "_terms", terms)

    def permuted(self, elements: Iterable[int]) -> np.ndarray:
        """Permuted hashes of integers written as text: uint32 [elements, num_perm]."""
        hashes = _hashes(elements)
        if self.scheme == "affine32":
            mixed = _mixed(hashes)[:, None]
            return mixed * self._factors + self._terms
        # uint64 arithmetic wraps around here as it does in datasketch.
        wide = hashes.astype(np.uint64)[:, None] * self._factors
        wide += self._terms
        high = wide >> np.uint64(_MERSENNE_BITS)
        wide &= _MERSENNE
        wide += high  # now at most 7 above the prime
        found = wide.astype(np.uint32)  # the low 32 bits are kept
        found += wide >= _MERSENNE  # taking 2^61 − 1 away adds 1 to them
        return found

    def set_signatures(self, members: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """Signatures of many sets of integers, equal to those of ``MinHash.bulk``.

        Args:
            members: int [total], the sets one after the other.
            bounds: int [sets + 1], where each begins and where the last ends.

        Returns:
            uint32 [sets, num_perm]; an empty set's row is `EMPTY`.
        """
        elements, index = np.unique(members, return_inverse=True)
        table = self.permuted(elements.tolist())
        found = np.full((len(bounds) - 1, self.num_perm), EMPTY)
        for first, last in _chunks(bounds, _ROWS * 8):
            part = bounds[first : last + 1]
            filled = np.flatnonzero(np.diff(part))
            if len(filled):
                rows = table[index[part[0] : part[-1]]]
                starts = (part[:-1] - part[0])[filled]
                found[first + filled] = np.minimum.reduceat(rows, starts, axis=0)
        return found


def _chunks(bounds: np.ndarray, members: int) -> Iterable[tuple[int, int]]:
    """Ranges of sets with about so many members together."""
    first, sets = 0, len(bounds) - 1
    while first < sets:
        last = int(np.searchsorted(bounds, bounds[first] + members, "right")) - 1
        last = min(max(last, first + 1), sets)
        yield first, last
        first = last


def _hashes(elements: Iterable[int]) -> np.ndarray:
    """The first four bytes of each number's SHA-1, as datasketch reads them: uint32."""
    digests = b"".join(hashlib.sha1(b"%d" % element).digest()[:4] for element in elements)
    return np.frombuffer(digests, "<u4").astype(np.uint32)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """The finaliser of MurmurHash3, which datasketch 2 applies before its affine permutations."""
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def minhash_signatures(
    n: int, window: int = 128, num_perm: int = 128, seed: int = 1, scheme: str = "legacy"
) -> np.ndarray:
    """The signature of every position's window {j: |i − j| ≤ window, 0 ≤ j < n}.

    Bit-equal to a ``datasketch.MinHash(num_perm, seed, scheme=scheme)`` that is updated with the
    numbers of the window as UTF-8 text. Working memory beside the result does not grow with n.

    Args:
        n: Positions.
        window: Distance up to which positions are neighbours.
        num_perm: Permutations.
        seed: Of the permutations.
        scheme: "legacy" (all there was before datasketch 2) or "affine32" (its default since).

    Returns:
        uint32 [n, num_perm]; datasketch's legacy scheme keeps the same values in uint64.

    Raises:
        ConfigError: A negative length or window, an unknown scheme.
    """
    if n < 0 or window < 0:
        raise ConfigError(f"n and window: must be at least 0, got n = {n}, window = {window}.")
    permutations = Permutations(num_perm, seed, scheme)
    found = np.empty((n, num_perm), np.uint32)
    beyond = np.full((window, num_perm), EMPTY)  # no position there: no smaller hash
    values = np.concatenate((beyond, permutations.permuted(range(min(n, window)))))
    for first in range(0, n, _ROWS):
        last = min(n, first + _ROWS)
        new = permutations.permuted(range(min(n, first + window), min(n, last + window)))
        missing = last - first + 2 * window - len(values) - len(new)
        values = np.concatenate((values, new, beyond[:missing]))
        found[first:last] = _sliding_minimum(values, 2 * window + 1)
        values = values[last - first :]
    return found


def _sliding_minimum(values: np.ndarray, width: int) -> np.ndarray:
    """Minimum over `width` rows from each row on: [rows − width + 1, columns].

    Minima over 2, 4, 8, … rows are doubled up to the last power of two in `width`; two of those
    cover a window.
    """
    span, other = 1, np.empty_like(values)
    while 2 * span <= width:
        rows = len(values) - span
        np.minimum(values[:rows], values[span:], out=other[:rows])
        values, other, span = other[:rows], values[:rows], 2 * span
    rows, shift = len(values) - (width - span), width - span
    return np.minimum(values[:rows], values[shift:])


def equal_values(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How many permutations agree, for every pair: int32 [left, right]; 0 for empty sets.

    Divided by the number of permutations this estimates the Jaccard similarity.

    Args:
        left: uint32 [left, num_perm].
        right: uint32 [right, num_perm].
    """
    found = np.empty((len(left), len(right)), np.int32)
    columns = np.ascontiguousarray(right.T)
    rows, narrow = max(1, _PAIRS // max(1, len(right))), left.shape[1] < 256
    for first in range(0, len(left), rows):
        part = left[first : first + rows]
        count = np.zeros((len(part), len(right)), np.uint8 if narrow else np.int32)
        same = np.empty(count.shape, bool)
        for index, column in enumerate(columns):
            np.equal(part[:, index, None], column, out=same)
            np.add(count, same.view(np.uint8), out=count)  # a cast would cost more than the sum
        found[first : first + rows] = count
    found[(left == EMPTY).all(1)] = 0
    return found
