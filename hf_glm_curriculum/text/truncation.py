"""Whether a text stops before it is finished."""

from hf_glm_curriculum.text.words import CLOSERS, SENTENCE_ENDS, is_han, words

_OPENERS = """a an the and or but of to in on at by for with from as is are was were be that which
who because if when while than into their his her its my your our this these those not"""
_OPEN_WORDS = frozenset(_OPENERS.split())
_OPEN_HAN = frozenset("的和与或在是把被对从因而但及让使向为")
_PAIRS = {"(": ")", "（": "）", "[": "]", "{": "}", "“": "”", "「": "」", "《": "》", "【": "】"}
_CODE_FENCE = "```"


def looks_truncated(text: str, *, short: int = 6) -> bool:
    """Tell whether a text seems cut mid-way.

    Evidence: a comma, colon or connecting word at the end, a bracket, quote or code fence left
    open, or more than `short` units without an end mark on the last line. Short answers ("Paris",
    "42 km"), list items and table rows need no end mark.
    """
    stripped = text.rstrip()
    if not stripped:
        return False
    if stripped[-1] in ",，、;；:：(（-" or stripped.count(_CODE_FENCE) % 2:
        return True
    if _open_bracket(stripped):
        return True
    if stripped.rstrip(CLOSERS)[-1:] in tuple(SENTENCE_ENDS) or stripped[-1] in CLOSERS + "|>;":
        return False
    units = words(stripped)
    if not units:
        return False
    if units[-1].lower() in _OPEN_WORDS or (is_han(stripped[-1]) and stripped[-1] in _OPEN_HAN):
        return len(units) > 1
    return len(units) > short and not _last_line_is_item(stripped, short)


def _open_bracket(text: str) -> bool:
    return any(text.count(opening) > text.count(closing) for opening, closing in _PAIRS.items())


def _last_line_is_item(text: str, short: int) -> bool:
    rows = text.splitlines()
    last = rows[-1].lstrip()
    if len(rows) > 1 and len(words(last)) <= short:
        return True
    is_numbered = last.split(" ")[0].rstrip(".)、").isdigit() and not last[0].isalpha()
    return len(rows) > 1 and (last.startswith(("-", "*", "•", "#")) or is_numbered)
