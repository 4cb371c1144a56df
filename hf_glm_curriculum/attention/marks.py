"""What detectors find in a text that arrives piece by piece, and when it can be known.

A detector looks at one line. Patterns are written so that a match depends on no text beyond its
``known`` offset: then a mark found in a whole document is found at the same offset while the
document is still being written, and what it links cannot leak anything that comes later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

HEAD = 256
"""Characters of a line that may decide what it begins."""

REACH = 96
"""Longest match of a pattern inside a line, with what is looked at behind it."""

_LONG_LINE = 4096
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)")


@dataclass(frozen=True)
class Mark:
    """Something found in a text; offsets are in characters.

    Attributes:
        kind: "heading", "clause", "definition" (each opens a section), "reference" (names a
            section), "close" (ends open sections) or "turn" (a speaker begins).
        start: Where it begins.
        known: How many characters must be there for it to be known.
        rank: Depth of a section: it ends open sections of its own rank and deeper ones.
        names: Names a section answers to, or names a reference looks for, best first.
        role: The speaker of a turn.
        nested: The section's name continues that of the section it lies in ("4" and "2": "4.2").
    """

    kind: str
    start: int
    known: int
    rank: int = 0
    names: tuple[str, ...] = ()
    role: str = ""
    nested: bool = False


@dataclass(frozen=True)
class Line:
    """A line as far as it is known.

    Attributes:
        text: Its characters, the line break among them once it is complete.
        fenced: Whether it lies in a fenced code block of Markdown.
        previous: The line before, at most `HEAD` characters of it.
        previous_start: Where that line begins, relative to this one (negative).
    """

    text: str
    fenced: bool
    previous: str
    previous_start: int


@dataclass(frozen=True)
class Span:
    """A match inside a line, at most `REACH` characters long, and the marks it stands for."""

    start: int
    end: int
    known: int
    marks: tuple[Mark, ...]


class Detector(Protocol):
    """Finds marks in lines. Offsets of the marks are relative to the line's beginning."""

    def head(self, line: Line) -> Mark | None:
        """What the first `HEAD` characters of a line say; asked again while the line grows."""
        ...

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """What stands anywhere in a line, from `start` on, in order and apart from each other."""
        ...


class MarkStream:
    """Runs detectors over a text that arrives in pieces; looks at the unfinished line only."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        """Start before the first character."""
        self._detectors = tuple(detectors)
        self._text = ""
        self._offset = 0  # where self._text begins in the document
        self._fence = ""
        self._begin_line(0, "", 0)

    def _begin_line(self, offset: int, previous: str, previous_offset: int) -> None:
        self._text, self._offset, self._line_offset = "", offset, offset
        self._previous, self._previous_offset = previous, previous_offset
        self._head = ""
        self._undecided = list(self._detectors)
        self._cursors = [0] * len(self._detectors)

    def feed(self, piece: str) -> list[Mark]:
        """Add text and return the marks it makes known, in the order they become known."""
        found: list[Mark] = []
        lines = piece.split("\n")
        for line in lines[:-1]:
            self._grow(f"{line}\n")
            found += self._look()
            self._end_line()
        if lines[-1]:
            self._grow(lines[-1])
            found += self._look()
        return sorted(found, key=lambda mark: (mark.known, mark.start, mark.rank))

    def _grow(self, text: str) -> None:
        self._text += text
        if len(self._head) < HEAD:
            self._head += text[: HEAD - len(self._head)]

    def _end_line(self) -> None:
        end = self._offset + len(self._text)
        fence = _FENCE.match(self._head)
        if fence and not self._fence:
            self._fence = fence[1]
        elif fence and fence[1].startswith(self._fence) and not fence[2].strip():
            self._fence = ""
        self._begin_line(end, self._head, self._line_offset)

    def _look(self) -> Iterator[Mark]:
        """Marks that can be known now in the line under way."""
        complete = self._text.endswith("\n")
        length = self._offset - self._line_offset + len(self._text)
        if self._undecided:
            yield from self._heads(complete, length)
        for index, detector in enumerate(self._detectors):
            yield from self._insides(index, detector, complete, length)
        if not complete and len(self._text) > _LONG_LINE:
            self._forget()

    def _heads(self, complete: bool, length: int) -> Iterator[Mark]:
        line = Line(
            self._head,
            bool(self._fence),
            self._previous,
            self._previous_offset - self._line_offset,
        )
        waiting: list[Detector] = []
        decided = complete or len(self._head) >= HEAD
        for detector in self._undecided:
            mark = detector.head(line)
            if mark is not None and (min(mark.known, HEAD) <= length or decided):
                yield self._placed(mark, min(mark.known, HEAD, length))
            elif not decided:
                waiting.append(detector)
        self._undecided = waiting

    def _insides(
        self, index: int, detector: Detector, complete: bool, length: int
    ) -> Iterator[Mark]:
        shift = self._offset - self._line_offset  # characters of the line forgotten already
        cursor = self._cursors[index]
        for span in detector.inside(self._text, cursor, bool(self._fence)):
            if span.known + shift > length and not complete:
                self._cursors[index] = span.start
                return
            cursor = span.end
            for mark in span.marks:
                placed = replace(mark, start=mark.start + shift)
                yield self._placed(placed, min(span.known + shift, length))
        self._cursors[index] = max(cursor, len(self._text) - REACH)

    def _placed(self, mark: Mark, known: int) -> Mark:
        """The mark with offsets in the document."""
        start, known = mark.start + self._line_offset, known + self._line_offset
        return replace(mark, start=start, known=known)

    def _forget(self) -> None:
        """Drop the part of a very long line that no pattern can reach any more."""
        drop = max(0, min([*self._cursors, len(self._text)]) - REACH)
        self._text, self._offset = self._text[drop:], self._offset + drop
        self._cursors = [cursor - drop for cursor in self._cursors]

    def copy(self) -> MarkStream:
        """An independent copy."""
        other = object.__new__(MarkStream)
        other.__dict__ = dict(self.__dict__)
        other._undecided, other._cursors = list(self._undecided), list(self._cursors)
        return other
