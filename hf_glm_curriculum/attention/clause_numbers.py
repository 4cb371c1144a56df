"""Numbers as clauses write them: Chinese and Roman numerals."""

from __future__ import annotations

_DIGITS = {character: value for value, character in enumerate("〇一二三四五六七八九")} | {
    "零": 0,
    "两": 2,
}
_UNITS = {"十": 10, "百": 100, "千": 1000}
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def chinese_number(text: str) -> int:
    """The value of a numeral below ten thousand: 一百零二 → 102, 二〇 → 20, 35 → 35."""
    if text.isdecimal():
        return int(text)
    if not any(character in _UNITS for character in text):
        return int("".join(str(_DIGITS.get(c, c)) for c in text))
    total, digit = 0, None
    for character in text:
        unit = _UNITS.get(character)
        if unit is None:
            digit = _DIGITS.get(character, int(character) if character.isdecimal() else 0)
        else:
            total += (1 if digit is None else digit) * unit
            digit = None
    return total + (digit or 0)


def roman_number(text: str) -> int | None:
    """The value of a Roman numeral in capitals, or None where it is none."""
    values = [_ROMAN.get(character) for character in text]
    if not values or None in values:
        return None
    known = [value for value in values if value is not None]
    following = [*known[1:], 0]
    return sum(-a if a < b else a for a, b in zip(known, following, strict=True))
