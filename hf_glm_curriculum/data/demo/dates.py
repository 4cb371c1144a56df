"""Calendar and clock: weekdays, spans, leap years, month lengths, times; all computed."""

from calendar import isleap, monthrange
from datetime import date, timedelta
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Phrase,
    Task,
    exact_check,
    near_miss,
    number_check,
    phrase_check,
    wording,
)

_WEEKDAYS = (
    ("Monday", "星期一"),
    ("Tuesday", "星期二"),
    ("Wednesday", "星期三"),
    ("Thursday", "星期四"),
    ("Friday", "星期五"),
    ("Saturday", "星期六"),
    ("Sunday", "星期日"),
)
_MONTHS_EN = """January February March April May June July August September October November
December"""
_MONTHS = tuple((name, f"{i}月") for i, name in enumerate(_MONTHS_EN.split(), start=1))
_YES, _NO = ("Yes", "是的"), ("No", "不是")


def day_name(day: date) -> tuple[str, str]:
    """Write a date in English ("March 5, 2024") and Chinese (2024年3月5日)."""
    english = f"{_MONTHS[day.month - 1][0]} {day.day}, {day.year}"
    return english, f"{day.year}年{day.month}月{day.day}日"


def _short(day: date) -> tuple[str, str]:
    return f"{_MONTHS[day.month - 1][0]} {day.day}", f"{day.month}月{day.day}日"


def _random_day(rng: Random, first: int, last: int) -> date:
    return date(rng.randint(first, last), 1, 1) + timedelta(days=rng.randrange(365))


def _weekday(rng: Random, level: str) -> Draw:
    day = _random_day(rng, 2000 if level != "hard" else 1900, 2030)
    index = day.weekday()
    # A day of the same month whose weekday is the fixed point of the worked answer.
    anchor = day - timedelta(days=day.day - 1)
    fields: dict[str, Phrase] = {
        "day": day_name(day),
        "first": day_name(anchor),
        "anchor": _WEEKDAYS[anchor.weekday()],
        "k": day.day - 1,
    }
    wrong = _WEEKDAYS[(index + rng.choice((1, 2, 6))) % 7]
    # The anchor's weekday may be named in a worked answer, so the last weekday named decides.
    return Draw(fields, _WEEKDAYS[index], wrong, _last_weekday(index), "hard")


def _last_weekday(index: int) -> tuple[dict, dict]:
    def ends(language: int) -> dict:
        name = _WEEKDAYS[index][language]
        endings = [name, name + ".", name + "。"]
        rules = [{"rule": "ends_with", "value": ending} for ending in endings]
        return {
            "kind": "any",
            "checks": [{"kind": "format", "constraints": [rule]} for rule in rules],
        }

    return ends(0), ends(1)


