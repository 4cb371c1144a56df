"""Whether an answer stops in the middle: what is certain by itself, and what its peers decide.

Written for few false alarms: half of all real answers are lists, code, labels or verse, which end
without a full stop.
"""

import re
from dataclasses import dataclass, field

from hf_glm_curriculum.data.audit_text import HAN

_HAN = re.compile(f"[{HAN}]")


@dataclass(frozen=True)
class Ending:
    """How an answer ends.

    Attributes:
        reason: why the answer is cut for certain; None where only comparison can tell.
        peers: the group of answers it can be compared with; None if it is not prose.
        finished: whether it ends as sentences do.
        sign: what speaks for a cut where most answers of its language are finished, else None.
        language: "zh" or "latin".
    """

    reason: str | None
    peers: str | None
    finished: bool
    sign: str | None = None
    language: str = "latin"


_STOPS = ".!?。！？…"
_CODE = re.compile(r"[{}<>|\\_]|https?:|www\.|\w\(\w*\)|[=+*/^]")
_OPERATOR = re.compile(r"[\d)]\s*[=*/×÷]$|^[\d\s.()+*/×÷=-]*\d\s*[+-]$")
_ITEM_NUMBER = re.compile(r"(?<=[\s。.])([1-9]\d?)([.)、-]?)$")
_BARE_BULLET = re.compile(r"\s([-*•])$")
_BULLET = re.compile(r"^\s*(?:[-*•+#>]|\(?\d{1,3}[.)、:：-]|[a-zA-Z][.)]\s|[①-⑳])")
_CODE_WORD = re.compile(r"(?:^|\s)(?:for|if|elif|while|return|def|import|from|new|function|=|==)$")

# Words that no sentence ends with, and words that few end with where full stops are usual.
_NEVER_WORDS = """the a an of and or because than into such every whose your their its my our
which whom although though unless whereas between among during upon toward
towards via per whether i he she we they"""
_SELDOM_WORDS = """to from with for by at is are was were be been being has have had will would can
could should may might must that who if when while until since as in on about
through without within not very more most so but this these those there it you"""
_NEVER_WORDS_ZH = """以及 因为 但是 而且 并且 或者 如果 由于 因此 通过 根据 为了 和 与
及 或 把 被 将 从 对 向 让 使 在 是"""
_NEVER_LAST = frozenset(_NEVER_WORDS.split())
_SELDOM_LAST = frozenset(_SELDOM_WORDS.split())
_NEVER_LAST_ZH = tuple(_NEVER_WORDS_ZH.split())
_SELDOM_LAST_ZH = tuple("的为以等到于也都会能可要就还有而但不很更最这那其")
_FUNCTION_WORD = re.compile(
    r"\b(?:the|an?|of|and|to|in|is|are|was|it|that|for|with|on|as|you|your|this|be|by|or|i|we)\b",
    re.IGNORECASE,
)
_UNFINISHED = ",，、-–—:："
_PAIRS = {")": "(", "）": "（", "]": "[", "】": "【", "”": "“", "」": "「", "》": "《"}
_OPENERS = re.compile("[" + re.escape("".join(_PAIRS.values())) + "]")
_SENTENCE_END = re.compile(r"(?<=[a-zà-ÿ]{3}[.!?])\s+(?=[\"“(]?[A-ZÀ-Ý])")
_SENTENCE_END_ZH = re.compile("(?<=[。！？])(?=.)")
_LONG = {"latin": 8, "zh": 20}
_TAIL = 8
"""Words at the end that tell whether a line reads as a sentence there."""


def ending(answer: str) -> Ending:
    """Judge whether an answer stops in the middle of something."""
    text = answer.rstrip()
    if not text:
        return Ending(None, None, True)
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()
    certain = _cut_list_or_code(text, last)
    if certain:
        return Ending(certain, None, False)
    finished = not (text[-1].isalnum() or text[-1] in _UNFINISHED or text[-1] in _PAIRS.values())
    code = bool(_CODE.search(last))
    if finished and (code or text[-1] not in _STOPS):
        return Ending(None, None, True)
    line = _Line.of(last)
    reason = sign = None
    if not finished:
        reason = line.certainly_cut()
        sign = None if code else line.perhaps_cut()
    listed = code or bool(_BULLET.match(last)) or _is_list(lines)
    peers = None if listed or not line.is_prose() else f"{line.language}, {line.length}"
    return Ending(reason, peers, finished, sign, line.language)


def closing_mark(answer: str) -> str:
    """Return what an answer of several lines begins its last one with, if it is a mark.

    A mark is a word without letters ("####") or with a colon ("Answer:"); "" where there is none.
    Where nearly all answers close with one mark, those without it are cut.
    """
    *before, last = answer.strip().splitlines() or [""]
    word = last.split()[0] if before and last.strip() else ""
    is_mark = word.endswith((":", "：")) or not any(c.isalnum() for c in word)
    return word if is_mark else ""


