"""Why a query keeps the keys it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_glm_curriculum.attention.graph_input import checked_position

if TYPE_CHECKING:
    from hf_glm_curriculum.attention.graph import PositionGraph

_WORDS = {
    "start": "it is the document's start",
    "heading": "the query stands under this heading",
    "clause": "the query stands in this clause",
    "definition": "the query stands in this definition",
    "reference": "a reference joins it and the text before the query",
    "turn_previous": "the turn under way or the one before begins here",
    "turn_next": "the turn before ends here",
    "session_start": "the dialogue begins here",
    "session_end": "an earlier dialogue ends here",
    "user": "a user edge joins them",
}
_SNIPPET = 24  # tokens


def explain(graph: PositionGraph, position: int) -> dict[str, Any]:
    """Which blocks the query at a position keeps by the graph, and why.

    Blocks are taken as position selection takes them: those always in, then those that edges tie
    to the query, then the nearest, until ``top_k`` keys are full. Hybrid selection keeps the
    first two kinds and fills up by content, which no graph knows.

    Args:
        graph: The graph.
        position: The query.

    Returns:
        ``position``, ``block``, ``budget`` (blocks), ``text`` before the query, and ``kept``: one
        entry a block with ``block``, ``first`` and ``last`` (positions), ``by`` ("first", "own",
        "window", "structure" or "distance"), ``reasons`` (sentences), ``similarity`` (by the
        encoder; None for the own block) and ``text``, most important first.

    Raises:
        DataError: The position lies outside the graph.
    """
    position = checked_position(position, graph.n)
    size, query = graph.config.block_size, position // graph.config.block_size
    similarity = _similarity(graph, query)
    ties: dict[int, list[str]] = {}
    for block, kind in graph.block_ties(query):
        ties.setdefault(block, []).append(_WORDS[kind])
    kept = []
    for block, by, reason in _kept(graph, query):
        reasons = [reason, *ties.get(block, [])] if reason else ties.get(block, [])
        begin = block * size
        entry = {
            "block": block,
            "first": begin,
            "last": min(begin + size, graph.n) - 1,
            "by": by,
            "reasons": reasons,
            "similarity": None if block >= len(similarity) else float(similarity[block]),
            "text": graph.text(begin, min(begin + _SNIPPET, graph.n)),
        }
        kept.append(entry)
    return {
        "position": position,
        "block": query,
        "budget": graph.config.blocks(graph.config.top_k),
        "text": graph.text(position + 1 - _SNIPPET, position + 1),
        "kept": kept,
    }


def _similarity(graph: PositionGraph, query: int) -> np.ndarray:
    """The encoder's similarities of the query block to the blocks before it."""
    return graph.similarities(query, query + 1)[0][:query]


def _kept(graph: PositionGraph, query: int) -> Iterator[tuple[int, str, str]]:
    """(block, by, reason) of the blocks kept, within the budget."""
    config = graph.config
    budget = config.blocks(config.top_k)
    window = config.window_blocks
    seen: set[int] = set()
    structure = graph.structural_blocks(query, query + 1, 64)[0]
    nearest = graph.nearest_blocks(query, query + 1, budget)[0]
    order = [(query, "own", "its own block is always in")]
    order += [(block, "first", "the first blocks are always in")
              for block in range(min(config.sink_blocks, query))]  # fmt: skip
    order += [(block, "window", f"it lies within {config.window} positions")
              for block in range(query - 1, max(-1, query - 1 - window), -1)]  # fmt: skip
    order += [(int(block), "structure", "") for block in structure if block >= 0]
    order += [(int(block), "distance", "its neighbourhood in the graph is like the query's")
              for block in nearest if block >= 0]  # fmt: skip
    for block, by, reason in order:
        if block not in seen and len(seen) < max(budget, config.always):
            seen.add(block)
            yield block, by, reason
