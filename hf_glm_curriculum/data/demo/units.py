"""Unit conversion: length, mass, time, volume, angles, money, temperature; up, down, compared."""

from random import Random
from typing import NamedTuple

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Phrase,
    Task,
    choice_check,
    near_miss,
    number_check,
    wording,
)


class Step(NamedTuple):
    """Two units of one quantity: one big unit is `factor` small ones."""

    big: tuple[str, str]
    one_big: str
    small: tuple[str, str]
    factor: int
    level: str


_TABLE = """
kilometres|kilometre|千米|metres|米|1000|easy
metres|metre|米|centimetres|厘米|100|easy
centimetres|centimetre|厘米|millimetres|毫米|10|easy
metres|metre|米|millimetres|毫米|1000|medium
kilometres|kilometre|千米|centimetres|厘米|100000|hard
kilograms|kilogram|千克|grams|克|1000|easy
tonnes|tonne|吨|kilograms|千克|1000|easy
grams|gram|克|milligrams|毫克|1000|medium
tonnes|tonne|吨|grams|克|1000000|hard
hours|hour|小时|minutes|分钟|60|easy
minutes|minute|分钟|seconds|秒|60|easy
days|day|天|hours|小时|24|easy
weeks|week|周|days|天|7|easy
hours|hour|小时|seconds|秒|3600|hard
days|day|天|minutes|分钟|1440|hard
weeks|week|周|hours|小时|168|hard
decades|decade|个年代|years|年|10|easy
centuries|century|个世纪|years|年|100|easy
litres|litre|升|millilitres|毫升|1000|easy
cubic metres|cubic metre|立方米|litres|升|1000|medium
square metres|square metre|平方米|square centimetres|平方厘米|10000|hard
square kilometres|square kilometre|平方千米|hectares|公顷|100|hard
hectares|hectare|公顷|square metres|平方米|10000|hard
feet|foot|英尺|inches|英寸|12|easy
yards|yard|码|feet|英尺|3|medium
pounds|pound|磅|ounces|盎司|16|medium
dozens|dozen|打|pieces|个|12|easy
full turns|full turn|周角|degrees|度|360|medium
right angles|right angle|直角|degrees|度|90|medium
dollars|dollar|美元|cents|美分|100|easy
"""
_TABLE_ZH = """
公斤|斤|2|easy
斤|克|500|easy
斤|两|10|easy
里|米|500|medium
元|角|10|easy
元|分|100|easy
公里|里|2|easy
"""


def _read_steps() -> list[Step]:
    steps = []
    for row in _TABLE.strip().splitlines():
        big, one, big_zh, small, small_zh, factor, level = row.split("|")
        steps.append(Step((big, big_zh), one, (small, small_zh), int(factor), level))
    return steps


def _read_chinese_steps() -> list[Step]:
    rows = (row.split("|") for row in _TABLE_ZH.strip().splitlines())
    return [Step(("", big), "", ("", small), int(f), level) for big, small, f, level in rows]


_STEPS, _STEPS_ZH = _read_steps(), _read_chinese_steps()
_AMOUNTS = {"easy": (2, 12), "medium": (3, 45), "hard": (5, 120)}


def _down_from(steps: list[Step], rng: Random, level: str) -> Draw:
    step = rng.choice([s for s in steps if s.level == level] or steps)
    n = rng.randint(*_AMOUNTS[level])
    fields: dict[str, Phrase] = {
        "n": n,
        "source": step.big,
        "one": (step.one_big, step.big[1]),
        "target": step.small,
        "f": step.factor,
    }
    answer = n * step.factor
    slips = (answer * 10, answer + step.factor, answer - step.factor, near_miss(answer, rng))
    return Draw(fields, answer, rng.choice(slips), number_check(answer), level)


def _down(rng: Random, level: str) -> Draw:
    return _down_from(_STEPS, rng, level)


def _down_chinese(rng: Random, level: str) -> Draw:
    return _down_from(_STEPS_ZH, rng, level)


def _up(rng: Random, level: str) -> Draw:
    step = rng.choice([s for s in _STEPS if s.level == level])
    answer = rng.randint(*_AMOUNTS[level])
    fields: dict[str, Phrase] = {
        "n": answer * step.factor,
        "source": step.small,
        "target": step.big,
        "one": (step.one_big, step.big[1]),
        "f": step.factor,
    }
    wrong = rng.choice((answer * 10, answer + 1, near_miss(answer, rng)))
    return Draw(fields, answer, wrong, number_check(answer), level)


