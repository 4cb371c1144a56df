"""The rule that says which source the next row of a mixture comes from: pure functions.

A source is due when the mixture has grown so far that half of its next row is owed:

    due_s = (size_s / 2 − credit_s) / ratio_s,    credit_s = ratio_s·drawn − drawn_s

with ``size_s`` the size of its next row and ``drawn`` the size of all rows so far. The source that
is due first is drawn: the largest deficit, measured in its own rows and at its own pace, so that a
source of 0.5 % comes evenly, once in two hundred rows' worth, and not in a clump at either end.
(Divisor rule of Webster and Sainte-Laguë; as a packet scheduler: Bennett and Zhang, "WF2Q",
INFOCOM 1996.) Credits carry over when ratios change.

Shape letters: S sources.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self


@dataclass
class DrawState:
    """Where a stream of draws stands after ``row`` rows.

    Attributes:
        row: rows drawn so far; the number of the next one.
        credit: [S] what each source is owed, in units of size; negative where it is ahead.
        rows: [S] rows drawn of each source.
        tokens: [S] label tokens drawn of each source.
        held: [S] whether the step under way holds a row of the source already.
    """

    row: int
    credit: list[float]
    rows: list[int]
    tokens: list[int]
    held: list[bool]

    @classmethod
    def fresh(cls, sources: int) -> Self:
        """The state before the first row."""
        zeros = [0] * sources
        return cls(0, [0.0] * sources, list(zeros), list(zeros), [False] * sources)

    def copy(self) -> DrawState:
        """An equal state that shares nothing."""
        lists = {name: list(getattr(self, name)) for name in ("credit", "rows", "tokens", "held")}
        return replace(self, **lists)

    def as_dict(self) -> dict[str, Any]:
        """The state in JSON types; floats survive JSON exactly."""
        copied = self.copy()
        return {"row": copied.row, **{n: getattr(copied, n) for n in _LISTS}}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The state that :meth:`as_dict` wrote."""
        return cls(int(saved["row"]), *(list(saved[name]) for name in _LISTS))


_LISTS = ("credit", "rows", "tokens", "held")


def choose(
    state: DrawState,
    ratios: Sequence[float],
    size_of: Callable[[int], float],
    step_rows: int | None = None,
) -> tuple[int, float]:
    """Pick the source of the next row.

    Args:
        state: the state before the draw; only ``held`` changes, at the start of a step.
        ratios: [S] shares in effect; sources at 0 are not drawn.
        size_of: source → size of its next row, in the unit that ratios are shares of; asked for
            sources above 0 only.
        step_rows: rows of an optimizer step that must hold every source above 0; the last rows of
            a step go to those that are missing then. None for no such rule.

    Returns:
        (source, charge): the source and what its row counts for in the balance. That is the row's
        size, but less for a row that only the step's rule asked for: such rows are extra, as far
        as the source is not owed them, and are not saved up against its ratio.
    """
    active = [source for source, ratio in enumerate(ratios) if ratio > 0]
    sizes = {source: size_of(source) for source in active}
    credit = state.credit

    def due(source: int) -> float:
        return (sizes[source] / 2 - credit[source]) / ratios[source]

    source = min(active, key=due)
    if step_rows is None:
        return source, sizes[source]
    place = state.row % step_rows
    if place == 0:
        state.held = [False] * len(ratios)
    missing = [s for s in active if not state.held[s]]
    if source in missing or len(missing) < step_rows - place:
        return source, sizes[source]
    source = min(missing, key=due)
    return source, min(sizes[source], max(0.0, credit[source] + sizes[source] / 2))


def record(
    state: DrawState, ratios: Sequence[float], source: int, charge: float, tokens: int
) -> None:
    """Enter a draw that :func:`choose` picked.

    Args:
        state: changed in place.
        ratios: [S] shares in effect.
        source: the source drawn.
        charge: what the row counts for.
        tokens: the row's label tokens.
    """
    for other, ratio in enumerate(ratios):
        if ratio > 0:
            state.credit[other] += ratio * charge
    state.credit[source] -= charge
    state.rows[source] += 1
    state.tokens[source] += tokens
    state.held[source] = True
    state.row += 1


def take_effect(state: DrawState, ratios: Sequence[float]) -> None:
    """Begin to draw at other ratios: a source that leaves takes no debt or claim with it."""
    for source, ratio in enumerate(ratios):
        if ratio <= 0:
            state.credit[source] = 0.0
