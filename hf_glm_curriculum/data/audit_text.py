"""Text rules of the audit: pure functions on one prompt and one answer, English and Chinese.

They are written for few false alarms on real instruction data, where half of all answers are
lists, code, labels or verse; what a rule cannot tell it leaves alone.
"""

import re
import unicodedata
from functools import lru_cache

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN = re.compile(f"[{HAN}]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")

_QUOTES_AND_STOPS = "\"'`?;“”‘’，。！？；：、…·《》「」『』"
_KEY_NOISE = re.compile(rf"(?<!\d)[.,:!]|[.,:](?!\d)|[\s{_QUOTES_AND_STOPS}]+")
_BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace())
_NOISE_TABLE = str.maketrans("", "", f".,:!{_QUOTES_AND_STOPS}{_BLANKS}")
_DIGIT = re.compile(r"\d")
_POLITE = re.compile(
    r"^(?:(?:please|kindly|hello|hi|hey|(?:could|can|would|will) you|tell me)\b[\s,:!.]*"
    r"|(?:请问|请|麻烦问一下|麻烦|想问一下|问一下|帮我|帮忙|你好|您好)[\s,:!]*)+"
    r"|[\s,]*(?:\bplease|\bthank you|\bthanks|谢谢)[\s.!?。]*$"
)
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")


@lru_cache(maxsize=64)  # several rules ask about the same text in turn
def script(text: str) -> str:
    """Return the script most of a text is in: "zh", "ja", "ko", "latin" or "other"."""
    if text.isascii():
        return "latin" if _LATIN.search(text) else "other"
    sample = text[:2000]
    if len(_KANA.findall(sample)) > 0.05 * len(sample):
        return "ja"
    counts = {
        "latin": len(_LATIN.findall(sample)),
        "zh": 3 * len(_HAN.findall(sample)),  # a Chinese word is some two characters, not five
        "ko": 3 * len(_HANGUL.findall(sample)),
    }
    best = max(counts, key=lambda name: counts[name])
    return best if counts[best] else "other"


_LANGUAGE_WORDS = re.compile(r"translat|chinese|english|language|翻译|译|语|文|代码|\bcode\b")


def asks_for_other_script(prompt: str, answer_script: str) -> bool:
    """Return whether a prompt explains an answer in another script than its own.

    Args:
        prompt: normalised prompt; it speaks of languages or code, or holds some of that script.
        answer_script: as `script` names it.
    """
    if _LANGUAGE_WORDS.search(prompt):
        return True
    latin = answer_script == "latin"
    held = "".join(c for c in prompt if (c.isascii() and c.isalpha()) == latin)
    return len(held) >= 3 and script(held) == answer_script


