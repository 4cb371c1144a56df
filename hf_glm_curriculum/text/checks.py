"""Checkable answers: does a response satisfy an answer check written as plain data?

A check is a dictionary with a `kind`; `KINDS` lists them. Checks travel in JSONL beside the rows
they belong to, so nothing in them is code.
"""

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.constraints import check_format
from hf_glm_curriculum.text.language import detect_language
from hf_glm_curriculum.text.numbers import ANSWER_MARKERS, answer_number, numbers_equal
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.words import contains_phrase, phrase_positions

Check = Mapping[str, Any]
_EDGES = " \t\r\n.,!?;:。，！？；：、\"'“”‘’「」*`"
# Negatives first: 不是 begins with neither yes word but "不对" holds 对.
_NO = ("no", "false", "incorrect", "not", "不是", "否", "不", "错", "假", "没有")
_YES = ("yes", "true", "correct", "是", "对", "正确", "真", "可以", "能", "会")


def check_answer(response: str, spec: Check | str) -> bool:
    """Tell whether a response satisfies an answer check, given as a dictionary or JSON text.

    Kinds and their fields:
        number: `value`; optional `tolerance` (absolute) and `ignore` (numbers of the question).
        exact: `value` or `any_of`; case (unless `case`), edge punctuation and spacing are free.
        contains: `value`, `any_of`, `all_of`, `none_of`; whole words, free case unless `case`.
        choice: `value` and `options`; the option named first (after "answer is", if there) wins.
        sequence: `value`, a list of phrases that occur in this order.
        yes_no: `value`, a bool; read from the opening or after "answer is".
        format: `constraints`, a list for `constraints.check_format`; all must hold.
        language: `value`, "en" or "zh". refusal: `value`, a bool (default true).
        all, any: `checks`, a list of checks. not: `check`.

    Raises:
        DataError: if the check is no JSON object, its kind is unknown or a field is missing.
    """
    if isinstance(spec, str):
        spec = read_check(spec)
    kind = spec.get("kind")
    if kind not in KINDS:
        raise DataError(f"kind: unknown answer check {kind!r}; choose one of {', '.join(KINDS)}")
    try:
        return KINDS[kind](response, spec)
    except KeyError as missing:
        raise DataError(f"{kind}: needs the field {missing}, got {dict(spec)}") from None


def read_check(text: str) -> Check:
    """Read an answer check from JSON text, the form it has in files.

    Raises:
        DataError: if the text is no JSON object.
    """
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise DataError(f"answer_check: not valid JSON ({error}), got {text[:80]!r}") from None
    if not isinstance(spec, dict):
        raise DataError(f"answer_check: must be a JSON object, got {text[:80]!r}")
    return spec


def normalize(text: str, *, case: bool = False) -> str:
    """Fold width, spacing, edge punctuation and (unless `case`) letter case."""
    folded = " ".join(unicodedata.normalize("NFKC", text).split()).strip(_EDGES)
    return folded if case else folded.casefold()


def first_named(text: str, options: Iterable[str]) -> str | None:
    """Return the option that a text names first, the longest at one place, or None."""
    found = [
        (position, -len(option), option)
        for option in options
        for position in phrase_positions(text, option)
    ]
    covered = [
        entry
        for entry in found
        if not any(_covers(other, entry) for other in found if other is not entry)
    ]
    return min(covered)[2] if covered else None


def _covers(other: tuple[int, int, str], entry: tuple[int, int, str]) -> bool:
    """Whether a longer option's occurrence contains this one (尼日尔 inside a longer name)."""
    longer = other[1] < entry[1]
    return longer and other[0] <= entry[0] and entry[0] - entry[1] <= other[0] - other[1]


def _number(response: str, spec: Check) -> bool:
    value = float(spec["value"])
    ignore = [float(number) for number in spec.get("ignore", ()) if float(number) != value]
    found = answer_number(response, ignore)
    return found is not None and numbers_equal(found, value, float(spec.get("tolerance", 0.0)))


def _exact(response: str, spec: Check) -> bool:
    case = bool(spec.get("case", False))
    accepted = spec["any_of"] if "any_of" in spec else [spec["value"]]
    return normalize(response, case=case) in {normalize(str(a), case=case) for a in accepted}


def _contains(response: str, spec: Check) -> bool:
    case = bool(spec.get("case", False))
    if not {"value", "any_of", "all_of", "none_of"} & spec.keys():
        raise KeyError("value")

    def has(phrase: Any) -> bool:
        return contains_phrase(response, str(phrase), case=case)

    wanted = [*spec.get("all_of", ()), *([spec["value"]] if "value" in spec else ())]
    either = spec.get("any_of")
    return (
        all(map(has, wanted))
        and (either is None or any(map(has, either)))
        and not any(map(has, spec.get("none_of", ())))
    )


def _after_marker(response: str) -> str:
    """Return the part after an explicit answer marker, or the whole response."""
    lowered = response.lower()
    ends = [lowered.rfind(marker) + len(marker) for marker in ANSWER_MARKERS if marker in lowered]
    return response[max(ends) :] if ends else response


def _choice(response: str, spec: Check) -> bool:
    options = [str(option) for option in spec["options"]]
    value = str(spec["value"])
    named = first_named(_after_marker(response), options) or first_named(response, options)
    return named is not None and normalize(named) == normalize(value)


def _sequence(response: str, spec: Check) -> bool:
    text, position = response.casefold(), 0
    for phrase in spec["value"]:
        starts = [p for p in phrase_positions(text, str(phrase).casefold()) if p >= position]
        if not starts:
            return False
        position = starts[0] + len(str(phrase))
    return True


def _yes_no(response: str, spec: Check) -> bool:
    opening = _after_marker(response).strip(_EDGES).lower()
    wanted = bool(spec["value"])
    for words_, meaning in ((_NO, False), (_YES, True)):
        if any(_opens_with(opening, word) for word in words_):
            return meaning is wanted
    return False


def _opens_with(text: str, word: str) -> bool:
    after = text[len(word) : len(word) + 1]
    return text.startswith(word) and not (word.isascii() and after.isascii() and after.isalpha())


def _format(response: str, spec: Check) -> bool:
    return all(check_format(response, constraint) for constraint in spec["constraints"])


KINDS: dict[str, Callable[[str, Check], bool]] = {
    "number": _number,
    "exact": _exact,
    "contains": _contains,
    "choice": _choice,
    "sequence": _sequence,
    "yes_no": _yes_no,
    "format": _format,
    "language": lambda response, spec: detect_language(response) == spec["value"],
    "refusal": lambda response, spec: is_refusal(response) is bool(spec.get("value", True)),
    "all": lambda response, spec: all(check_answer(response, c) for c in spec["checks"]),
    "any": lambda response, spec: any(check_answer(response, c) for c in spec["checks"]),
    "not": lambda response, spec: not check_answer(response, spec["check"]),
}
