"""Headings of Markdown: "## Title", and a title underlined with "====" or "----"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hf_glm_curriculum.attention.marks import Line, Mark, Span

_HASHES = re.compile(r" {0,3}(#{1,6})[ \t　]{1,8}(?=[^\s#])")
_UNDERLINE = re.compile(r"(={2,}|-{4,})[ \t]{0,8}\n")


class MarkdownHeadings:
    """``#`` to ``######``: ranks 1 to 6, outside fenced code."""

    def head(self, line: Line) -> Mark | None:
        """The heading a line begins."""
        found = None if line.fenced else _HASHES.match(line.text)
        if found is None:
            return None
        return Mark("heading", 0, found.end() + 1, len(found[1]))

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a heading begins its line."""
        yield from ()


class UnderlinedHeadings:
    """A line of text above ``====`` (rank 1) or ``----`` (rank 2; at least four dashes)."""

    def head(self, line: Line) -> Mark | None:
        """The heading that ends with this line and begins with the one before."""
        if line.fenced or not line.text.startswith(("==", "--")):
            return None
        found = _UNDERLINE.match(line.text)
        above = line.previous.strip()
        if found is None or not above or above[0] in "#-=>|*`~":
            return None
        rank = 1 if found[1][0] == "=" else 2
        return Mark("heading", line.previous_start, found.end(), rank)

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a heading begins its line."""
        yield from ()
