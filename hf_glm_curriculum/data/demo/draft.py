"""What every demo task shares: a task draws facts once and words them in English and Chinese.

A `Task` holds templates in both languages and a function that draws the facts of one example. The
templates are filled with the drawn fields, so a right answer, a plausible wrong answer and the
answer in the other language all come from one draw.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

Pair = tuple[str, str]
Phrase = str | int | Pair
"""One text for both languages, or (English, Chinese)."""
Check = dict[str, Any]

LANGUAGES = ("en", "zh")
LEVELS = ("easy", "medium", "hard")

_ENDS = (" ", "")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?:,\d{3})*(?:\.\d+)?")

_LEADS = (
    ("Quick question: ", "Hi! ", "Please help: ", "I need help with this. ", "Hello. "),
    ("请问：", "你好，", "帮个忙：", "有个问题：", "麻烦问一下，"),
)
_BRIEF = (
    ("Reply with the answer only.", "Just the answer, please.", "Answer briefly, no explanation."),
    ("只回答结果。", "请直接给出答案。", "不用解释，只写答案。"),
)
_WORKED = (
    ("Show your working.", "Explain briefly.", "Give the steps.", "Show how you get it."),
    ("请写出步骤。", "请简单说明理由。", "说明一下过程。", "请给出推导。"),
)


def split_lines(text: str) -> tuple[str, ...]:
    r"""Split a block of templates into its lines, without blank ones; `\n` is a line break."""
    rows = (row.strip() for row in text.strip().splitlines())
    return tuple(row.replace("\\n", "\n") for row in rows if row)


@dataclass(frozen=True)
class Wording:
    """Templates of one task in one language: prompts, full answers and worked answers."""

    prompts: tuple[str, ...]
    responses: tuple[str, ...]
    worked: tuple[str, ...] = ()


def wording(prompts: str, responses: str, worked: str = "") -> Wording:
    """Build a wording from blocks with one template a line."""
    return Wording(split_lines(prompts), split_lines(responses), split_lines(worked))


@dataclass(frozen=True)
class Draw:
    """The facts of one example, without a language.

    `check` has the form that `text.checks.check_answer` reads; number checks get the numbers of
    the prompt to ignore when the example is worded. `spoiled` holds the fields that change when
    the answer is wrong (a wrong step in a worked answer).
    """

    fields: Mapping[str, Phrase]
    answer: Phrase
    wrong: Phrase | None
    check: Check | tuple[Check, Check] | None
    level: str
    spoiled: Mapping[str, Phrase] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One kind of example: its category, its draw and its wording in each language.

    `brief` allows prompts that ask for the bare answer. `verbatim` answers are not capitalised.
    `weight` is the relative frequency within the category.
    """

    name: str
    category: str
    draw: Callable[[Random, str], Draw]
    en: Wording | None = None
    zh: Wording | None = None
    brief: bool = True
    verbatim: bool = False
    weight: float = 1.0

    def wording_in(self, language: str) -> Wording | None:
        """Return the templates in a language, None where the task has none."""
        return self.en if language == "en" else self.zh

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages in which the task can be worded."""
        return tuple(language for language in LANGUAGES if self.wording_in(language))


@dataclass(frozen=True)
class Draft:
    """One worded example, with what is needed to spoil it in a known way."""

    task: Task
    draw: Draw
    language: str
    style: str
    suffix: str
    prompt: str
    choice: int
    """Which of the task's answer templates is used, in either language."""

    @cached_property
    def response(self) -> str:
        """The right answer."""
        return self._answer(self.draw.fields, self.draw.answer, self.language) or ""

    @cached_property
    def wrong(self) -> str | None:
        """The plausible wrong answer in the same words, None where there is none."""
        spoiled = {**self.draw.fields, **self.draw.spoiled}
        wrong = self.draw.wrong
        return None if wrong is None else self._answer(spoiled, wrong, self.language)

    @cached_property
    def twin(self) -> str | None:
        """The right answer in the other language, None where the task has no wording in it."""
        other = "zh" if self.language == "en" else "en"
        return self._answer(self.draw.fields, self.draw.answer, other)

    @property
    def check(self) -> Check | None:
        """The answer check; a number check ignores the numbers that the prompt states."""
        check = self.draw.check
        if isinstance(check, tuple):
            check = check[LANGUAGES.index(self.language)]
        if check is None or check["kind"] != "number":
            return check
        stated = numbers_of(self.prompt)
        # An answer that repeats a stated number could not be told from the rest: the last counts.
        is_new = check["value"] not in stated
        return {**check, "ignore": stated} if stated and is_new else dict(check)

    def _answer(self, fields: Mapping[str, Phrase], answer: Phrase, language: str) -> str | None:
        known = self.task.wording_in(language)
        if known is None:
            return None
        templates = {"plain": known.responses, "brief": ("{answer}",), "worked": known.worked}
        usable = templates[self.style] or known.responses
        template = usable[self.choice % len(usable)]
        text = fill(template, {**fields, "answer": answer}, language)
        as_is = self.task.verbatim or self.style == "brief"
        return text if as_is else text[:1].upper() + text[1:]

    def rewordings(self) -> list[str]:
        """Return the same question in the task's other wordings, in a fixed order."""
        known = self.task.wording_in(self.language)
        templates = known.prompts if known else ()
        prompts = [fill(t, self.draw.fields, self.language) for t in templates]
        asked = [_join(prompt, self.suffix, self.language) for prompt in prompts]
        leads = _LEADS[LANGUAGES.index(self.language)]
        return [p for p in asked + [lead + p for lead in leads for p in asked] if p != self.prompt]


