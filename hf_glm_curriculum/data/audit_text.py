"""Text rules of the audit: pure functions on one prompt and one answer, English and Chinese.

They are written for few false alarms on real instruction data, where half of all answers are
lists, code, labels or verse; what a rule cannot tell it leaves alone.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_HAN = re.compile(f"[{HAN}]")
_KANA = re.compile("[\u3040-\u30ff]")
_HANGUL = re.compile("[\uac00-\ud7af]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")

_KEY_NOISE = re.compile(r"(?<!\d)[.,:!]|[.,:](?!\d)|[\s\"'`?;“”‘’，。！？；：、…·《》「」『』]+")
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
    key = _KEY_NOISE.sub("", _POLITE.sub("", normalised))
    return key or normalised


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
    for end in (len(run), len(run) - 1):  # the last character may have lost a byte
        try:
            text = run[:end].encode("gb18030").decode("utf-8")
        except UnicodeError:
            continue
        return len(_HAN.findall(text)) >= 0.6 * len(text)
    return False


@dataclass(frozen=True)
class Ending:
    """How an answer ends.

    Attributes:
        reason: why the answer is cut for certain; None where only comparison can tell.
        peers: the group of answers it can be compared with; None if it is not prose.
        finished: whether it ends as sentences do.
    """

    reason: str | None
    peers: str | None
    finished: bool


_CODE = re.compile(r"[{}<>|\\_]|https?:|www\.|\w\(\w*\)|[=+*/^]")
_OPERATOR = re.compile(r"[\d)]\s*[=*/×÷]$|^[\d\s.()+*/×÷=-]*\d\s*[+-]$")
_ITEM_NUMBER = re.compile(r"(?<=[\s。.])([1-9]\d?)[.)、]?$")
_BULLET = re.compile(r"^\s*(?:[-*•+#>]|\(?\d{1,3}[.)、:：-]|[a-zA-Z][.)]\s|[①-⑳])")
_OPEN_ENDED = frozenset(
    ("the", "a", "an", "of", "and", "or", "because", "than", "into", "such", "every", "whose")
) | {"your", "their", "its", "my", "our"}
_OPEN_ENDED_ZH = (
    "以及",
    "因为",
    "但是",
    "而且",
    "并且",
    "或者",
    "和",
    "与",
    "及",
    "或",
    "把",
    "被",
    "将",
)
_FUNCTION_WORD = re.compile(
    r"\b(?:the|an?|of|and|to|in|is|are|was|it|that|for|with|on|as|you|your|this|be|by|or|i|we)\b",
    re.IGNORECASE,
)
_UNFINISHED = ",，、-–—:："
_PAIRS = {")": "(", "）": "（", "]": "[", "】": "【", "”": "“", "」": "「", "》": "《"}


def ending(answer: str) -> Ending:
    """Judge whether an answer stops in the middle of something."""
    text = answer.rstrip()
    if not text:
        return Ending(None, None, True)
    if text.count("```") % 2:
        return Ending("a code fence is not closed", None, False)
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()
    if _OPERATOR.search(last):
        return Ending(f"ends with {last[-1]!r}", None, False)
    number = _ITEM_NUMBER.search(text)
    if number and re.search(rf"(?:^|\n|[.。:：;；]\s?){int(number[1]) - 1}[.)、]", text):
        return Ending(f"ends with the list number {number[1]!r}", None, False)
    finished = not (text[-1].isalnum() or text[-1] in _UNFINISHED or text[-1] in _PAIRS.values())
    if _CODE.search(last) or (finished and text[-1] not in ".!?。！？…"):
        return Ending(None, None, finished)
    han = len(_HAN.findall(last))
    chinese = han >= max(4, 0.2 * len(last))  # also where it is full of Latin names
    size = han if chinese else len(last.split())
    reason = None if finished else _cut_reason(last, chinese, size)
    listed = bool(_BULLET.match(last)) or _is_list(lines)
    prose = not listed and (_is_prose_zh(last, size) if chinese else _is_prose(last, size))
    group = f"{'zh' if chinese else 'latin'}, {'long' if size >= _LONG[chinese] else 'short'}"
    return Ending(reason, group if prose else None, finished)


_LONG = {False: 8, True: 20}


def _cut_reason(last: str, chinese: bool, size: int) -> str | None:
    """Name the sign on an unfinished last line that needs no comparison."""
    if last[-1] in ",，、" and size >= _LONG[chinese]:
        return f"ends with {last[-1]!r}"
    if chinese:
        tail = next((word for word in _OPEN_ENDED_ZH if last.endswith(word)), None)
        if tail and size >= 8:
            return f"ends with {tail!r}"
    else:
        word = last.split()[-1].casefold()
        if word in _OPEN_ENDED and size >= 4 and _is_prose(last, size):
            return f"ends with {word!r}"
    opened = _unclosed(last)
    if opened and len(last) >= 12:
        return f"{opened!r} is not closed"
    return None


def _unclosed(line: str) -> str | None:
    """Return a bracket or quotation mark that the line opens before a word and does not close."""
    stack: list[str] = []
    for character, after in zip(line, f"{line[1:]} ", strict=True):
        if character in _PAIRS.values():
            if after.isalnum():  # no smiley
                stack.append(character)
        elif character in _PAIRS and stack:
            stack.pop()  # kinds may mix: Chinese text closes a wide bracket with a narrow one
    return stack[-1] if stack else None


def _is_prose(line: str, size: int) -> bool:
    """Return whether a Latin line reads as a sentence: function words, lower case."""
    words = [word for word in line.split() if word[0].isalpha()]
    lower = sum(word[0].islower() for word in words)
    enough = len(_FUNCTION_WORD.findall(line)) >= max(1, size // 8)
    return size >= 3 and lower >= 0.6 * size and enough


def _is_prose_zh(line: str, size: int) -> bool:
    """Return whether a Chinese line reads as a sentence."""
    return size >= 6 and size >= 0.4 * len(line)


def _is_list(lines: list[str]) -> bool:
    """Return whether most lines before the last end without a stop, as in lists and verse."""
    before = lines[:-1]
    loose = sum(line.rstrip()[-1].isalnum() or line.rstrip()[-1] in ",，" for line in before)
    return len(before) >= 2 and loose >= 0.5 * len(before)


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
