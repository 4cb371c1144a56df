"""Definitions in source code, where they end, and calls of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hf_glm_curriculum.attention.marks import Line, Mark, Span

CODE_RANK = 1000
"""Definitions lie inside headings and clauses; each column of indent is one rank deeper."""

_INDENT = re.compile(r"[ \t]*")
_MODIFIERS = (
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|unsafe"
    r"|const|override|virtual|extern|inline|sealed|partial|pub(?:\([a-z: ]{1,20}\))?)[ \t]+){0,5}"
)
_NAME = r"([A-Za-z_$][\w$]{0,60})"
_DEFINITION = re.compile(
    rf"[ \t]{{0,40}}{_MODIFIERS}(?:"
    rf"(?:def|fn|function[ \t]*\*?|sub|fun)[ \t]+{_NAME}[ \t]{{0,4}}[(<\[:]"
    rf"|func[ \t]+(?:\([^()\n]{{0,60}}\)[ \t]*)?{_NAME}[ \t]{{0,4}}[(\[]"
    rf"|(?:class|interface|struct|enum|trait|record|object|module|namespace)[ \t]+{_NAME}"
    rf"(?:[ \t]*[(:{{<\n]|[ \t]+(?:extends|implements|where|for)[ \t])"
    rf"|type[ \t]+{_NAME}[ \t]+(?:struct|interface)\b"
    rf"|impl(?:<[^<>\n]{{0,40}}>)?[ \t]+(?:[\w:<>]{{1,40}}[ \t]+for[ \t]+)?{_NAME}"
    r"[ \t]{0,4}[<{\n]"
    rf"|(?:[A-Za-z_][\w.<>\[\],?]{{0,40}}[ \t]+){{1,2}}{_NAME}[ \t]{{0,2}}\([^;=\n]{{0,120}}\)"
    r"[ \t]{0,4}(?:throws[ \t]+[\w., ]{1,60})?\{"
    r")"
)
_CONTROL = frozenset({"if", "for", "while", "switch", "catch", "return", "else", "do", "with"})
_CALL = re.compile(r"(?<![\w$])([A-Za-z_$][\w$]{1,60})\(")


def _column(blank: str) -> int:
    return len(blank.expandtabs(4))


class Definitions:
    """Functions, classes and types of the common languages, ranked by their indent."""

    def head(self, line: Line) -> Mark | None:
        """The definition a line begins."""
        found = _DEFINITION.match(line.text)
        if found is None:
            return None
        name = next((group for group in found.groups() if group), "")
        blank = _INDENT.match(line.text)
        if not name or name in _CONTROL or blank is None:
            return None
        rank = CODE_RANK + _column(blank[0])
        return Mark("definition", blank.end(), found.end(), rank, (f"def:{name}",))

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a definition begins its line."""
        yield from ()


class Dedents:
    """Ends definitions where a line stands no deeper than they do."""

    def head(self, line: Line) -> Mark | None:
        """What ends at the first character of a line that is not blank."""
        blank = _INDENT.match(line.text)
        end = blank.end() if blank else 0
        if end >= len(line.text) or line.text[end] in "\r\n)]}{":
            return None
        return Mark("close", end, end + 1, CODE_RANK + _column(line.text[:end]))

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: an indent begins its line."""
        yield from ()


class Calls:
    """``name(`` refers to the definition of that name, if there was one."""

    def head(self, line: Line) -> Mark | None:
        """Nothing: calls stand anywhere."""
        return None

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Calls in a line; a definition's own name is one too, and refers to what it replaces."""
        for found in _CALL.finditer(text, start):
            mark = Mark("reference", found.start(), found.end(), names=(f"def:{found[1]}",))
            yield Span(found.start(), found.end(), found.end(), (mark,))
