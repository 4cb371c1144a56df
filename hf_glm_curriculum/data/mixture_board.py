"""What a mixture's processes share: the log of changes, and what the loader has drawn.

The training process writes changes, the process that loads rows (the same one, or a worker of a
data loader, forked or spawned) reads them and writes what it drew. All of it lies in shared-memory
tensors of fixed size.

Shape letters: C changes, S sources, W rows kept, I ids kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.data.content_id import UNUSED_ID
from hf_glm_curriculum.data.mixture_draw import DrawState
from hf_glm_curriculum.errors import StateError

IDS_PER_ROW = 4
"""Ids kept for each row kept: a packed row holds several samples."""


class MixtureBoard:
    """Shared memory of a mixture; copies and pickles for workers show the same memory."""

    def __init__(self, sources: int, changes: int, window: int) -> None:
        """Reserve the memory.

        Args:
            sources: S.
            changes: C, how many changes of ratios there may be.
            window: W, for how many of the latest rows the state is kept.
        """
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "change_count": ((1,), torch.int64),
            "change_row": ((changes,), torch.int64),
            "change_ratios": ((changes, sources), torch.float64),
            "front": ((1,), torch.int64),
            "mark_row": ((window,), torch.int64),
            "mark_credit": ((window, sources), torch.float64),
            "mark_counts": ((window, 3, sources), torch.int64),
            "id_count": ((1,), torch.int64),
            "ids": ((window * IDS_PER_ROW,), torch.int64),
            "id_source": ((window * IDS_PER_ROW,), torch.int64),
        }
        self._tensors = {
            name: torch.zeros(shape, dtype=dtype).share_memory_()
            for name, (shape, dtype) in shapes.items()
        }
        self.window = window
        self._views: dict[str, np.ndarray] = {}
        self.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the numpy views out: pickled, they would be copies."""
        return {**self.__dict__, "_views": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> MixtureBoard:
        """Copies of a data set follow the same changes."""
        return self

    def _view(self, name: str) -> np.ndarray:
        if name not in self._views:
            self._views[name] = self._tensors[name].numpy()
        return self._views[name]

    # -- the log of changes ------------------------------------------------------------------

    def clear(self) -> None:
        """Forget every change and everything drawn."""
        for name in ("change_count", "id_count"):
            self._view(name)[:] = 0
        self._view("ids")[:] = UNUSED_ID
        self.begin(0)

    def write_changes(self, changes: Sequence[tuple[int, Sequence[float]]], keep: int = 0) -> None:
        """Replace the log from the entry ``keep`` on.

        Args:
            changes: (first row, ratios [S]) of each entry, rows ascending.
            keep: entries that stand already.

        Raises:
            StateError: if there are more changes than the board holds.
        """
        room = len(self._view("change_row"))
        if len(changes) > room:
            raise StateError(
                f"max_changes: the mixture's ratios changed {len(changes)} times, room is for "
                f"{room}; change them in fewer steps or build the mixture with a larger max_changes"
            )
        for place in range(keep, len(changes)):
            row, ratios = changes[place]
            self._view("change_ratios")[place] = ratios
            self._view("change_row")[place] = row
        self._view("change_count")[0] = len(changes)  # last: a reader never sees a torn entry

    def follow(self) -> ChangeCursor:
        """A cursor over the log for one pass through the rows."""
        return ChangeCursor(self)

    # -- what was drawn ----------------------------------------------------------------------

    @property
    def front(self) -> int:
        """Rows drawn by the loader, those waiting in its queues included."""
        return int(self._view("front")[0])

    def begin(self, row: int) -> None:
        """Nothing is drawn after a row yet, and nothing before it is known."""
        self._view("mark_row")[:] = -1
        self._view("front")[0] = row

    def mark(self, state: DrawState) -> None:
        """Keep the state after a draw."""
        slot = state.row % self.window
        self._view("mark_row")[slot] = -1
        self._view("mark_credit")[slot] = state.credit
        counts = self._view("mark_counts")[slot]
        counts[0], counts[1], counts[2] = state.rows, state.tokens, state.held
        self._view("mark_row")[slot] = state.row
        self._view("front")[0] = state.row

    def state_at(self, row: int) -> DrawState | None:
        """The state after ``row`` rows; None if it is not among the latest."""
        slot = row % self.window
        if self._view("mark_row")[slot] != row:
            return None
        rows, tokens, held = self._view("mark_counts")[slot].tolist()
        credit = self._view("mark_credit")[slot].tolist()
        if self._view("mark_row")[slot] != row:
            return None
        return DrawState(row, credit, rows, tokens, [bool(one) for one in held])

    def add_ids(self, ids: np.ndarray, source: int) -> None:
        """Note which source samples came from that no table knows."""
        count, room = int(self._view("id_count")[0]), len(self._view("ids"))
        for offset, one in enumerate(ids.tolist()):
            slot = (count + offset) % room
            self._view("id_source")[slot] = source
            self._view("ids")[slot] = one
        self._view("id_count")[0] = count + len(ids)

    def source_of(self, ids: Tensor) -> Tensor:
        """The source of recently drawn ids: int64 [Q] on the CPU, -1 where unknown."""
        filled = min(int(self._view("id_count")[0]), len(self._view("ids")))
        if not filled:
            return torch.full_like(ids, -1)
        table, sources = self._tensors["ids"][:filled], self._tensors["id_source"][:filled]
        same = ids.unsqueeze(1) == table
        return torch.where(same.any(1), sources[same.int().argmax(1)], -1)


class ChangeCursor:
    """Reads the log of changes alongside the rows it applies to."""

    def __init__(self, board: MixtureBoard) -> None:
        self._board = board
        self._next = 0
        self.ratios: list[float] = []

    def advance(self, row: int) -> bool:
        """Bring ``ratios`` up to those in effect at a row; whether that changed them."""
        rows, count = self._board._view("change_row"), self._board._view("change_count")
        began = self._next
        while self._next < count[0] and rows[self._next] <= row:
            self._next += 1
        if self._next == began:
            return False
        self.ratios = self._board._view("change_ratios")[self._next - 1].tolist()
        return True
