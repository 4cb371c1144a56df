"""The log of changes of a mixture's ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_glm_curriculum.data.mixture_board import MixtureBoard
from hf_glm_curriculum.errors import StateError


@dataclass(frozen=True)
class Change:
    """One entry of the log.

    Attributes:
        row: the first row it holds for.
        step: the step it was asked at; None outside of steps.
        ratios: [S] the shares.
    """

    row: int
    step: int | None
    ratios: list[float]


class ChangeLog:
    """All changes in order of rows, and their copy on the board that loaders read.

    Attributes:
        entries: the changes; the first holds from row 0.
    """

    def __init__(self, board: MixtureBoard, first: list[float]) -> None:
        self._board = board
        self.entries = [Change(0, None, first)]
        self._write()

    @property
    def last(self) -> Change:
        """The latest change asked for."""
        return self.entries[-1]

    def at(self, row: int) -> list[float]:
        """The ratios in effect at a row: [S]."""
        return [one for one in self.entries if one.row <= row][-1].ratios

    def add(self, change: Change, drawn: int) -> None:
        """Enter a change; one for the same row takes the place of the last.

        Args:
            change: the change.
            drawn: rows that are drawn already, which it cannot hold for.

        Raises:
            StateError: if its row is drawn already, lies before the last change, or the board is
                full.
        """
        if change.row < self.last.row:
            raise StateError(
                f"set_ratios: would hold from row {change.row}, and an earlier change holds from "
                f"row {self.last.row}; change ratios in the order of steps, and call reset() "
                "before a new run"
            )
        if change.row < drawn:
            raise StateError(
                f"set_ratios: would hold from row {change.row}, and {drawn} rows are drawn "
                "already; the loader reads further ahead than the mixture knows: raise lag_steps"
            )
        keep = len(self.entries) - (change.row == self.last.row)
        self.entries[keep:] = [change]
        self._write(keep)

    def replace(self, entries: Sequence[Change]) -> None:
        """Begin anew with other entries; what was drawn is forgotten."""
        self.entries = list(entries)
        self._board.clear()
        self._write()

    def _write(self, keep: int = 0) -> None:
        self._board.write_changes([(one.row, one.ratios) for one in self.entries], keep)
