"""How many answers an instruction itself leaves: a choice, yes or no, one number, or any.

A verb's senses say how much it can mean in general. Where the text names the answers, it means no
more than to pick one of them, and the breadth is at most log₂(1 + answers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hf_glm_curriculum.curriculum.head_verbs import HAN_COUNT, head_verb

_QUOTED = re.compile(r"[\"“”'‘’「『](?P<a>[^\"“”'‘’」』\n]{1,30})[\"“”'‘’」』]")
_NAMED = re.compile(
    r"\b(?:yes|true|correct|right|valid|support(?:ed)?)\b[\"”']?\s*(?:or|/|,|and)\s*[\"“']?"
    r"(?:no|false|incorrect|wrong|invalid|not|un\w+)\b",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"\b(?:tell(?:\s+me)?|decide|determine|check|judge|verify|classify|predict|say|see|find\s+out|"
    r"detect|identify)\s+(?:if|whether)\b|\bwhether\s+(?:or\s+not|the|it|this|a|an|they|he|she)\b"
    r"|是否|是不是|对不对|有没有|对还是错|对或错|正确还是错误",
    re.IGNORECASE,
)
_CHOICE = re.compile(
    r"\b(?:one|any|all|some)\s+of\s+the\s+(?:following|options|choices|categories|classes|labels)\b"
    r"|\bfollowing\s+(?:categories|options|choices|classes|labels)\b"
    r"|\b(?:possible|available)\s+(?:categories|options|answers|labels|classes|intents|values)\b"
    r"|\bmultiple[- ]choice\b|\bon\s+a\s+scale\s+(?:of|from)\b|\bfrom\s+(?:the|this)\s+list\b"
    r"|\b(?:options|choices|categories|labels)\s*:|下列|以下(?:哪|选项)|选项|哪一项|哪个选项",
    re.IGNORECASE,
)
_LABEL_VERB = re.compile(
    r"^\W*(?:please\s+)?(?:classify|categorize|categorise|label|select|choose|pick|rate|grade)\b"
    r"|\b(?:classify|categorize|categorise)\b[^.?!\n]{0,80}\b(?:into|as|whether|if|by)\b"
    r"|^\W*(?:请)?(?:分类|归类|选择|选出|判断)",
    re.IGNORECASE,
)
_LISTED = re.compile(
    r"\b(?:into|as|either|between|to|output|select|choose|answer|with)\s+"
    r"(?P<list>(?:[\w\"'-]+,\s*)*[\w\"'-]+,?\s+(?:or|and)\s+[\w\"'-]+)",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"(?:^|[\s(（])(?:\d{1,2}|[A-Ha-h])[).、）：:]\s*\S")
_NUMBER_ASKED = re.compile(
    r"\bhow\s+(?:many|much|old|far|tall|long|often|fast|large|big|heavy)\b"
    r"|\bwhat(?:['’]s|\s+is|\s+are|\s+was)\s+(?:the\s+)?(?:\w+\s+){0,3}?(?:area|volume|sum|product|"
    r"value|number|probability|total|average|mean|median|remainder|perimeter|cost|price|distance|"
    r"speed|age|percentage|ratio|amount|difference|result|solution|year|date)\b"
    r"|\b(?:calculate|compute|evaluate\s+the\s+expression|count)\b|\bin\s+(?:which|what)\s+year\b"
    r"|(?<![云缘子式行])计算(?![机器学力平技服])|等于|" + HAN_COUNT,
    re.IGNORECASE,
)
_ASKED_MA = re.compile(r"吗[？?]?\s*$")
_FAVOUR = re.compile(r"^(?:请问)?[，,\s]*(?:[你您](?:能|可以|愿意)|能帮|可以帮)")
_ASKING_FOR_TEXT = (
    "write compose create design generate implement program develop build draft brainstorm plan "
    "explain describe discuss introduce suggest recommend imagine"
)
_OPEN_VERBS = frozenset(_ASKING_FOR_TEXT.split())
"""Verbs that ask for a text or a program: numbers, choices and whethers are then its subject."""
_SUM = re.compile(r"^[\s\d０-９.,()（）+\-*/×÷=＝?？^%]+(?:是|为|等于)?[\s=＝?？。.]*$")
_MOST = 12


@dataclass(frozen=True)
class AnswerSpace:
    """How many answers there are, and what says so.

    Attributes:
        answers: their number; None where the text does not limit them.
        reason: for people to read.
    """

    answers: int | None
    reason: str


OPEN = AnswerSpace(None, "any answer")


def answer_space(text: str, lemma: str | None = None) -> AnswerSpace:
    """The answers that an instruction names, in English or Chinese.

    Args:
        text: the instruction.
        lemma: its head verb; found here by default.

    Returns:
        A choice with the options counted (2 at least), 2 for yes or no, 1 for a number, else open.
        Where the verb asks for a text or a program, only "yes or no" spelled out limits it.
    """
    head = text.strip()[:2000]
    if _SUM.match(head) and any(character.isdigit() for character in head):
        return AnswerSpace(1, "a sum to be worked out")
    named = AnswerSpace(2, "yes or no")
    if (head_verb(head).lemma if lemma is None else lemma) in _OPEN_VERBS:
        return named if _NAMED.search(head) else OPEN
    if _CHOICE.search(head) or _LABEL_VERB.search(head):
        return AnswerSpace(_options(head), "a choice among what it names")
    asked_ma = _ASKED_MA.search(head) and not _FAVOUR.match(head)
    if _NAMED.search(head) or _YES_NO.search(head) or asked_ma:
        return named
    if _NUMBER_ASKED.search(head):
        return AnswerSpace(1, "one number")
    return OPEN


def _options(text: str) -> int:
    """How many options a text lists, 2 at least."""
    found = [len(_NUMBERED.findall(text)), len(set(_QUOTED.findall(text)))]
    found += [len(re.split(r",\s*|\s+(?:or|and)\s+", m["list"])) for m in _LISTED.finditer(text)]
    return min(max([2, *found]), _MOST)
