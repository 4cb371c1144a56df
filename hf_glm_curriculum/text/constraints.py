"""Format constraints on an answer, written as plain data instead of patterns.

A constraint is `{"rule": name, ...parameters}`. Counting rules take `count` and a `relation` of
"exactly" (default), "at least", "at most" or "less than". `RULES` lists them all.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.words import lines, paragraphs, phrase_positions, sentences, word_count
from hf_glm_curriculum.text.words import words as split_words

Rule = Callable[[str, Mapping[str, Any]], bool]
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "exactly": lambda found, wanted: found == wanted,
    "at least": lambda found, wanted: found >= wanted,
    "at most": lambda found, wanted: found <= wanted,
    "less than": lambda found, wanted: found < wanted,
    "more than": lambda found, wanted: found > wanted,
}
_BULLETS = ("- ", "* ", "• ", "· ", "+ ")
_QUOTES = ('""', "“”", "「」", "''", "‘’")


def check_format(response: str, constraint: Mapping[str, Any]) -> bool:
    """Tell whether a response keeps one format constraint.

    Args:
        response: the answer.
        constraint: `{"rule": name, ...}`, for example `{"rule": "bullets", "count": 3}`,
            `{"rule": "words", "relation": "at most", "count": 20}`, `{"rule": "lowercase"}`,
            `{"rule": "ends_with", "value": "Thank you."}` or `{"rule": "json"}`.

    Raises:
        DataError: if the rule is unknown or lacks a parameter.
    """
    name = constraint.get("rule")
    if name not in RULES:
        raise DataError(f"rule: unknown rule {name!r}; choose one of {', '.join(sorted(RULES))}")
    try:
        return RULES[name](response, constraint)
    except KeyError as missing:
        raise DataError(f"{name}: needs the parameter {missing}, got {dict(constraint)}") from None


def compare(found: int, constraint: Mapping[str, Any]) -> bool:
    """Compare a count with `count` under `relation` (default "exactly").

    Raises:
        DataError: if the relation is unknown.
    """
    relation = constraint.get("relation", "exactly")
    if relation not in RELATIONS:
        raise DataError(f"relation: must be one of {', '.join(RELATIONS)}, got {relation!r}")
    return RELATIONS[relation](found, int(constraint["count"]))


def count_bullets(text: str) -> int:
    """Count the lines that are bullet points."""
    return sum(line.startswith(_BULLETS) for line in lines(text))


def count_numbered(text: str) -> int:
    """Count the lines that are numbered items ("1. ", "2) ", "3、")."""
    return sum(_is_numbered(line) for line in lines(text))


def _is_numbered(line: str) -> bool:
    digits = len(line) - len(line.lstrip("0123456789"))
    return 0 < digits < 4 and line[digits : digits + 1] in tuple(".)、)）")


def count_placeholders(text: str) -> int:
    """Count the placeholders in square brackets, such as "[name]"."""
    return sum("]" in part and bool(part.split("]")[0].strip()) for part in text.split("[")[1:])


def count_highlights(text: str) -> int:
    """Count the *highlighted* and **highlighted** spans of Markdown."""
    total = 0
    for line in lines(text):
        body = line[2:] if line.startswith("* ") else line
        spans = [part for part in body.replace("**", "*").split("*")[1::2] if part.strip()]
        total += len(spans) if body.replace("**", "*").count("*") % 2 == 0 else len(spans) - 1
    return max(total, 0)


def count_capital_words(text: str) -> int:
    """Count the words written in capitals only."""
    return sum(word.isupper() for word in split_words(text))


def count_letter(text: str, letter: str) -> int:
    """Count a character whatever its case."""
    return text.lower().count(letter.lower())


def is_json(text: str) -> bool:
    """Whether a text, with or without a code fence, is one valid JSON object or array."""
    body = text.strip()
    if body.startswith("```"):
        body = body.removeprefix("```").removeprefix("json").removesuffix("```").strip()
    try:
        return isinstance(json.loads(body), dict | list)
    except ValueError:
        return False


def has_title(text: str) -> bool:
    """Whether a text holds a title in double angle brackets, "<<title>>"."""
    return any(">>" in part and part.split(">>")[0].strip() for part in text.split("<<")[1:])


def is_quoted(text: str) -> bool:
    """Whether a whole text is wrapped in quotation marks."""
    body = text.strip()
    return len(body) > 2 and any(body[0] == q[0] and body[-1] == q[1] for q in _QUOTES)


def split_on(text: str, divider: str) -> list[str]:
    """Split a text at a divider, leaving out empty parts."""
    return [part.strip() for part in text.split(divider) if part.strip()]


def _sections(text: str, marker: str) -> int:
    starts = [line for line in lines(text) if line.lstrip("#* ").lower().startswith(marker.lower())]
    return len(starts)


def _paragraph_opens(text: str, constraint: Mapping[str, Any]) -> bool:
    found, index = paragraphs(text), int(constraint["index"])
    opening = split_words(found[index - 1]) if 0 < index <= len(found) else []
    return bool(opening) and opening[0].lower() == str(constraint["value"]).lower()


def _ends_with(text: str, constraint: Mapping[str, Any]) -> bool:
    ending = str(constraint["value"]).strip().lower()
    return text.strip().strip('"*').strip().lower().endswith(ending.strip('"'))


def _phrase_count(text: str, constraint: Mapping[str, Any]) -> bool:
    return compare(len(phrase_positions(text, str(constraint["value"]))), constraint)


def _is_cased(text: str, method: Callable[[str], bool]) -> bool:
    return any(map(str.isalpha, text)) and method(text)


RULES: dict[str, Rule] = {
    "bullets": lambda text, c: compare(count_bullets(text), c),
    "numbered": lambda text, c: compare(count_numbered(text), c),
    "words": lambda text, c: compare(word_count(text), c),
    "characters": lambda text, c: compare(len(text.strip()), c),
    "sentences": lambda text, c: compare(len(sentences(text)), c),
    "paragraphs": lambda text, c: compare(len(paragraphs(text)), c),
    "lines": lambda text, c: compare(len(lines(text)), c),
    "parts": lambda text, c: compare(len(split_on(text, str(c["divider"]))), c),
    "sections": lambda text, c: compare(_sections(text, str(c["value"])), c),
    "placeholders": lambda text, c: compare(count_placeholders(text), c),
    "highlights": lambda text, c: compare(count_highlights(text), c),
    "capital_words": lambda text, c: compare(count_capital_words(text), c),
    "letter": lambda text, c: compare(count_letter(text, str(c["value"])), c),
    "phrase": _phrase_count,
    "lowercase": lambda text, c: _is_cased(text, lambda t: t == t.lower()),
    "uppercase": lambda text, c: _is_cased(text, lambda t: t == t.upper()),
    "starts_with": lambda text, c: text.strip().lower().startswith(str(c["value"]).lower()),
    "ends_with": _ends_with,
    "paragraph_opens": _paragraph_opens,
    "json": lambda text, c: is_json(text),
    "title": lambda text, c: has_title(text),
    "quoted": lambda text, c: is_quoted(text),
    "without": lambda text, c: str(c["value"]) not in text,
    "language": lambda text, c: detect_language(text) == c["value"],
}
