"""What the review page shows and does, without the page: filters, steps and conflicts."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.lifespan.answers import DROP, FIX, KEEP
from hf_glm_curriculum.lifespan.overlap import WordOverlap
from hf_glm_curriculum.lifespan.pool import ObservationPool, PoolRow, id_text, parse_id
from hf_glm_curriculum.lifespan.review import Decision, ReviewConflict, ReviewStore

SKIP, BACK, UNDO, STAY = "skip", "back", "undo", "stay"
ALL, UNDECIDED, DECIDED = "all", "undecided", "decided"
_SIMILAR = 0.08
"""Overlap of words from which a prompt is worth showing."""
_DONE = {KEEP: "Kept", FIX: "Fixed", DROP: "Dropped"}


class Filters(NamedTuple):
    """Which samples are paged through."""

    verdict: str = ALL
    decision: str = UNDECIDED


class Message(NamedTuple):
    """A line above the sample: "done", "hint" or "conflict", and what it says."""

    kind: str
    text: str


class Progress(NamedTuple):
    """How many samples of the pool are decided, and how."""

    total: int
    kept: int
    fixed: int
    dropped: int

    @property
    def decided(self) -> int:
        """Samples with any decision."""
        return self.kept + self.fixed + self.dropped


class Neighbour(NamedTuple):
    """Another sample with a similar prompt; `verdict` is empty outside the pool."""

    prompt: str
    response: str
    similarity: float
    verdict: str


@dataclass(frozen=True)
class View:
    """One state of the page.

    Attributes:
        row: the sample shown, None if the filters leave none.
        decision: the last word on it.
        editor: what the correction field holds.
        token: names the sample and the version of its decision that is shown.
        message: what has just happened.
        progress: over the whole pool.
        place: number of the sample in the filtered list, from 1; 0 if it is not in it.
        listed: length of the filtered list.
        neighbours: samples with similar prompts.
        shares: signal → share of the population below this sample's value.
    """

    row: PoolRow | None
    decision: Decision | None
    editor: str
    token: str
    message: Message | None
    progress: Progress
    place: int
    listed: int
    neighbours: list[Neighbour]
    shares: dict[str, float]


class Population:
    """Sorted values of every signal over the data, for ranks."""

    def __init__(self, values: dict[str, list[float]]) -> None:
        """Take signal → values, in any order."""
        self._sorted = {name: sorted(column) for name, column in values.items() if column}

    @classmethod
    def of_pool(cls, pool: ObservationPool) -> Population:
        """The pool's own values, where the run's other samples are not known."""
        values: dict[str, list[float]] = {}
        for row in pool.rows:
            for name, value in row.signals.items():
                if value is not None:
                    values.setdefault(name, []).append(value)
        return cls(values)

    def share(self, name: str, value: float) -> float | None:
        """The share of samples with a lower value, ties counted by half; None if unknown."""
        column = self._sorted.get(name)
        if not column:
            return None
        return (bisect_left(column, value) + bisect_right(column, value)) / (2 * len(column))


class Neighbours:
    """Finds samples with similar prompts among the pool's and, if given, all of the data."""

    def __init__(self, pool: ObservationPool, others: Sequence[tuple[str, str]] = ()) -> None:
        """Index the prompts.

        Args:
            pool: its samples are marked by their verdicts.
            others: (prompt, response) pairs of the data.
        """
        known = {(r.prompt, r.response): r.verdict for r in pool.rows if r.prompt is not None}
        rest = [pair for pair in dict.fromkeys(others) if pair not in known]
        self._texts = [*((p or "", r or "", v) for (p, r), v in known.items())]
        self._texts += [(prompt, response, "") for prompt, response in rest]
        self._overlap = WordOverlap([text[0] for text in self._texts])

    def of(self, row: PoolRow) -> list[Neighbour]:
        """The nearest other samples, most similar first."""
        if row.prompt is None:
            return []
        near = self._overlap.nearest(row.prompt, count=4, least=_SIMILAR)
        found = [(self._texts[place], similarity) for place, similarity in near]
        own = (row.prompt, row.response)
        return [Neighbour(p, r, s, v) for (p, r, v), s in found if (p, r) != own][:3]