def _weekday_after(rng: Random, level: str) -> Draw:
    today, n = (
        rng.randrange(7),
        rng.randint(*{"easy": (2, 6), "medium": (8, 30), "hard": (31, 200)}[level]),
    )
    answer, wrong = _WEEKDAYS[(today + n) % 7], _WEEKDAYS[(today + n + rng.choice((1, 6))) % 7]
    fields: dict[str, Phrase] = {
        "today": _WEEKDAYS[today],
        "n": n,
        "k": n // 7,
        "r": n % 7,
        "w": 7 * (n // 7),
    }
    return Draw(fields, answer, wrong, _last_weekday((today + n) % 7), level)


def _days_between(rng: Random, level: str) -> Draw:
    span = rng.randint(*{"easy": (3, 20), "medium": (21, 60), "hard": (61, 300)}[level])
    start = _random_day(rng, 2001, 2029)
    fields: dict[str, Phrase] = {
        "a": day_name(start),
        "b": day_name(start + timedelta(days=span)),
    }
    return Draw(fields, span, near_miss(span, rng), number_check(span), level)


def _add_days(rng: Random, level: str) -> Draw:
    n = rng.randint(*{"easy": (3, 14), "medium": (15, 40), "hard": (41, 150)}[level])
    start = _random_day(rng, 2001, 2029)
    end = start + timedelta(days=n)
    wrong = _short(end + timedelta(days=rng.choice((1, -1, 2))))
    fields: dict[str, Phrase] = {"a": day_name(start), "n": n}
    return Draw(fields, _short(end), wrong, phrase_check(_short(end), none_of=wrong), level)


def _leap(rng: Random, level: str) -> Draw:
    year = rng.randint(1600, 2400)
    if rng.random() < 0.5:
        year -= year % 4
    if level == "hard":
        year = rng.choice(range(1200, 2900, 100))
    true = isleap(year)
    fields: dict[str, Phrase] = {
        "y": year,
        "verb": _is(true),
        "rule": _leap_rule(year),
    }
    answer, wrong = (_YES, _NO) if true else (_NO, _YES)
    check = {"kind": "yes_no", "value": true}
    return Draw(fields, answer, wrong, check, level, {"verb": _is(not true)})


def _is(true: bool) -> tuple[str, str]:
    return ("is", "是") if true else ("is not", "不是")


def _leap_rule(year: int) -> tuple[str, str]:
    if year % 400 == 0:
        return "it is divisible by 400", "它能被400整除"
    if year % 100 == 0:
        return "it is divisible by 100 but not by 400", "它能被100整除但不能被400整除"
    if year % 4 == 0:
        return "it is divisible by 4 and not by 100", "它能被4整除且不能被100整除"
    return "it is not divisible by 4", "它不能被4整除"


def _month_length(rng: Random, level: str) -> Draw:
    month = rng.randint(1, 12) if level != "hard" else 2
    year = rng.randint(1990, 2060)
    days = monthrange(year, month)[1]
    wrong = rng.choice([d for d in (28, 29, 30, 31) if d != days])
    fields: dict[str, Phrase] = {
        "month": (f"{_MONTHS[month - 1][0]} {year}", f"{year}年{month}月"),
        "y": year,
    }
    return Draw(fields, days, wrong, number_check(days), level)


def _clock(minutes: int) -> str:
    return f"{minutes // 60 % 24}:{minutes % 60:02d}"


def _time_after(rng: Random, level: str) -> Draw:
    step = {"easy": 10, "medium": 5, "hard": 1}[level]
    start = step * rng.randrange(6 * 60 // step, 20 * 60 // step)
    span = step * rng.randint(1, {"easy": 6, "medium": 30, "hard": 200}[level])
    end = start + span
    answer, wrong = _clock(end), _clock(end + rng.choice((10, -10, 60, 5)))
    fields: dict[str, Phrase] = {"a": _clock(start), "n": span}
    return Draw(fields, answer, wrong, exact_check(answer), level)


def _minutes_between(rng: Random, level: str) -> Draw:
    step = {"easy": 10, "medium": 5, "hard": 1}[level]
    start = step * rng.randrange(6 * 60 // step, 18 * 60 // step)
    span = step * rng.randint(2, {"easy": 9, "medium": 36, "hard": 240}[level])
    fields: dict[str, Phrase] = {"a": _clock(start), "b": _clock(start + span)}
    wrong = span + rng.choice((10, -step, 40, step))
    return Draw(fields, span, wrong, number_check(span), level)


def _month_shift(rng: Random, level: str) -> Draw:
    month = rng.randrange(12)
    n = rng.randint(*{"easy": (1, 3), "medium": (4, 9), "hard": (13, 40)}[level])
    answer = _MONTHS[(month + n) % 12]
    wrong = _MONTHS[(month + n + rng.choice((1, 11))) % 12]
    plural = ("months", "个月") if n > 1 else ("month", "个月")
    fields: dict[str, Phrase] = {"m": _MONTHS[month], "n": n, "months": plural}
    return Draw(fields, answer, wrong, phrase_check(answer, none_of=wrong), level)


def _age(rng: Random, level: str) -> Draw:
    born, age = rng.randint(1940, 2015), rng.randint(5, 80)
    fields: dict[str, Phrase] = {"b": born, "y": born + age}
    return Draw(fields, age, near_miss(age, rng), number_check(age), level)


TASKS = (
    Task(
        "weekday",
        "calendar",
        _weekday,
        wording(
            """
            What day of the week was {day}?
            Which weekday falls on {day}?
            On which day of the week is {day}?""",
            """
            It is a {answer}.
            {day} falls on a {answer}.""",
            """
            {first} is a {anchor}. {k} days later it is {answer}.""",
        ),
        wording(
            """
            {day}是星期几？
            请问{day}那天是星期几？""",
            """
            {day}是{answer}。
            那天是{answer}。""",
            """
            {first}是{anchor}，再过{k}天是{answer}。""",
        ),
        weight=0.6,
    ),
    Task(
        "weekday_after",
        "calendar",
        _weekday_after,
        wording(
            """
            Today is {today}. What day will it be in {n} days?
            If today is {today}, which day of the week comes {n} days later?
            It is {today}. Which weekday is it after {n} days?""",
            """
            It will be {answer}.
            In {n} days it will be {answer}.""",
            """
            {n} days are {k} weeks and {r} days, so it will be {answer}.""",
        ),
        wording(
            """
            今天是{today}，{n}天后是星期几？
            如果今天是{today}，再过{n}天是星期几？""",
            """
            {n}天后是{answer}。
            是{answer}。""",
            """
            {n}天等于{k}周零{r}天，所以是{answer}。""",
        ),
        weight=1.2,
    ),
    Task(
        "days_between",
        "calendar",
        _days_between,
        wording(
            """
            How many days are there from {a} to {b}?
            How many days after {a} is {b}?
            Count the days between {a} and {b}.""",
            """
            There are {answer} days.
            The span is {answer} days.
            {b} comes after {answer} days.""",
        ),
        wording(
            """
            从{a}到{b}有多少天？
            {a}过多少天是{b}？""",
            """
            一共{answer}天。
            相隔{answer}天。""",
        ),
    ),
    Task(
        "add_days",
        "calendar",
        _add_days,
        wording(
            """
            What date is {n} days after {a}?
            Which date comes {n} days after {a}?
            Add {n} days to {a}. What is the date?""",
            """
            It is {answer}.
            The date is {answer}.
            {n} days later it is {answer}.""",
        ),
        wording(
            """
            {a}之后{n}天是几月几日？
            从{a}起再过{n}天是哪一天？""",
            """
            是{answer}。
            {n}天后是{answer}。""",
        ),
    ),
    Task(
        "leap_year",
        "calendar",
        _leap,
        wording(
            """
            Is {y} a leap year?
            Does {y} have 366 days?
            Was or will {y} be a leap year?""",
            """
            {answer}, {y} {verb} a leap year.
            {answer}.""",
            """
            {answer}, because {rule}.""",
        ),
        wording(
            """
            {y}年是闰年吗？
            {y}年是不是闰年？""",
            """
            {answer}，{y}年{verb}闰年。
            {answer}。""",
            """
            {answer}，因为{rule}。""",
        ),
    ),
    Task(
        "month_length",
        "calendar",
        _month_length,
        wording(
            """
            How many days does {month} have?
            How many days are there in {month}?
            What is the number of days in {month}?""",
            """
            {month} has {answer} days.
            It has {answer} days.""",
        ),
        wording(
            """
            {month}有多少天？
            {month}一共有几天？""",
            """
            {month}有{answer}天。
            一共{answer}天。""",
        ),
        weight=0.6,
    ),
    Task(
        "time_after",
        "calendar",
        _time_after,
        wording(
            """
            It is {a}. What time will it be in {n} minutes?
            A film starts at {a} and lasts {n} minutes. When does it end?
            What time is {n} minutes after {a}?""",
            """
            It will be {answer}.
            The time is {answer}.
            {n} minutes later it is {answer}.""",
        ),
        wording(
            """
            现在是{a}，{n}分钟后是几点？
            会议{a}开始，开{n}分钟，几点结束？""",
            """
            是{answer}。
            时间是{answer}。""",
        ),
    ),
    Task(
        "minutes_between",
        "calendar",
        _minutes_between,
        wording(
            """
            How many minutes are there from {a} to {b}?
            A lesson runs from {a} to {b}. How many minutes is that?
            How long is it from {a} to {b} in minutes?""",
            """
            It is {answer} minutes.
            That is {answer} minutes.""",
        ),
        wording(
            """
            从{a}到{b}有多少分钟？
            一节课从{a}上到{b}，共多少分钟？""",
            """
            一共{answer}分钟。
            是{answer}分钟。""",
        ),
    ),
    Task(
        "month_shift",
        "calendar",
        _month_shift,
        wording(
            """
            Which month comes {n} {months} after {m}?
            It is {m}. What month will it be in {n} {months}?""",
            """
            It is {answer}.
            The month is {answer}.""",
        ),
        wording(
            """
            {m}之后{n}个月是几月？
            现在是{m}，再过{n}个月是几月？""",
            """
            是{answer}。
            那时是{answer}。""",
        ),
        weight=0.5,
    ),
    Task(
        "age",
        "calendar",
        _age,
        wording(
            """
            Someone born in {b} turns how old in {y}?
            A person was born in {b}. What age do they reach in {y}?
            How old does someone born in {b} become in {y}?""",
            """
            They turn {answer}.
            In {y} they are {answer} years old.""",
            """
            {y} - {b} = {answer} years.""",
        ),
        wording(
            """
            {b}年出生的人在{y}年满多少岁？
            一个人生于{b}年，到{y}年多少岁？""",
            """
            满{answer}岁。
            {answer}岁。""",
            """
            {y} - {b} = {answer}岁。""",
        ),
    ),
)
