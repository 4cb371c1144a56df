"""Checks of what a position graph is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hf_glm_curriculum.errors import DataError


def checked_ids(ids: Any) -> np.ndarray:
    """Token ids as int64 [n].

    Raises:
        DataError: They are not one row of integers.
    """
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    try:
        found = np.asarray(ids)
    except ValueError as error:
        raise DataError(f"token ids: must be one row of integers: {error}.") from error
    if found.ndim != 1:
        raise DataError(
            f"token ids: must have one dimension, got shape {found.shape}; "
            "build one graph for each row of a batch."
        )
    if len(found) and found.dtype.kind not in "iu":
        raise DataError(f"token ids: must be integers, got {found.dtype}.")
    return found.astype(np.int64)


def checked_edges(edges: Iterable[Any], n: int) -> list[tuple[int, int]]:
    """Pairs of positions, the later one first.

    Raises:
        DataError: An edge is no pair of two different positions of the sequence.
    """
    found: list[tuple[int, int]] = []
    for number, edge in enumerate(edges):
        try:
            first, second = (int(end) for end in edge)
            whole = all(int(end) == end for end in edge)
        except (TypeError, ValueError):
            whole, first, second = False, 0, 0
        if not whole:
            raise DataError(f"edges[{number}]: must be a pair of positions, got {edge!r}.")
        if not (0 <= first < n and 0 <= second < n):
            raise DataError(
                f"edges[{number}]: both positions must be at least 0 and below the graph's "
                f"length {n}, got {edge!r}."
            )
        if first == second:
            raise DataError(f"edges[{number}]: must join two positions, got {edge!r} twice.")
        found.append((max(first, second), min(first, second)))
    return found


def checked_range(first: int, last: int, blocks: int) -> None:
    """Check a range of query blocks.

    Raises:
        DataError: It is empty the wrong way round or leaves the graph.
    """
    if not 0 <= first <= last <= blocks:
        raise DataError(
            f"blocks {first} to {last}: must lie between 0 and {blocks}, the blocks the graph "
            "knows the beginning of; append the tokens before them first."
        )


def checked_position(position: int, n: int) -> int:
    """Check a position.

    Raises:
        DataError: It lies outside the graph.
    """
    if not 0 <= position < n:
        raise DataError(
            f"position: must be at least 0 and below the graph's length {n}, got {position}."
        )
    return int(position)


def message_ids(messages: Sequence[dict[str, Any]], tokenizer: Any) -> list[int]:
    """Token ids of a conversation.

    Raises:
        DataError: The chat template refuses it, or there is none.
    """
    try:
        found = tokenizer.apply_chat_template(list(messages), tokenize=True)
    except Exception as error:  # templates raise errors of their own, of any kind
        reason = " ".join(str(error).split())
        raise DataError(f"messages: the chat template refuses them: {reason}") from error
    return list(found["input_ids"]) if hasattr(found, "keys") else list(found)