class ReviewSession:
    """Answers every press of a key or button; holds no state of its own but the store."""

    def __init__(
        self,
        store: ReviewStore,
        population: Population | None = None,
        neighbours: Neighbours | None = None,
        reviewer: str = "",
    ) -> None:
        """Prepare the pool for paging, most suspicious first.

        Args:
            store: the decisions; its pool is paged through.
            population: signals of all samples; the pool's by default.
            neighbours: samples to compare with; the pool's by default.
            reviewer: name written beside each decision.
        """
        self.store = store
        self.population = population or Population.of_pool(store.pool)
        self.neighbours = neighbours or Neighbours(store.pool)
        self.reviewer = reviewer
        self.rows = sorted(store.pool.rows, key=lambda row: -_or_lowest(row.suspicion))
        self._place = {row.id: place for place, row in enumerate(self.rows)}

    def first(self, filters: Filters = Filters()) -> View:  # noqa: B008 - a tuple
        """The first sample of the filtered list."""
        self.store.refresh()
        return self._view(self._next(-1, filters), filters)

    def act(self, action: str, token: str, edited: str, filters: Filters) -> View:
        """Do what a button asks, and show what is next.

        Args:
            action: keep, fix, drop, undo, skip, back or stay.
            token: of the view on which the button was pressed.
            edited: what the correction field held.
            filters: the filters in force.
        """
        seen = read_token(token)
        place = None if seen is None else self._place.get(seen[0])
        if seen is None or place is None:
            return self.first(filters)
        if action in (KEEP, FIX, DROP, UNDO):
            return self._decide(action, place, seen[1], edited, filters)
        self.store.refresh()
        if action == STAY:
            row = self.rows[place]
            inside = self._passes(row, filters)
            return self._view(row if inside else self._next(place, filters), filters)
        if action == BACK:
            return self._view(self._before(place, filters), filters)
        return self._after(place, filters, None)

    # -- decisions ---------------------------------------------------------------------------

    def _decide(self, action: str, place: int, version: int, edited: str, filters: Filters) -> View:
        row = self.rows[place]
        hint = _hint(action, row, self.store.last(row.id), edited)
        if hint:
            return self._view(row, filters, Message("hint", hint), edited)
        decision = None if action == UNDO else action
        response = edited if action == FIX else None
        try:
            self.store.decide(
                row.id,
                decision,
                response,
                expected_version=version,
                reviewer=self.reviewer,
            )
        except ReviewConflict as conflict:
            return self._view(row, filters, Message("conflict", _explain(conflict)), edited)
        except (DataError, StateError) as error:
            return self._view(row, filters, Message("conflict", f"Not saved: {error}"), edited)
        if action == UNDO:
            return self._view(row, filters, Message("done", f"Row {row.row} is undecided again."))
        return self._after(place, filters, Message("done", f"{_DONE[action]} row {row.row}."))

    def _after(self, place: int, filters: Filters, message: Message | None) -> View:
        """The view after moving on from a sample."""
        found = self._next(place, filters)
        if found is not None and self._place[found.id] <= place:
            said = f"{message.text} " if message else ""
            message = Message("hint", f"{said}That was the end of the list; from the top again.")
        return self._view(found, filters, message)

    # -- paging ------------------------------------------------------------------------------

    def _passes(self, row: PoolRow, filters: Filters) -> bool:
        if filters.verdict not in (ALL, row.verdict):
            return False
        last = self.store.last(row.id)
        decision = last.decision if last else None
        if filters.decision in (ALL, decision):
            return True
        return filters.decision == (UNDECIDED if decision is None else DECIDED)

    def _next(self, place: int, filters: Filters) -> PoolRow | None:
        """The next sample of the list after a place, going round to the start."""
        order = [*self.rows[place + 1 :], *self.rows[: place + 1]]
        return next((row for row in order if self._passes(row, filters)), None)

    def _before(self, place: int, filters: Filters) -> PoolRow:
        """The sample before a place, decided or not, so that the last step can be looked at."""
        order = reversed(self.rows[:place])
        wanted = (filters.verdict, ALL)
        return next((row for row in order if self._passes(row, Filters(*wanted))), self.rows[place])

    def _view(
        self,
        row: PoolRow | None,
        filters: Filters,
        message: Message | None = None,
        edited: str | None = None,
    ) -> View:
        listed = [one.id for one in self.rows if self._passes(one, filters)]
        progress = self._progress()
        if row is None:
            return View(None, None, "", "", message, progress, 0, len(listed), [], {})
        last = self.store.last(row.id)
        decision = last if last is not None and last.decision is not None else None
        corrected = decision.response if decision else None
        return View(
            row=row,
            decision=decision,
            editor=edited if edited is not None else corrected or row.response or "",
            token=make_token(row.id, last.version if last else 0),
            message=message,
            progress=progress,
            place=listed.index(row.id) + 1 if row.id in listed else 0,
            listed=len(listed),
            neighbours=self.neighbours.of(row),
            shares=self._shares(row),
        )

    def _progress(self) -> Progress:
        made = [decision.decision for decision in self.store.decisions().values()]
        return Progress(len(self.rows), *(made.count(kind) for kind in (KEEP, FIX, DROP)))

    def _shares(self, row: PoolRow) -> dict[str, float]:
        known = {name: value for name, value in row.signals.items() if value is not None}
        shares = {name: self.population.share(name, value) for name, value in known.items()}
        return {name: share for name, share in shares.items() if share is not None}


