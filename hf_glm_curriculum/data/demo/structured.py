"""Extraction and structured output: addresses, bullet lists, JSON, lists to a given form."""

import json
from collections.abc import Callable
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Pair,
    Phrase,
    Task,
    near_miss,
    phrase_check,
    wording,
)
from hf_glm_curriculum.data.demo.editing import list_size, listed, plain_words
from hf_glm_curriculum.data.demo.lexicon import groups, plural_of
from hf_glm_curriculum.data.demo.word_problems import NAMES

_SAY_EN = """
    {answer}
    Here it is: {answer}
    The result is: {answer}"""
_SAY_ZH = """
    {answer}
    结果是：{answer}
    答案：{answer}"""


def _extract(rng: Random, level: str) -> Draw:
    (name, name_zh), (other, _) = rng.sample(NAMES, 2)
    number = rng.randint(10, 999)
    site = rng.choice(("example.com", "example.org", "example.net"))
    mail = f"{name.lower()}{number}@{site}"
    wrong = f"{other.lower()}{number}@{site}"
    room, hour = rng.randint(2, 60), rng.randint(1, 12)
    text = (
        f"Write to {name} at {mail} or come to room {room} at {hour} o'clock.",
        f"请写信给{name_zh}：{mail}，或{hour}点到{room}号房间。",
    )
    return Draw({"x": text}, mail, wrong, phrase_check(mail), level)


def _bullets(rng: Random, level: str) -> Draw:
    words = plain_words(rng, list_size(rng, level))
    lines = tuple("\n".join(f"- {w[i]}" for w in words) for i in (0, 1))
    constraint = {"rule": "bullets", "count": len(words)}

    def check(index: int) -> dict:
        return {
            "kind": "all",
            "checks": [
                {"kind": "format", "constraints": [constraint]},
                {"kind": "sequence", "value": [w[index] for w in words]},
            ],
        }

    wrong = tuple("\n".join(f"- {w[i]}" for w in words[:-1]) for i in (0, 1))
    both = (check(0), check(1))
    answer, short = (lines[0], lines[1]), (wrong[0], wrong[1])
    return Draw({"x": listed(words)}, answer, short, both, level)


def _to_json(rng: Random, level: str) -> Draw:
    (name, name_zh), age = rng.choice(NAMES), rng.randint(5, 90)
    city = rng.choice((("Paris", "巴黎"), ("Rome", "罗马"), ("Tokyo", "东京"), ("Cairo", "开罗")))
    who = {"name": (name, name_zh), "city": city}

    def text(index: int, years: int) -> str:
        row = {"name": who["name"][index], "age": years, "city": city[index]}
        return json.dumps(row, ensure_ascii=False)

    def check(index: int) -> dict:
        parts = [{"rule": "json"}]
        contains = {"kind": "contains", "all_of": [who["name"][index], age, city[index]]}
        return {"kind": "all", "checks": [{"kind": "format", "constraints": parts}, contains]}

    wrong = near_miss(age, rng)
    fields: dict[str, Phrase] = {"name": who["name"], "age": age, "city": city}
    answer = (text(0, age), text(1, age))
    return Draw(fields, answer, (text(0, wrong), text(1, wrong)), (check(0), check(1)), level)


def _some(rng: Random, level: str) -> tuple[Pair, list[Pair]]:
    group = rng.choice(list(groups()))
    return group, rng.sample(groups()[group], {"easy": 2, "medium": 3, "hard": 5}[level])


def _format_draw(rng: Random, level: str, shape: "Shape") -> Draw:
    """Ask for some members of a group in a shape; the wrong answer has one too few or too many."""
    group, words = _some(rng, level)
    rest = [word for word in groups()[group] if word not in words]
    wrong = words[:-1] if rng.random() < 0.5 else [*words, rest[0]]
    fields: dict[str, Phrase] = {
        "n": (_COUNT_WORDS[len(words)][0], _COUNT_WORDS[len(words)][1]),
        "group": (plural_of(group[0]), group[1]),
    }
    check = {"kind": "format", "constraints": shape.constraints(len(words))}
    return Draw(fields, shape.text(words), shape.text(wrong), check, level)


_COUNT_WORDS = {2: ("two", "两"), 3: ("three", "三"), 5: ("five", "五")}


