"""Where the turns of a dialogue begin: by the tokenizer's own chat template, or by plain names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from hf_glm_curriculum.attention.marks import Detector, Line, Mark, Span

_ROLES = "system|developer|user|assistant|model|human|bot|ai|tool|function|observation|ipython"
_TAG_ROLES = "system|user|assistant|model|human|bot|tool"  # where markers look like any other tag
_PLAIN = re.compile(
    r"[ \t]{0,4}(?:\*\*|__)?"
    r"((?i:user|usr|human|customer|client|assistant|agent|ai|bot|sys|system|action)"
    r"|用户|顾客|客户|助手|助理|客服|系统|机器人|问|答)(?:\*\*|__)?[ \t]?[:：](?=[\s\S])"
)
_SENTINEL = "Zq{}qZ"
_CONVERSATION = ("system", "user", "assistant", "user", "assistant")


@dataclass(frozen=True)
class RoleMarkers:
    """How a chat template announces a speaker.

    Attributes:
        pattern: Matches what announces a turn; group "role" or the group's index tells whose.
        roles: Roles of the pattern's groups where it names none itself.
        at_line_start: Only at the beginning of a line.
    """

    pattern: re.Pattern[str]
    roles: tuple[str, ...] = ()
    at_line_start: bool = False

    def role(self, found: re.Match[str]) -> str:
        """Whose turn a match announces."""
        if not self.roles:
            return found["role"].lower()
        index = next(i for i, group in enumerate(found.groups()) if group is not None)
        return self.roles[index]


class TurnDetector:
    """Turns that a chat template's markers announce.

    A marker is a special token's text or a line of its own, so it is looked for anywhere in a
    line or at its beginning.
    """

    def __init__(self, markers: RoleMarkers) -> None:
        """Look for these markers."""
        self._markers = markers

    def head(self, line: Line) -> Mark | None:
        """A turn that begins with the line, for markers that do."""
        if not self._markers.at_line_start:
            return None
        found = self._markers.pattern.match(line.text)
        if found is None:
            return None
        return Mark("turn", found.start(), found.end() + 1, role=self._markers.role(found))

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Turns that begin anywhere in a line."""
        if self._markers.at_line_start:
            return
        for found in self._markers.pattern.finditer(text, start):
            mark = Mark("turn", found.start(), 0, role=self._markers.role(found))
            yield Span(found.start(), found.end(), found.end() + 1, (mark,))


class PlainTurns:
    """Turns of lines such as "User: …", "Assistant: …", "用户：…"."""

    def head(self, line: Line) -> Mark | None:
        """The turn a line begins."""
        found = None if line.fenced else _PLAIN.match(line.text)
        if found is None:
            return None
        role = "system" if found[1] in ("System", "系统") else found[1].lower()
        return Mark("turn", found.start(1), found.end() + 1, role=role)

    def inside(self, text: str, start: int, fenced: bool) -> Iterator[Span]:
        """Nothing: a name begins its line."""
        yield from ()


_MARKERS: WeakKeyDictionary[Any, tuple[str | None, RoleMarkers | None]] = WeakKeyDictionary()


def turn_detectors(tokenizer: Any) -> list[Detector]:
    """What finds turns in this tokenizer's text: its template's markers, else plain names."""
    markers = role_markers(tokenizer)
    return [PlainTurns()] if markers is None else [TurnDetector(markers)]


def role_markers(tokenizer: Any) -> RoleMarkers | None:
    """Find what announces a speaker by rendering the chat template with sentinel messages.

    Returns:
        The markers, or None without a chat template or where it shows none.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    kept = _MARKERS.get(tokenizer)
    if kept is None or kept[0] != str(template):
        kept = _MARKERS[tokenizer] = str(template), _found_markers(tokenizer)
    return kept[1]


def _found_markers(tokenizer: Any) -> RoleMarkers | None:
    for roles in (_CONVERSATION, _CONVERSATION[1:]):
        headers = _headers(tokenizer, roles)
        if headers is not None:
            return _framed(headers) or _literal(headers)
    return None


def _headers(tokenizer: Any, roles: Sequence[str]) -> dict[str, str] | None:
    """Role → the text between the message before and a message of this role."""
    text = _rendered(tokenizer, roles)
    if text is None:
        return None
    headers: dict[str, str] = {}
    end = 0
    for index, role in enumerate(roles):
        start = text.find(_SENTINEL.format(index), end)
        if start < 0:
            return None
        between = text[end:start]
        tail = _rendered(tokenizer, roles[:index]) if index else None
        if tail is not None:
            between = _without_tail(between, tail.rpartition(_SENTINEL.format(index - 1))[2])
        headers[role] = between
        end = start + len(_SENTINEL.format(index))
    return headers


def _without_tail(between: str, tail: str) -> str:
    """Drop what ends the message before; a template may render that with or without a break."""
    for ending in (tail, tail.rstrip()):
        if ending and between.startswith(ending) and between[len(ending) :].strip():
            return between[len(ending) :]
    return between


def _rendered(tokenizer: Any, roles: Sequence[str]) -> str | None:
    """The template's text for sentinel messages of these roles, or None where it refuses them."""
    messages = [{"role": r, "content": _SENTINEL.format(i)} for i, r in enumerate(roles)]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False)
    except Exception:  # templates raise errors of their own, of any kind
        return None
    return text if isinstance(text, str) else None


def _framed(headers: dict[str, str]) -> RoleMarkers | None:
    """Markers that name the role within a frame, such as ``<|im_start|>user``."""
    user = re.search(r"user|human", headers["user"], re.IGNORECASE)
    if user is None:
        return None
    before = headers["user"][: user.start()].lstrip()
    after = headers["user"][user.end() :].partition("\n")[0].rstrip()
    stop = re.escape(after) if after else "(?![A-Za-z_])"
    roles = _ROLES if (before + after).strip("<>[]/") else _TAG_ROLES
    pattern = re.compile(rf"{re.escape(before)}(?P<role>(?i:{roles})){stop}")
    if pattern.match(headers["assistant"].lstrip()) is None:
        return None
    plain = not before.startswith(("<", "["))
    return RoleMarkers(pattern, at_line_start=plain)


def _literal(headers: dict[str, str]) -> RoleMarkers | None:
    """Markers that differ as a whole, such as ``[INST]`` and ``[/INST]``."""
    found = {
        role: headers[role].strip().partition("\n")[0].strip() for role in ("user", "assistant")
    }
    if not all(found.values()) or found["user"] == found["assistant"]:
        return None
    pattern = "|".join(f"({re.escape(marker)})" for marker in found.values())
    plain = not all(marker.startswith(("<", "[")) for marker in found.values())
    return RoleMarkers(re.compile(pattern), tuple(found), at_line_start=plain)
