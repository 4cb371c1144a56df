"""How near two blocks are: MinHash, exact Jaccard, breadth-first search, graph auto-encoder.

Each encoder follows the neighbourhoods of a graph that grows, and keeps what it has computed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy import sparse

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.growing import GrowingArray
from hf_glm_curriculum.attention.minhash import Permutations, equal_values
from hf_glm_curriculum.attention.minhash import minhash_signatures as minhash_signatures
from hf_glm_curriculum.attention.nearest import SCORE_BITS, nearest_rows
from hf_glm_curriculum.attention.neighbourhoods import Neighbourhoods, SetRows

_SCALE = (1 << SCORE_BITS) - 1


class Encoder(Protocol):
    """Finds near blocks in the neighbourhoods of a graph."""

    def nearest(self, around: Neighbourhoods, first: int, last: int, count: int) -> np.ndarray:
        """Rows of the `count` nearest blocks before each query block; see `nearest_rows`."""
        ...

    def similarities(self, around: Neighbourhoods, queries: slice) -> np.ndarray:
        """Similarities of query blocks to all key blocks: float64 [queries, keys]."""
        ...

    def copy(self) -> Encoder:
        """An independent copy."""
        ...


class ExactEncoder:
    """Jaccard similarity |A ∩ B| / |A ∪ B| of the neighbourhoods themselves."""

    def nearest(self, around: Neighbourhoods, first: int, last: int, count: int) -> np.ndarray:
        """The nearest blocks by Jaccard distance."""

        def scores(begin: int, end: int, keys: int) -> np.ndarray:
            return (_jaccard(around, begin, end, keys) * _SCALE).astype(np.int64)

        return nearest_rows(scores, first, last, count)

    def similarities(self, around: Neighbourhoods, queries: slice) -> np.ndarray:
        """Jaccard similarities."""
        return _jaccard(around, queries.start, queries.stop, len(around.keys))

    def copy(self) -> ExactEncoder:
        """Itself: nothing is kept."""
        return self


def _matrix(sets: SetRows, first: int, last: int, around: Neighbourhoods) -> sparse.csr_array:
    """Sets as rows of ones over block numbers."""
    members, bounds = sets.rows(first, last)
    width = max(len(around.queries), len(around.keys)) + around.hops * around.window + 1
    ones = np.ones(len(members), np.int32)
    return sparse.csr_array((ones, members, bounds), shape=(last - first, width))


def _jaccard(around: Neighbourhoods, first: int, last: int, keys: int) -> np.ndarray:
    """Similarities of query blocks `first` to `last` − 1 to the first `keys` key blocks."""
    queries, others = (
        _matrix(around.queries, first, last, around),
        _matrix(around.keys, 0, keys, around),
    )
    shared = (queries @ others.T).toarray()
    sizes, other_sizes = np.diff(queries.indptr), np.diff(others.indptr)
    return shared / (sizes[:, None] + other_sizes - shared)


class MinHashEncoder:
    """Jaccard similarity estimated by the share of equal MinHash values."""

    def __init__(self, permutations: Permutations) -> None:
        """Use these permutations."""
        self.permutations = permutations
        shape = (permutations.num_perm,)
        self._keys, self._queries = GrowingArray(np.uint32, shape), GrowingArray(np.uint32, shape)

    def _follow(self, around: Neighbourhoods) -> None:
        """Add signatures of the blocks that are new."""
        for signatures, sets in ((self._keys, around.keys), (self._queries, around.queries)):
            if len(signatures) < len(sets):
                new = sets.rows(len(signatures), len(sets))
                signatures.extend(self.permutations.set_signatures(*new))

    def nearest(self, around: Neighbourhoods, first: int, last: int, count: int) -> np.ndarray:
        """The nearest blocks by estimated Jaccard distance."""
        self._follow(around)

        def scores(begin: int, end: int, keys: int) -> np.ndarray:
            return equal_values(self._queries.values[begin:end], self._keys.values[:keys])

        return nearest_rows(scores, first, last, count)

    def similarities(self, around: Neighbourhoods, queries: slice) -> np.ndarray:
        """Estimated Jaccard similarities."""
        self._follow(around)
        equal = equal_values(self._queries.values[queries], self._keys.values)
        return equal / self.permutations.num_perm

    def copy(self) -> MinHashEncoder:
        """An independent copy."""
        other = MinHashEncoder(self.permutations)
        other._keys, other._queries = self._keys.copy(), self._queries.copy()
        return other


def make_encoder(config: PositionGraphConfig) -> Encoder:
    """The encoder a config names.

    Raises:
        MissingDependencyError: "gae" without torch-geometric.
    """
    if config.encoder == "exact":
        return ExactEncoder()
    if config.encoder == "bfs":
        from hf_glm_curriculum.attention.breadth_first import BreadthFirstEncoder

        return BreadthFirstEncoder()
    if config.encoder == "gae":
        from hf_glm_curriculum.attention.autoencoder import AutoencoderEncoder, fitted_on_example

        return AutoencoderEncoder(fitted_on_example(config))
    return MinHashEncoder(Permutations(config.num_perm, config.seed, config.minhash_scheme))
