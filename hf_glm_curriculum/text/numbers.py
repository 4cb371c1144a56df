"""Numbers in free text: found whatever their formatting, and the one that is the answer."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from hf_glm_curriculum.text.words import sentences, words

ANSWER_MARKERS = (
    "####",
    "\na: ",
    "\\boxed{",
    "answer is",
    "answer:",
    "answer =",
    "result is",
    "答案是",
    "答案为",
    "答案:",
    "答案：",
    "结果是",
    "结果为",
)
_EQUALS = ("=", "≈", "等于", "equals")
_FULL_WIDTH = str.maketrans("０１２３４５６７８９．－％／＋−", "0123456789.-%/+-")
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_])[-+]?(?:\d{1,3}(?:[,\u2009\u202f]\d{3})+(?!\d)|\d+)"
    r"(?:\.\d+)?(?:e[-+]?\d+)?",
    re.I,
)
_SCALES = {
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
    "万亿": 1e12,
    "万": 1e4,
    "亿": 1e8,
}
_SMALL = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
fifteen sixteen seventeen eighteen nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORDS = {word: value for value, word in enumerate(_SMALL.split())} | {
    word: 10 * value for value, word in enumerate(_TENS.split(), start=2)
}
_HAN_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")}
_HAN_DIGITS |= {"〇": 0, "两": 2}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}


class FoundNumber(NamedTuple):
    """A number in a text: its value, where it stands, and whether a percent sign follows."""

    value: float
    start: int
    end: int
    percent: bool


def find_numbers(text: str) -> list[FoundNumber]:
    """Find the numbers written in digits, in order.

    Understands signs, thousands separators, decimals, exponents, simple fractions ("3/4"),
    full-width digits, percent signs and scale words (million, 万, 亿). Digits inside a word
    ("H2O") are no numbers.
    """
    text = text.translate(_FULL_WIDTH)
    found: list[FoundNumber] = []
    for match in _NUMBER.finditer(text):
        number = _read(text, match)
        previous = found[-1] if found else None
        if previous and text[previous.end : number.start] in ("/", "⁄") and number.value:
            found[-1] = FoundNumber(
                previous.value / number.value, previous.start, number.end, number.percent
            )
        else:
            found.append(number)
    return found


def _read(text: str, match: re.Match[str]) -> FoundNumber:
    literal, start, end = match.group(), match.start(), match.end()
    before = text[:start].rstrip()
    is_operator = (
        before[-1:].isdigit()
        or before[-1:] in (")", "%")
        or text[start - 1 : start]
        in (
            "-",
            ")",
        )
    )
    if literal[0] in "+-" and start and is_operator:
        literal, start = literal[1:], start + 1
    value = float(re.sub(r"[,\s\u2009\u202f]", "", literal))
    tail = text[end : end + 12].lstrip().lower()
    for word, scale in _SCALES.items():
        if tail.startswith(word):
            return FoundNumber(value * scale, start, end, False)
    return FoundNumber(value, start, end, tail.startswith("%"))


def spelled_number(text: str) -> int | None:
    """Read a whole text as a number in words ("forty-two", 四十二), or return None."""
    units = [unit.lower() for unit in words(text.replace("-", " "))]
    if units and all(len(unit) == 1 and not unit.isascii() for unit in units):
        return _read_han("".join(units))
    return _read_english([unit for unit in units if unit != "and"])


def _read_english(units: list[str]) -> int | None:
    total = group = 0
    for unit in units:
        if unit in _WORDS:
            group += _WORDS[unit]
        elif unit == "hundred":
            group = max(group, 1) * 100
        elif unit in _SCALES:
            total, group = total + max(group, 1) * int(_SCALES[unit]), 0
        else:
            return None
    return total + group if units else None


def _read_han(text: str) -> int | None:
    total = section = digit = 0
    for character in text:
        if character in _HAN_DIGITS:
            digit = _HAN_DIGITS[character]
        elif character in _HAN_UNITS:
            section, digit = section + max(digit, 1) * _HAN_UNITS[character], 0
        elif character in ("万", "亿"):
            total, section, digit = (total + section + digit) * int(_SCALES[character]), 0, 0
        else:
            return None
    return total + section + digit


def answer_number(text: str, ignore: Iterable[float] = ()) -> FoundNumber | None:
    """Pick the number a text gives as its answer, or None when it has none.

    In this order: the number after an explicit marker ("the answer is", "####", 答案是), the
    number after the last equals sign, the last number. Numbers in `ignore` (those the question
    stated) do not count, except right after an equals sign. A text without digits may spell the
    number out.
    """
    ignored = set(ignore)
    text = text.translate(_FULL_WIDTH)
    tail = _after_last(text, ANSWER_MARKERS)
    if tail is not None:
        first = sentences(tail)[0] if sentences(tail) else tail
        result = _after_last(first, _EQUALS)
        chosen = find_numbers(result) if result is not None else _candidates(first, ignored)
        if chosen:
            return chosen[0]
    result = _after_last(text, _EQUALS)
    chosen = find_numbers(result) if result is not None else []
    if chosen:
        return chosen[0]
    chosen = _candidates(text, ignored)
    return chosen[-1] if chosen else _spelled_answer(text)


def _candidates(text: str, ignored: set[float]) -> list[FoundNumber]:
    return [number for number in find_numbers(text) if number.value not in ignored]


def _after_last(text: str, markers: tuple[str, ...]) -> str | None:
    """Return what follows the marker that stands last, or None without any."""
    lowered = text.lower()
    ends = [lowered.rfind(marker) + len(marker) for marker in markers if marker in lowered]
    return text[max(ends) :] if ends else None


def _spelled_answer(text: str) -> FoundNumber | None:
    if any(character.isdigit() and character.isascii() for character in text):
        return None
    tail = _after_last(text, ANSWER_MARKERS)
    value = spelled_number(text if tail is None else tail)
    return None if value is None else FoundNumber(float(value), 0, len(text), False)


def numbers_equal(found: FoundNumber, value: float, tolerance: float = 0.0) -> bool:
    """Whether a found number equals a value within an absolute tolerance; 50% equals 50 and 0.5."""
    readings = (found.value, found.value / 100) if found.percent else (found.value,)
    allowed = max(tolerance, 1e-9 * abs(value))
    return any(math.isclose(reading, value, rel_tol=0, abs_tol=allowed) for reading in readings)