def _cut_list_or_code(text: str, last: str) -> str | None:
    """Name the sign that a list, a sum, a bracket or code is cut."""
    if text.count("```") % 2:
        return "a code fence is not closed"
    if _OPERATOR.search(last):
        return f"ends with {last[-1]!r}"
    number = _ITEM_NUMBER.search(text)
    if number and _has_item(text, int(number[1]) - 1, number[2]):
        return f"ends with the list number {number[1]!r}"
    bullet = _BARE_BULLET.search(text)
    if bullet and text.count(f" {bullet[1]} ") + text.count(f"\n{bullet[1]} ") >= 2:
        return f"ends with the list mark {bullet[1]!r}"
    if _CODE.search(last) and _CODE_WORD.search(last):
        return f"the code ends with {last.split()[-1]!r}"
    if text[-1] in _STOPS or len(last) < 12:
        return None
    # A round bracket may stand alone in code, music or faces; on one line it seldom does.
    opened = _unclosed(last) if _OPENERS.search(last) else None
    if opened is None and _OPENERS.search(text):
        opened = _unclosed(text)
        opened = None if opened == "(" else opened
    return f"{opened!r} is not closed" if opened else None


def _has_item(text: str, number: int, mark: str) -> bool:
    """Return whether a text has the list item of a number."""
    start = r"(?:^|\s)" if mark == "-" else r"(?:^|\n|[.。:：;；]\s?)"
    end = r"-\s?[^\W\d]" if mark == "-" else "[.)、]"
    return bool(re.search(f"{start}{number}{end}", text))


@dataclass(frozen=True)
class _Line:
    """The last line of an answer."""

    text: str
    words: list[str] = field(default_factory=list)
    han: int = 0
    language: str = "latin"

    @classmethod
    def of(cls, text: str) -> "_Line":
        """Count words, or characters where the line is Chinese, also if full of Latin names."""
        han = len(_HAN.findall(text))
        language = "zh" if han >= max(4, 0.2 * len(text)) else "latin"
        return cls(text, text.split(), han, language)

    @property
    def size(self) -> int:
        return self.han if self.language == "zh" else len(self.words)

    @property
    def length(self) -> str:
        return "long" if self.size >= _LONG[self.language] else "short"

    def is_prose(self) -> bool:
        """Return whether the line reads as a sentence."""
        if self.language == "zh":
            return self.size >= 6 and self.size >= 0.4 * len(self.text)
        return _is_prose(self.words, len(_FUNCTION_WORD.findall(self.text)))

    def certainly_cut(self) -> str | None:
        """Name the sign on an unfinished line that needs no comparison."""
        if self.text[-1] in ",，、" and self.length == "long":
            return f"ends with {self.text[-1]!r}"
        if self.language == "zh":
            tail = next((word for word in _NEVER_LAST_ZH if self.text.endswith(word)), None)
            return f"ends with {tail!r}" if tail and self.size >= 8 else self._cut_sentence()
        word = self.words[-1].casefold()
        if word in _NEVER_LAST and self.size >= 4 and self._tail_is_prose():
            return f"ends with {word!r}"
        return self._cut_sentence()

    def perhaps_cut(self) -> str | None:
        """Name the sign on an unfinished line that counts where most others are finished."""
        if self.language == "zh":
            found = self.size >= 8 and self.text[-1] in _SELDOM_LAST_ZH
            return f"ends with {self.text[-1]!r}" if found else None
        word = self.words[-1].casefold()
        found = word in _SELDOM_LAST and self.size >= 3 and self._tail_is_prose()
        return f"ends with {word!r}" if found else None

    def _tail_is_prose(self) -> bool:
        tail = self.words[-_TAIL:]
        return _is_prose(tail, len(_FUNCTION_WORD.findall(" ".join(tail))))

    def _cut_sentence(self) -> str | None:
        """Say if a line's last sentence has no stop and the one before it has."""
        pattern = _SENTENCE_END_ZH if self.language == "zh" else _SENTENCE_END
        *before, rest = pattern.split(self.text)
        if not before:
            return None
        whole, part = (_Line.of(piece) for piece in (before[-1], rest))
        if whole.is_prose() and len(part.words) + part.han >= 2 and not _CODE.search(rest):
            return "the last sentence has no stop, the one before it has"
        return None


def _is_prose(words: list[str], function_words: int) -> bool:
    """Return whether Latin words read as a sentence: function words, lower case."""
    size = len(words)
    lower = sum(word[0].islower() for word in words if word[0].isalpha())
    return size >= 3 and lower >= 0.6 * size and function_words >= max(1, size // 8)


def _unclosed(text: str) -> str | None:
    """Return a bracket or quotation mark that is opened before a word and not closed."""
    stack: list[str] = []
    for character, after in zip(text, f"{text[1:]} ", strict=True):
        if character in _PAIRS.values():
            if after.isalnum() or after in "\"'":  # no smiley
                stack.append(character)
        elif character in _PAIRS and stack:
            stack.pop()  # kinds may mix: Chinese text closes a wide bracket with a narrow one
    return stack[-1] if stack else None


def _is_list(lines: list[str]) -> bool:
    """Return whether most lines before the last end without a stop, as in lists and verse."""
    before = lines[:-1]
    loose = sum(line.rstrip()[-1].isalnum() or line.rstrip()[-1] in ",，" for line in before)
    return len(before) >= 2 and loose >= 0.5 * len(before)