def fill(template: str, fields: Mapping[str, Phrase], language: str) -> str:
    """Fill a template with the fields' texts in one language."""
    return template.format_map({name: say(phrase, language) for name, phrase in fields.items()})


def say(phrase: Phrase, language: str) -> str:
    """Return a phrase in one language."""
    return str(phrase[LANGUAGES.index(language)] if isinstance(phrase, tuple) else phrase)


def numbers_of(text: str) -> list[float]:
    """List the numbers that a prompt states, in order and without repetition."""
    values = [float(literal.replace(",", "")) for literal in _NUMBER.findall(text)]
    return list(dict.fromkeys(values))


def compose(task: Task, language: str, level: str, rng: Random, style: str | None = None) -> Draft:
    """Draw one example of a task and word it in a language that the task has.

    Args:
        task: what to draw.
        language: "en" or "zh".
        level: "easy", "medium" or "hard".
        rng: source of randomness.
        style: "plain", "brief" or "worked"; drawn if not given.

    Raises:
        ValueError: if the task has no wording in the language.
    """
    draw = task.draw(rng, level)
    known = task.wording_in(language)
    if known is None:
        raise ValueError(f"task {task.name} has no {language} wording")
    style = style or _pick_style(known, task.brief, rng)
    suffix = _pick_suffix(style, language, rng)
    prompt = _join(fill(rng.choice(known.prompts), draw.fields, language), suffix, language)
    if rng.random() < 0.15:
        prompt = rng.choice(_LEADS[LANGUAGES.index(language)]) + prompt
    # 840 is divisible by 1 to 8: one place in every list of templates.
    return Draft(task, draw, language, style, suffix, prompt, rng.randrange(840))


def _pick_style(known: Wording, brief: bool, rng: Random) -> str:
    styles = ["plain", "plain"] + ["brief"] * brief + ["worked"] * bool(known.worked)
    return rng.choice(styles)


def _pick_suffix(style: str, language: str, rng: Random) -> str:
    if style == "plain":
        return ""
    return rng.choice((_BRIEF if style == "brief" else _WORKED)[LANGUAGES.index(language)])


def _join(prompt: str, suffix: str, language: str) -> str:
    return prompt + (_ENDS[LANGUAGES.index(language)] + suffix if suffix else "")


def number_check(value: float, tolerance: float = 0.0) -> Check:
    """Build a check for a number."""
    return {"kind": "number", "value": value} | ({"tolerance": tolerance} if tolerance else {})


def phrase_check(
    answer: Phrase, *, none_of: Phrase | None = None, **more: Any
) -> tuple[Check, Check]:
    """Build a check per language: the answer occurs and, if given, another phrase does not."""

    def one(language: str) -> Check:
        check: Check = {"kind": "contains", "value": say(answer, language), **more}
        return check if none_of is None else check | {"none_of": [say(none_of, language)]}

    return one("en"), one("zh")


def choice_check(answer: Phrase, options: tuple[Phrase, ...]) -> tuple[Check, Check]:
    """Build a check per language: of the options the answer is named first."""

    def one(language: str) -> Check:
        listed = [say(option, language) for option in options]
        return {"kind": "choice", "value": say(answer, language), "options": listed}

    return one("en"), one("zh")


def exact_check(answer: Phrase, *, case: bool = True) -> tuple[Check, Check]:
    """Build a check per language: the answer occurs letter for letter."""
    return phrase_check(answer, case=case)


def overlaps(first: Phrase, second: Phrase) -> bool:
    """Whether one phrase is part of the other in some language (柏林 in 都柏林)."""
    pairs = [(say(first, language), say(second, language)) for language in LANGUAGES]
    return any(a in b or b in a for a, b in pairs)


def near_miss(value: int, rng: Random) -> int:
    """Return a plausible wrong number: a slip by one, two or ten, or two digits swapped."""
    slips = [value + step for step in (1, -1, 2, -2, 10, -10)]
    digits = str(abs(value))
    if len(digits) > 1 and digits[-1] != digits[-2]:
        swapped = digits[:-2] + digits[-1] + digits[-2]
        slips += [int(swapped) if value >= 0 else -int(swapped)] * 2
    plausible = [slip for slip in slips if slip != value and (slip >= 0 or value < 0)]
    return rng.choice(plausible)