def _compare(rng: Random, level: str) -> Draw:
    step = rng.choice([s for s in _STEPS if s.level != "hard"])
    big, offset = rng.randint(2, 20), rng.choice((-1, 1)) * rng.randint(1, step.factor - 1)
    small = big * step.factor + offset
    in_big = (f"{big} {step.big[0]}", f"{big}{step.big[1]}")
    in_small = (f"{small} {step.small[0]}", f"{small}{step.small[1]}")
    answer, other = (in_small, in_big) if offset > 0 else (in_big, in_small)
    first, second = rng.sample((in_big, in_small), 2)
    fields: dict[str, Phrase] = {
        "a": first,
        "b": second,
        "other": other,
        "big": in_big,
        "same": (f"{big * step.factor} {step.small[0]}", f"{big * step.factor}{step.small[1]}"),
    }
    check = choice_check(answer, (answer, other))
    return Draw(fields, answer, other, check, level, {"other": answer})


def _celsius(rng: Random, level: str) -> Draw:
    celsius = 5 * rng.randint(-8 if level == "hard" else 1, 6 if level == "easy" else 40)
    celsius = celsius or 5
    answer = celsius * 9 // 5 + 32
    wrong = rng.choice((celsius * 9 // 5, answer + 10, near_miss(answer, rng)))
    fields: dict[str, Phrase] = {"c": celsius, "m": celsius * 9 // 5}
    return Draw(fields, answer, wrong, number_check(answer), level)


_CONVERT_ZH = wording(
    """
    {n}{source}等于多少{target}？
    把{n}{source}换算成{target}。
    {n}{source}是多少{target}？
    {n}{source} = ？{target}""",
    """
    {n}{source}等于{answer}{target}。
    是{answer}{target}。
    {n}{source} = {answer}{target}。""",
    """
    1{one}等于{f}{target}，所以{n} × {f} = {answer}{target}。""",
)

TASKS = (
    Task(
        "convert_down",
        "units",
        _down,
        wording(
            """
            How many {target} are there in {n} {source}?
            Convert {n} {source} to {target}.
            What is {n} {source} in {target}?
            Express {n} {source} in {target}.
            {n} {source} equals how many {target}?""",
            """
            {n} {source} is {answer} {target}.
            That is {answer} {target}.
            There are {answer} {target} in {n} {source}.""",
            """
            1 {one} is {f} {target}, so {n} × {f} = {answer} {target}.""",
        ),
        _CONVERT_ZH,
        weight=1.5,
    ),
    Task("convert_down_zh", "units", _down_chinese, None, _CONVERT_ZH, weight=0.6),
    Task(
        "convert_up",
        "units",
        _up,
        wording(
            """
            How many {target} are {n} {source}?
            Convert {n} {source} to {target}.
            What is {n} {source} in {target}?
            Change {n} {source} into {target}.""",
            """
            {n} {source} is {answer} {target}.
            That makes {answer} {target}.
            It is {answer} {target}.""",
            """
            1 {one} is {f} {source}, so {n} ÷ {f} = {answer} {target}.""",
        ),
        wording(
            """
            {n}{source}等于多少{target}？
            把{n}{source}换算成{target}。
            {n}{source}合多少{target}？""",
            """
            {n}{source}等于{answer}{target}。
            合{answer}{target}。""",
            """
            1{one}等于{f}{source}，所以{n} ÷ {f} = {answer}{target}。""",
        ),
        weight=1.5,
    ),
    Task(
        "compare_units",
        "units",
        _compare,
        wording(
            """
            Which is more, {a} or {b}?
            Which is the larger amount: {a} or {b}?
            Compare {a} and {b}. Which is more?""",
            """
            {answer} is more than {other}.
            {answer} is more.""",
            """
            The answer is {answer}, because {big} is {same}.""",
        ),
        wording(
            """
            {a}和{b}哪个更多？
            比较{a}与{b}，哪个更大？""",
            """
            {answer}更多。
            {answer}比{other}多。""",
            """
            答案是{answer}，因为{big}等于{same}。""",
        ),
    ),
    Task(
        "celsius",
        "units",
        _celsius,
        wording(
            """
            What is {c} degrees Celsius in Fahrenheit?
            Convert {c} °C to °F.
            How many degrees Fahrenheit is {c} °C?""",
            """
            {c} °C is {answer} °F.
            It is {answer} degrees Fahrenheit.""",
            """
            {c} × 9 / 5 = {m}, and {m} + 32 = {answer} °F.""",
        ),
        wording(
            """
            {c}摄氏度等于多少华氏度？
            把{c}℃换算成华氏度。""",
            """
            {c}摄氏度等于{answer}华氏度。
            是{answer}华氏度。""",
            """
            {c} × 9 ÷ 5 = {m}，{m} + 32 = {answer}华氏度。""",
        ),
    ),
)
