"""How far two ways to compare neighbourhoods agree."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from hf_glm_curriculum.attention.autoencoder import AutoencoderEncoder, fitted_on_example
from hf_glm_curriculum.attention.encoders import Encoder, MinHashEncoder
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.minhash import Permutations
from hf_glm_curriculum.errors import ConfigError


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing theirs."""
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def encoder_agreement(graph: PositionGraph, *encoders: Encoder) -> dict[str, float]:
    """How far two encoders agree on which blocks are near (article 1: cosine 0.92).

    Args:
        graph: A graph with at least three full blocks.
        encoders: Two encoders; MinHash and the auto-encoder of the graph's config if none.

    Returns:
        ``cosine`` of the two lists of similarities over all pairs of a query and an earlier
        block, ``rank`` (Spearman) over the same pairs, and ``overlap``: the share of each query's
        nearest 32 blocks that both name.

    Raises:
        ConfigError: The graph is too short, or not two encoders are given.
        MissingDependencyError: torch-geometric is not installed.
    """
    around, config = graph.neighbourhoods, graph.config
    if not encoders:
        permutations = Permutations(config.num_perm, config.seed, config.minhash_scheme)
        encoders = (
            MinHashEncoder(permutations), AutoencoderEncoder(fitted_on_example(config))
        )  # fmt: skip
    if len(encoders) != 2 or len(around) < 3:
        raise ConfigError(
            "encoders: must be two, for a graph of three full blocks or more, got "
            f"{len(encoders)} for {len(around)} blocks."
        )
    blocks = len(around)
    pairs = np.tril_indices(blocks, -1)
    first, second = (encoder.similarities(around, slice(0, blocks))[pairs] for encoder in encoders)
    cosine = first @ second / (np.linalg.norm(first) * np.linalg.norm(second) + 1e-12)
    rows = [encoder.nearest(around, 0, blocks, 32) for encoder in encoders]
    shares = [
        np.intersect1d(a[a >= 0], b[b >= 0]).size / (a >= 0).sum()
        for a, b in zip(*(row[33:] for row in rows), strict=True)
    ]
    return {
        "cosine": float(cosine),
        "rank": _rank_correlation(first, second),
        "overlap": float(np.mean(shares)) if shares else float("nan"),
    }
