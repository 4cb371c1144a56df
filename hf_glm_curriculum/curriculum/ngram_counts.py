"""Document frequencies of n-grams, counted over a corpus of any length in fixed memory.

A count-mean-min sketch (Cormode and Muthukrishnan, "An improved data stream summary", J. Algorithms
2005; Deng and Rafiei, "New estimation algorithms for streaming data: count-min can do more", 2007):
each n-gram is counted in one cell of each row; a row's estimate is its cell less what the other
n-grams put into a cell on average, and the least over the rows is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from hf_glm_curriculum.curriculum.background import LONGEST, MOST_BITS
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.storage import load_tensors, save_tensors

ROWS = 2
_SEEDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
_MULTIPLIER = np.uint64(0xFF51AFD7ED558CCD)
_STEP = np.uint64(0x100000001B3)
FORMAT = "hf_glm_curriculum.ngram_counts.1"


class NgramCounts:
    """How many documents hold an n-gram.

    Attributes:
        documents: documents counted.
        width: cells of a row.
    """

    def __init__(self, width: int = 2**22) -> None:
        """Start empty; memory is 8 bytes a cell of width (32 MiB by default).

        Raises:
            ConfigError: if the width is below 1,024.
        """
        if width < 1024:
            raise ConfigError(f"width: must be at least 1024 cells, got {width}")
        self.width = width
        self.documents = 0
        self._cells = np.zeros((ROWS, width), dtype=np.uint32)
        self._total = 0

    def add(self, documents: Iterable[list[str]]) -> None:
        """Count the units of some documents; an n-gram counts once a document."""
        hashes = [np.unique(np.concatenate(ngram_hashes(units))) for units in documents]
        self.documents += len(hashes)
        if not hashes:
            return
        together = np.concatenate(hashes)
        self._total += len(together)
        for row in range(ROWS):
            places = self._places(together, row)
            self._cells[row] += np.bincount(places, minlength=self.width).astype(np.uint32)

    def bits(self, units: list[str]) -> list[np.ndarray]:
        """Inverse document frequency log₂((D + 1)/(f + 1)) of all n-grams of a text, by n."""
        return [self._bits_of(hashes) for hashes in ngram_hashes(units)]

    def frequency(self, hashes: np.ndarray) -> np.ndarray:
        """Estimated documents that hold n-grams of these hashes, float64.

        What it is off by: about √(total/width) n-grams where nearly all cells are in use, and
        almost always nothing where most are empty.
        """
        found = np.full(len(hashes), np.inf)
        for row in range(ROWS):
            cells = self._cells[row][self._places(hashes, row)].astype(np.float64)
            others = (self._total - cells) / (self.width - 1)
            found = np.minimum(found, np.maximum(cells - others, 0.0))
        return found

    def _bits_of(self, hashes: np.ndarray) -> np.ndarray:
        bits = np.log2(self.documents + 1) - np.log2(self.frequency(hashes) + 1)
        return np.clip(bits, 0.0, MOST_BITS)

    def _places(self, hashes: np.ndarray, row: int) -> np.ndarray:
        mixed = (hashes ^ _SEEDS[row]) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(33)
        return (mixed % np.uint64(self.width)).astype(np.int64)

    def save(self, path: str | Path) -> None:
        """Write the counts as safetensors.

        Raises:
            StateError: the file cannot be written.
        """
        about = {"format": FORMAT, "documents": str(self.documents), "total": str(self._total)}
        save_tensors(Path(path), {"cells": torch.from_numpy(self._cells.view(np.int32))}, about)

    @classmethod
    def load(cls, path: str | Path) -> NgramCounts:
        """Read what `save` wrote.

        Raises:
            StateError: the file is missing, damaged or of another kind.
        """
        tensors, about = load_tensors(Path(path))
        if about.get("format") != FORMAT or "cells" not in tensors:
            raise StateError(
                f"{path}: holds no n-gram counts; name a file that "
                "InstructionEntropyEstimator.save wrote"
            )
        cells = tensors["cells"].numpy().view(np.uint32)
        found = cls(cells.shape[1])
        found._cells = cells.copy()
        found.documents, found._total = int(about["documents"]), int(about["total"])
        return found


def ngram_hashes(units: list[str]) -> list[np.ndarray]:
    """uint64 hashes of a text's n-grams for n = 1, 2, 3, each in order; the same everywhere."""
    single = np.array([_unit_hash(unit) for unit in units], dtype=np.uint64)
    found, mixed = [single], single
    with np.errstate(over="ignore"):
        for n in range(2, LONGEST + 1):
            count = max(0, len(units) - n + 1)
            mixed = mixed[:count] * _STEP + (single[n - 1 :][:count] ^ np.uint64(n))
            found.append(mixed)
    return found


@lru_cache(maxsize=200_000)
def _unit_hash(unit: str) -> int:
    digest = blake2b(unit.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
