"""Where a place in a document stands: the sections around it, the turns before it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hf_glm_curriculum.attention.legal_clauses import CLAUSE_RANK, ITEM_RANK
from hf_glm_curriculum.attention.marks import Mark

KINDS = (
    "start",
    "heading",
    "clause",
    "definition",
    "reference",
    "turn_previous",
    "turn_next",
    "session_start",
    "session_end",
    "user",
)
"""Kinds of edges between positions, in the order of their codes.

start: to the first position. heading, clause, definition: to the section that a position lies in.
reference: between a place that names a section and that section, whichever came first.
turn_previous: to the beginning of the turn under way (from inside it) and of the one before it.
turn_next: from the beginning of a turn to the end of the one before, whose next it is.
session_start: to the beginning of the dialogue. session_end: from the last position of a finished
dialogue to its beginning. user: given by the user.
"""

CODES = {kind: code for code, kind in enumerate(KINDS)}
_AWAITED = 4  # references kept for a section that is still to come
_SESSION_ROLES = frozenset({"system", "developer"})


class Edge(NamedTuple):
    """An edge from a position to an earlier one, and how many tokens make it known."""

    later: int
    earlier: int
    kind: int
    known: int


@dataclass(frozen=True)
class Section:
    """A section that is open: its rank, where it begins and what it is called."""

    rank: int
    position: int
    kind: int
    name: str


@dataclass
class Outline:
    """The state that marks lead to; O(depth) a mark.

    Attributes:
        sections: Open sections, outermost first.
        labels: Name → position of the section that bore it last.
        session, turn, previous, previous_end: Positions of the dialogue's beginning, the turn
            under way, the one before and its end; −1 where there is none.
    """

    sections: list[Section] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    awaited: dict[str, tuple[int, ...]] = field(default_factory=dict)
    session: int = -1
    turn: int = -1
    previous: int = -1
    previous_end: int = -1
    top_number: int = 0
    article: int = 0

    def apply(self, mark: Mark, position: int, known: int) -> list[Edge]:
        """Take a mark that stands at a position in; returns the edges it brings."""
        if mark.kind == "turn":
            return self._turn(position, known, mark.role)
        if mark.kind == "reference":
            return self._reference(mark, position, known)
        self._close(mark.rank)
        return [] if mark.kind == "close" else self._open(mark, position, known)

    def own(self) -> list[tuple[int, int]]:
        """(position, kind) that whatever comes next is linked to; the most important first."""
        found = [
            (self.turn, CODES["turn_previous"]),
            (self.previous_end, CODES["turn_next"]),
            (self.previous, CODES["turn_previous"]),
        ]
        found += [(section.position, section.kind) for section in reversed(self.sections)]
        found.append((self.session, CODES["session_start"]))
        return [(position, kind) for position, kind in found if position >= 0]

    def _close(self, rank: int) -> None:
        while self.sections and self.sections[-1].rank >= rank:
            self.sections.pop()

    def _open(self, mark: Mark, position: int, known: int) -> list[Edge]:
        if mark.nested:
            mark = self._resolved(mark)
            self._close(mark.rank)
        mark = self._heading_named(mark, position)
        around = self.sections[-1] if self.sections else None
        edges = [Edge(position, around.position, around.kind, known)] if around else []
        name = mark.names[0] if mark.names else ""
        self.sections.append(Section(mark.rank, position, CODES[mark.kind], name))
        for one in mark.names:
            for place in self.awaited.pop(one, ()):
                edges.append(Edge(position, place, CODES["reference"], known))
            if mark.nested:
                self.labels.setdefault(one, position)
            else:
                self.labels[one] = position
        self._count(mark)
        return [edge for edge in edges if edge.earlier < edge.later]

    def _heading_named(self, mark: Mark, position: int) -> Mark:
        """A heading that is a clause too bears its number: "### 4." below "## D." is D.4."""
        if mark.kind != "clause" or not self.sections or self.sections[-1].position != position:
            return mark
        above = [s.name for s in self.sections[:-1] if s.kind == CODES["heading"] and s.name]
        name = mark.names[0]
        if above and re.fullmatch(r":(\d+|[A-Z])", name):
            mark = replace(mark, names=(f"{above[-1]}.{name[1:]}", *mark.names))
        self.sections[-1] = replace(self.sections[-1], name=mark.names[0])
        return mark

    def _resolved(self, mark: Mark) -> Mark:
        """A list item's full name; a plain number that goes on with the clauses is one itself."""
        number = mark.names[0].removeprefix(":")
        numbered = [s for s in self.sections if CLAUSE_RANK <= s.rank < mark.rank and s.name]
        goes_on = number.isdecimal() and int(number) == self.top_number + 1
        if mark.rank == ITEM_RANK and number.isdecimal() and (goes_on or not numbered):
            return replace(mark, rank=CLAUSE_RANK, nested=False)
        parents = [s for s in self.sections if s.kind == CODES["clause"] and s.rank < mark.rank]
        if not parents:
            return mark
        joint = "" if number.startswith("(") else "/" if ":" in number else "."
        return replace(mark, names=(f"{parents[-1].name}{joint}{number}",))

    def _count(self, mark: Mark) -> None:
        """Keep the numbers that later clauses are counted from."""
        for name in mark.names:
            if mark.rank == CLAUSE_RANK and re.fullmatch(r":\d+", name):
                self.top_number = int(name[1:])
            if re.fullmatch(r"条:\d+", name):
                self.article = int(name[2:])

    def _reference(self, mark: Mark, position: int, known: int) -> list[Edge]:
        names = tuple(map(self._absolute, mark.names))
        target = next((self.labels[name] for name in names if name in self.labels), None)
        if target is None:
            self._await(names, position)
            return []
        if target >= position or any(section.position == target for section in self.sections):
            return []  # the section it stands in anyway
        return [Edge(position, target, CODES["reference"], known)]

    def _await(self, names: tuple[str, ...], position: int) -> None:
        """Keep a reference for a clause that may still come."""
        name = next((name for name in names if name.startswith(":")), names[0])
        if not name.startswith("def:"):
            self.awaited[name] = (*self.awaited.get(name, ()), position)[-_AWAITED:]

    def _absolute(self, name: str) -> str:
        """The name that 前条 stands for."""
        if not name.startswith("before:"):
            return name
        return f"条:{self.article - int(name.removeprefix('before:'))}"

    def _turn(self, position: int, known: int, role: str) -> list[Edge]:
        """A speaker begins; sections opened by the one before end."""
        self.sections.clear()
        edges: list[Edge] = []
        if self.session < 0:
            self.session = position
        elif role in _SESSION_ROLES:
            edges.append(Edge(position - 1, self.session, CODES["session_end"], known))
            self.session, self.turn, self.previous, self.previous_end = position, -1, -1, -1
        else:
            edges.append(Edge(position, self.turn, CODES["turn_previous"], known))
            edges.append(Edge(position, position - 1, CODES["turn_next"], known))
            edges.append(Edge(position, self.session, CODES["session_start"], known))
            self.previous, self.previous_end = self.turn, position - 1
        self.turn = position
        return [edge for edge in edges if 0 <= edge.earlier < edge.later]

    def copy(self) -> Outline:
        """An independent copy."""
        return replace(
            self,
            sections=list(self.sections),
            labels=dict(self.labels),
            awaited=dict(self.awaited),
        )