def normalise(text: str) -> str:
    """Fold case, width and blanks, which do not make two records different."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def question_key(normalised: str) -> str:
    """Reduce a normalised prompt to what it asks: no blanks, quotes, stops or polite words.

    Arithmetic signs, brackets and the points inside numbers stay.
    """
    asked = _POLITE.sub("", normalised)
    # Without digits every point goes: one table does what the expression does, in less time.
    spelt = _KEY_NOISE.sub("", asked) if _DIGIT.search(asked) else asked.translate(_NOISE_TABLE)
    return spelt or normalised


def numbers(text: str) -> list[str]:
    """Return the numbers in a text, in order."""
    return _NUMBER.findall(text)


def is_empty(answer: str) -> bool:
    """Return whether an answer holds nothing but blanks and dots."""
    return not answer.strip(" \t\r\n\u3000.。…·-—_")


def copied(prompt: str, answer: str) -> str | None:
    """Say how a normalised answer gives its normalised prompt back; None if it does not."""
    if not answer or not prompt:
        return None
    if answer == prompt:
        return "the answer is the prompt"
    long = len(prompt) >= (12 if _HAN.search(prompt) else 40)
    if long and answer.startswith(prompt):
        return "the answer begins with the whole prompt"
    return None


_CONTINUATION = "[\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
_MISREAD = (
    ("UTF-8 read as Latin-1", re.compile("[ÂÃ][\u0080-\u00bf]|â€|ï¿½")),
    (
        "UTF-8 read as Latin-1",
        re.compile(f"(?:[à-ï]{_CONTINUATION}{{2}}){{2,}}|ð\u0178{_CONTINUATION}{{2}}"),
    ),
    ("replacement marks read as GBK", re.compile("锟斤拷|烫烫烫|屯屯屯")),
)
_CONTROL = re.compile("[\u0000-\u0008\u000b\u000e-\u001f\u007f-\u0084\u0086-\u009f]")
_HAN_RUN = re.compile(f"[{HAN}\ue000-\uf8ff\u20ac]{{6,}}")


def mojibake(text: str) -> str | None:
    """Say what in a text was decoded wrongly; None if nothing was."""
    if text.isascii():
        found = _CONTROL.search(text)
        return f"control character U+{ord(found[0]):04X}" if found else None
    if "\ufffd" in text:
        return "replacement character U+FFFD"
    for what, pattern in _MISREAD:
        found = pattern.search(text)
        if found:
            return f"{what}: {found[0][:12]!r}"
    found = _CONTROL.search(text)
    if found:
        return f"control character U+{ord(found[0]):04X}"
    for run in _HAN_RUN.findall(text):
        if _is_misread_gbk(run):
            return f"UTF-8 read as GBK: {run[:8]!r}"
    return None


def _is_misread_gbk(run: str) -> bool:
    """Return whether the bytes of a run of GBK characters spell UTF-8 text, mostly Chinese."""
    first = run[0].encode("gb18030", "replace")
    if first[0] < 0xC2 or len(first) < 2 or not 0x80 <= first[1] < 0xC0:
        return False  # no UTF-8 begins like this; most Chinese text is done with here
    for end in (len(run), len(run) - 1):  # the last character may have lost a byte
        try:
            text = run[:end].encode("gb18030").decode("utf-8")
        except UnicodeError:
            continue
        return len(_HAN.findall(text)) >= 0.6 * len(text)
    return False


_OPEN_QUESTION = re.compile(
    r"如何|怎|什么|哪|为何|几|多少|\b(?:how|what|which|why|who|where|when)\b"
)
_YES_NO = re.compile(
    r"吗|是否|是不是|能不能|可不可以|对不对|"
    r"^(?:is|are|was|were|do|does|did|can|could|will|would|should|has|have)\b"
)
_NEGATION = re.compile(
    r"不|没|(?<!是)否|无法|\b(?:no|not|never|cannot|false|neither)\b|n't\b|n’t\b"
)
_YES = re.compile(r"^(?:yes|yeah|true|correct|right|是的|对|正确|可以)")
_NO = re.compile(r"^(?:no\b|not\b|false|incorrect|wrong|不|没|否|错)")


def contradiction(prompt: str, first: str, second: str) -> str | None:
    """Say how two normalised answers to one normalised prompt exclude each other.

    Long answers may differ and both be right; what is not certain gives None.
    """
    one, two = question_key(first), question_key(second)
    if one == two or not one or not two:
        return None
    for a, b in ((first, second), (second, first)):
        if _YES.match(a) and _NO.match(b):
            return "one answer says yes, the other no"
    closed = _YES_NO.search(prompt) and not _OPEN_QUESTION.search(prompt)
    if closed and bool(_NEGATION.search(first)) != bool(_NEGATION.search(second)):
        return "one answer to a yes-or-no question is negated, the other not"
    if numbers(first) != numbers(second) and _NUMBER.sub("#", first) == _NUMBER.sub("#", second):
        return "the answers differ in their numbers only"
    if _is_short(first) and _is_short(second) and not _end_alike(one, two):
        return "the answers are short and differ"
    return None


def _end_alike(first: str, second: str) -> bool:
    """Return whether two short answers may be one, said in fewer and in more words."""
    if len(first) == len(second):
        return False
    tail = 2 if _HAN.search(first + second) else 4
    return first[-tail:] in second or second[-tail:] in first


def _is_short(text: str) -> bool:
    """Return whether an answer is a few words, so that another one excludes it."""
    return len(text) <= 10 if _HAN.search(text) else len(text.split()) <= 4
