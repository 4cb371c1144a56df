"""What an instruction asks to be done: its head verb, in English and Chinese.

Rules, in the order they are tried; which one found the verb is said. The number of a verb's senses
is WordNet's, a Chinese verb has those of the English one it is most often rendered by.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from hf_glm_curriculum.curriculum.background import read_table
from hf_glm_curriculum.curriculum.chinese_verbs import CHINESE_VERBS
from hf_glm_curriculum.text.words import is_han, words

_POLITE = re.compile(
    r"^(?:(?:hi|hello|hey|dear|ok|okay|now|then|first|next|so|please|kindly|just|also|again)\b[\s,!:]*"
    r"|(?:can|could|would|will|may|might)\s+(?:you|we|i)\b\s*(?:please|kindly|help\s+me(?:\s+to)?)?\s*"
    r"|(?:i|we)(?:['’]d|\s+would)?\s*(?:want|need|like|love|ask|expect|wish)\s+(?:for\s+)?you\s+to\s+"
    r"|(?:i|we)(?:['’]d|\s+would)?\s*(?:want|need|like|love|wish|have)\s+to\s+"
    r"|(?:your|the|my)\s+(?:task|job|goal|role|assignment)\s+(?:is|here\s+is|will\s+be)\s+to\s+"
    r"|(?:you|we)\s+(?:are|['’]re|will\s+be)\s+(?:asked|required|expected|given|going|supposed)\s+to\s+"
    r"|you\s+(?:should|must|need\s+to|have\s+to|will|shall)\s+"
    r"|(?:let['’]s|let\s+us|let\s+me|help\s+me(?:\s+to)?|try\s+to|be\s+sure\s+to|make\s+sure\s+to)\s+)",
    re.IGNORECASE,
)
_OPENING = re.compile(
    r"^(?:given|based|using|according|consider(?:ing)?|assum(?:e|ing)|suppose|imagine|in|for|from|with|"
    r"if|when|as|at|on|by|after|before|there|here|this|these|you\s+are)\b[^.?!\n]{0,200}?[,:.]\s*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。！？\n])\s*")
_WH = {
    "what": "identify",
    "which": "identify",
    "who": "identify",
    "whom": "identify",
    "whose": "identify",
    "when": "identify",
    "where": "identify",
    "how": "explain",
    "why": "explain",
}
_ASKING = "is are was were am do does did can could should would will has have had may might"
_YES_NO = frozenset(_ASKING.split())
_MEASURES = "many much old long far tall often big large high"
_HOW_MUCH = frozenset(_MEASURES.split())
_FUNCTION_WORDS = (
    "the a an this that these those i you he she it we they my your his her its our their in on at "
    "of to for with from by as and or but not no yes be is are was were am if then than there here "
    "given can could would should will may might must"
)
_NO_VERBS = frozenset(_FUNCTION_WORDS.split())
_HAN_POLITE = re.compile(
    r"^(?:请问|请你|请您|请|麻烦你?|拜托|劳驾|帮我|帮忙|帮|给我|替我|为我|你能不能|您能不能|能不能|"
    r"你能否|能否|你可以|您可以|可以|可否|你能|您能|能|我想要你|我想让你|我希望你|我需要你|我要你|我想要|"
    r"我想|我希望|我需要|我要|你需要|你的任务是|现在|接下来|首先|然后|试着|尝试|尽量|用[^，,。]{1,12}?(?=写|描述|"
    r"解释|回答|翻译|概括|说明)|把[^，,。]{1,40}?(?=翻译|改写|改成|分类|总结|转换|翻成|译成)|"
    r"将[^，,。]{1,40}?(?=翻译|改写|改成|分类|总结|转换|翻成|译成)|[\s，,：:、！!]+)"
)
_HAN_OPENING = re.compile(
    r"^(?:根据|基于|按照|对于|针对|假设|如果|作为|从|在|以|关于|给定|当)[^，,。：:\n]{0,80}[，,。：:]"
)
HAN_COUNT = (
    r"多少|(?<![写给我出供荐说讲想取起举列这那好十])几[个种次天年月岁点]"
    r"(?:[^。！!；;\n]{0,40}[？?]|\w{0,2}\s*$)"
)
"""A number is asked for; "几个" after a verb of giving means "several" instead."""
_HAN_QUESTIONS = (
    (re.compile(r"是否|是不是|对吗|对不对|有没有|能不能|会不会|吗[？?]?\s*$"), "judge"),
    (re.compile(HAN_COUNT + r"|(?<![许很众更诸])多[大长高远久重快]"), "calculate"),
    (re.compile(r"为什么|为何|怎么回事|如何|怎么|怎样|怎麼"), "explain"),
    (re.compile(r"什么|哪|谁|何时|何地"), "identify"),
)
_LONGEST_HAN = max(map(len, CHINESE_VERBS))


@dataclass(frozen=True)
class HeadVerb:
    """A head verb.

    Attributes:
        verb: As it stands in the text, "" where none was found.
        lemma: The English verb whose senses count.
        senses: How many WordNet has, 0 where none was found.
        rule: How it was found.
    """

    verb: str
    lemma: str
    senses: int
    rule: str

    @property
    def breadth(self) -> float:
        """log₂(1 + senses), bits."""
        return math.log2(1 + self.senses)


NONE = HeadVerb("", "", 0, "no verb was found")


def head_verb(text: str) -> HeadVerb:
    """The head verb of an instruction: what its first sentences ask for.

    Args:
        text: the instruction, in English or Chinese (by its first letters); other languages have
            none.
    """
    stripped = text.strip()[:2000]
    first = next((c for c in stripped if c.isalpha()), "")
    if not first:
        return NONE
    return _chinese(stripped) if is_han(first) else _english(stripped)


def verb_senses(lemma: str) -> int:
    """Senses of an English verb in WordNet 3.0, 0 for what is none there."""
    return read_table("verbs_en").get(lemma, 0)


# -- English -----------------------------------------------------------------------------------


def _english(text: str) -> HeadVerb:
    """The first sentence that begins with a verb or asks something; else any known verb."""
    sentences = [s for s in _SENTENCE.split(text) if any(c.isalpha() for c in s)]
    tries = [_without(sentence, _POLITE) for sentence in sentences[:4]]
    tries += [_without(_OPENING.sub("", s, count=1), _POLITE) for s in sentences[:4]]
    asked = None
    for sentence in tries:
        units = [unit.lower() for unit in words(sentence[:200])]
        found = _imperative(units)
        if found is not None:
            return found
        asked = asked or _question(units, "?" in sentence)
    if asked is not None:
        return asked
    if re.search(r"[\u4e00-\u9fff]", text):
        return _chinese(text)
    return _anywhere(text)


def _without(sentence: str, opening: re.Pattern[str]) -> str:
    """The sentence without its polite or empty openings, however many."""
    while True:
        rest = opening.sub("", sentence.lstrip(" \t\"'“”*-•>#0123456789.)"), count=1)
        if rest == sentence:
            return rest
        sentence = rest


def _imperative(units: list[str]) -> HeadVerb | None:
    """A sentence whose first word is a verb in its base form."""
    if not units or units[0] in _NO_VERBS or units[0] in _WH or units[0] in _YES_NO:
        return None
    senses = verb_senses(units[0])
    if senses == 0:
        return None
    after = units[1] if len(units) > 1 else ""
    if after in ("is", "are", "was", "were", "has", "of"):
        return None  # a noun that opens a statement
    return HeadVerb(units[0], units[0], senses, "imperative")


def _question(units: list[str], marked: bool) -> HeadVerb | None:
    """A question asks for what its first word says."""
    if not units:
        return None
    word, after = units[0], units[1] if len(units) > 1 else ""
    if word in ("how", "what") and after in _HOW_MUCH:
        return _implied(word, "calculate", "question after a number or size")
    if word in _WH:
        rule = "question: how or why" if _WH[word] == "explain" else "question after one thing"
        return _implied(word, _WH[word], rule)
    if word in _YES_NO and marked:
        return _implied(word, "judge", "yes-or-no question")
    return None


def _implied(word: str, lemma: str, rule: str) -> HeadVerb:
    return HeadVerb(word, lemma, verb_senses(lemma), rule)


def _anywhere(text: str) -> HeadVerb:
    """The first word that only a verb can be: one that follows "to" or "and"."""
    units = [unit.lower() for unit in words(text[:400])]
    for before, unit in pairwise(units):
        if before in ("to", "and", "then", "please") and unit not in _NO_VERBS:
            senses = verb_senses(unit)
            if senses:
                return HeadVerb(unit, unit, senses, "first verb after “to” or “and”")
    return NONE


# -- Chinese -----------------------------------------------------------------------------------


def _chinese(text: str) -> HeadVerb:
    """A verb at the beginning, a question word, or the first known verb."""
    sentences = [s for s in _SENTENCE.split(text) if any(map(is_han, s))][:4]
    for sentence in sentences:
        for rest in (sentence, _HAN_OPENING.sub("", sentence, count=1)):
            found = _leading(_without_han(rest))
            if found is not None:
                return found
    for sentence in sentences:
        for pattern, lemma in _HAN_QUESTIONS:
            asked = pattern.search(sentence)
            if asked is not None:
                return _implied(asked[0], lemma, "question word")
    for sentence in sentences:
        for start in range(len(sentence)):
            found = _leading(sentence[start:])
            if found is not None and len(found.verb) > 1:
                return HeadVerb(found.verb, found.lemma, found.senses, "first known verb")
    return NONE


def _without_han(sentence: str) -> str:
    while True:
        rest = _HAN_POLITE.sub("", sentence.lstrip(), count=1)
        if rest == sentence:
            return rest
        sentence = rest


def _leading(sentence: str) -> HeadVerb | None:
    """The longest known verb that a sentence begins with."""
    for length in range(min(_LONGEST_HAN, len(sentence)), 0, -1):
        lemma = CHINESE_VERBS.get(sentence[:length])
        if lemma is not None:
            return HeadVerb(sentence[:length], lemma, verb_senses(lemma), "imperative")
    return None