def make_token(sample_id: int, version: int) -> str:
    """Name a sample and a version of its decision; the browser hands it back with each press."""
    return json.dumps({"id": id_text(sample_id), "version": version})


def read_token(token: str) -> tuple[int, int] | None:
    """Read `make_token`; None for anything else."""
    try:
        fields = json.loads(token)
        return parse_id(fields["id"], "token"), int(fields["version"])
    except (ValueError, TypeError, KeyError, DataError):
        return None


def _hint(action: str, row: PoolRow, last: Decision | None, edited: str) -> str | None:
    """What stands in the way of an action, in the words of the page."""
    shown = (last.response if last and last.decision else None) or row.response
    changed = _same_lines(edited) not in (_same_lines(shown or ""), _same_lines(row.response or ""))
    if action == UNDO:
        return None if last and last.decision else "There is no decision to take back."
    if row.prompt is None:
        return "The run could not read this sample's text, so nothing can be decided about it."
    if action == KEEP and changed:
        return "The answer was edited: press Fix to save that, or Reset to go back to the old one."
    if action != FIX:
        return None
    if row.decoded and not row.prompt.strip():
        return "The run trained on prompt and answer alike: keep or drop, a fix has no place to go."
    if not edited.strip():
        return "The correction is empty: write the right answer, or press Drop."
    if _same_lines(edited) == _same_lines(row.response or ""):
        return "Nothing was changed: edit the answer under Correction first, or press Keep."
    return None


def _explain(conflict: ReviewConflict) -> str:
    now = conflict.current
    what = {KEEP: "kept it", FIX: "fixed it", DROP: "dropped it"}.get(
        now.decision or "", "took the decision back"
    )
    return (
        f"Not saved: {now.reviewer or 'somebody'} {what} in another tab at {now.time} UTC. Look at "
        "that decision; press again to overwrite it, or Skip to leave it."
    )


def _same_lines(text: str) -> str:
    """Text with the line ends that a browser's text field keeps."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _or_lowest(value: float | None) -> float:
    return float("-inf") if value is None else value
