"""The state of a batch's sequences, carried by the key-value cache it belongs to.

A cache in use becomes one of a subclass of its own class, which reorders the state wherever it
reorders keys (beam search, several answers a prompt). Copies of a cache copy the state with it.
"""

from __future__ import annotations

from functools import cache as remember
from typing import Any

import torch

from hf_glm_curriculum.attention.sequence_state import SequenceState
from hf_glm_curriculum.errors import DataError

STATE = "_position_graph_state"


class _CarriesState:
    """What a cache in use does besides its own work."""

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        super().reorder_cache(beam_idx)  # pyright: ignore[reportAttributeAccessIssue]
        self._select(beam_idx.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # pyright: ignore[reportAttributeAccessIssue]
        state: SequenceState = getattr(self, STATE)
        self._select([row for row in range(state.rows) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)  # pyright: ignore[reportAttributeAccessIssue]
        chosen = torch.as_tensor(indices)
        self._select((chosen.nonzero()[:, 0] if chosen.dtype == torch.bool else chosen).tolist())

    def _select(self, rows: list[int]) -> None:
        getattr(self, STATE).select_rows(rows)


@remember
def _carrying(kind: type) -> type:
    return type(kind.__name__, (_CarriesState, kind), {"__module__": kind.__module__})


def cached_state(cache: Any) -> SequenceState | None:
    """The state that belongs to a cache, None if it was filled without one."""
    return None if cache is None else getattr(cache, STATE, None)


def keep_state(cache: Any, state: SequenceState) -> None:
    """Let a cache carry a state from now on."""
    if not isinstance(cache, _CarriesState):
        cache.__class__ = _carrying(type(cache))
    setattr(cache, STATE, state)


def check_room(cache: Any, wanted: int) -> None:
    """Check that a cache of fixed size can hold so many tokens.

    Raises:
        DataError: if it cannot.
    """
    if cache is None or not hasattr(cache, "get_max_length"):
        return
    most = cache.get_max_length()
    if most is not None and 0 < int(most) < wanted:
        raise DataError(
            f"cache: holds {int(most)} tokens and the text has {wanted}; make the static cache "
            "longer (max_cache_len) or use a dynamic one."
        )