class Shape:
    """A form of a list: one word a line with a mark, or on one line with a divider."""

    def __init__(self, rule: str, mark: str = "", divider: str = "\n", brackets: str = "") -> None:
        self.rule, self.mark, self.divider, self.brackets = rule, mark, divider, brackets

    def text(self, words: list[Pair]) -> Pair:
        """Write words in this shape, English and Chinese."""
        return self._join([w[0] for w in words]), self._join([w[1] for w in words])

    def _join(self, words: list[str]) -> str:
        if self.rule == "json":
            return json.dumps(words, ensure_ascii=False)
        marked = (self.mark.format(i) + word for i, word in enumerate(words, start=1))
        return self.divider.join(marked)

    def constraints(self, count: int) -> list[dict]:
        """Return the format constraints of a list of `count` words."""
        if self.rule == "json":
            return [{"rule": "json"}, {"rule": "parts", "divider": ",", "count": count}]
        if self.rule == "parts":
            return [{"rule": "parts", "divider": self.divider.strip(), "count": count}]
        return [{"rule": self.rule, "count": count}]


_SHAPES = {
    "bullet_list": Shape("bullets", "- "),
    "numbered_list": Shape("numbered", "{}. "),
    "semicolon_list": Shape("parts", divider="; "),
    "json_list": Shape("json"),
}


def _shape_draw(name: str) -> Callable[[Random, str], Draw]:
    return lambda rng, level: _format_draw(rng, level, _SHAPES[name])


def _shape_task(name: str, en: str, zh: str) -> Task:
    answer = "{answer}"
    return Task(
        name,
        "format",
        _shape_draw(name),
        wording(en, answer),
        wording(zh, answer),
        brief=False,
        verbatim=True,
    )


TASKS = (
    Task(
        "extract_email",
        "editing",
        _extract,
        wording(
            """
            Extract the e-mail address: {x}
            Which e-mail address is given here? {x}
            Find the e-mail address in this text: {x}""",
            """
            The address is {answer}
            {answer}""",
        ),
        wording(
            """
            提取邮箱地址：{x}
            这段话里的邮箱是什么？{x}""",
            """
            邮箱地址是{answer}
            {answer}""",
        ),
        verbatim=True,
    ),
    Task(
        "to_bullets",
        "format",
        _bullets,
        wording(
            """
            Turn this list into bullet points: {x}
            Rewrite as a bullet list: {x}""",
            "{answer}",
        ),
        wording(
            """
            把这些词改写成项目符号列表：{x}
            用“-”开头逐行列出：{x}""",
            "{answer}",
        ),
        brief=False,
        verbatim=True,
    ),
    Task(
        "to_json",
        "format",
        _to_json,
        wording(
            """
            Write as JSON with the keys name, age and city: {name}, {age}, from {city}.
            {name} is {age} and lives in {city}. Give this as JSON (name, age, city).
            Make a JSON object with name, age and city: {name}, {age}, {city}.""",
            "{answer}",
        ),
        wording(
            """
            {name}今年{age}岁，住在{city}。请写成JSON，键为name、age、city。
            用JSON表示（name、age、city）：{name}，{age}岁，{city}。""",
            "{answer}",
        ),
        brief=False,
        verbatim=True,
    ),
    _shape_task(
        "bullet_list",
        """
        Name {n} {group} as bullet points.
        Give me a bullet list of exactly {n} {group}.
        List {n} {group}, one bullet point each.""",
        """
        用项目符号列出{n}种{group}。
        请列出{n}种{group}，每行以“-”开头。""",
    ),
    _shape_task(
        "numbered_list",
        """
        Give a numbered list of {n} {group}.
        Name {n} {group}, numbered 1., 2. and so on.""",
        """
        用编号列出{n}种{group}。
        请按1. 2.的格式列出{n}种{group}。""",
    ),
    _shape_task(
        "semicolon_list",
        """
        Name {n} {group} on one line, separated by semicolons.
        Write {n} {group} with a semicolon between them.""",
        """
        写出{n}种{group}，用英文分号隔开。
        在一行里列出{n}种{group}，以英文分号分隔。""",
    ),
    _shape_task(
        "json_list",
        """
        Give {n} {group} as a JSON array of strings.
        Return a JSON list with {n} {group}.""",
        """
        用JSON数组给出{n}种{group}。
        返回一个包含{n}种{group}的JSON列表。""",
    ),
)
