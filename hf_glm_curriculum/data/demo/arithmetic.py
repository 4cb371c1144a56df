"""Arithmetic: the four operations, brackets, percentages, sequences, comparison, rounding."""

from collections.abc import Callable
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Task,
    choice_check,
    near_miss,
    number_check,
    wording,
)

_RANGES = {"easy": (2, 20), "medium": (10, 99), "hard": (100, 9999)}


def _pair(rng: Random, level: str) -> tuple[int, int]:
    low, high = _RANGES[level]
    return rng.randint(low, high), rng.randint(low, high)


def _number(fields: dict, value: int, rng: Random, level: str, **spoiled: int) -> Draw:
    wrong = spoiled.pop("wrong", None) or near_miss(value, rng)
    return Draw(fields, value, wrong, number_check(value), level, spoiled)


def _add(rng: Random, level: str) -> Draw:
    a, b = _pair(rng, level)
    return _number({"a": a, "b": b}, a + b, rng, level)


def _subtract(rng: Random, level: str) -> Draw:
    a, b = sorted(_pair(rng, level), reverse=True)
    return _number({"a": a + 1, "b": b}, a + 1 - b, rng, level)


def _multiply(rng: Random, level: str) -> Draw:
    high = {"easy": 12, "medium": 40, "hard": 120}[level]
    a, b = rng.randint(2, high), rng.randint(2, 12 if level != "hard" else 90)
    tens, ones = a // 10 * 10, a % 10
    fields = {"a": a, "b": b, "tens": tens, "ones": ones, "p": tens * b, "q": ones * b}
    slip = near_miss(ones * b, rng)
    return _number(fields, a * b, rng, level, wrong=tens * b + slip, q=slip)


def _divide(rng: Random, level: str) -> Draw:
    high = {"easy": 10, "medium": 25, "hard": 150}[level]
    b, quotient = rng.randint(2, 12 if level != "hard" else 40), rng.randint(2, high)
    return _number({"a": b * quotient, "b": b}, quotient, rng, level)


def _remainder(rng: Random, level: str) -> Draw:
    b = rng.randint(3, 9 if level == "easy" else 15)
    quotient = rng.randint(2, 9 if level != "hard" else 60)
    rest = rng.randint(1, b - 1)
    fields = {"a": b * quotient + rest, "b": b, "k": quotient, "p": b * quotient}
    wrong = rest + 1 if rest + 1 < b else rest - 1
    return Draw(fields, rest, wrong, number_check(rest), level)


def _brackets(rng: Random, level: str) -> Draw:
    high = {"easy": 9, "medium": 15, "hard": 40}[level]
    a, b, c = (rng.randint(2, high) for _ in range(3))
    total = a + b
    slip = near_miss(total, rng)
    fields = {"a": a, "b": b, "c": c, "s": total}
    return _number(fields, total * c, rng, level, wrong=slip * c, s=slip)


def _precedence(rng: Random, level: str) -> Draw:
    high = {"easy": 9, "medium": 20, "hard": 60}[level]
    a, b, c = (rng.randint(2, high) for _ in range(3))
    # The usual mistake: adding before multiplying, or a slip in the product.
    slip = near_miss(b * c, rng)
    fields = {"a": a, "b": b, "c": c, "s": b * c}
    return _number(fields, a + b * c, rng, level, wrong=a + slip, s=slip)


def _percent(rng: Random, level: str) -> Draw:
    share = rng.choice(
        {"easy": (10, 50, 25), "medium": (20, 5, 75, 30), "hard": (15, 35, 45, 85)}[level]
    )
    whole = 20 * rng.randint(1, {"easy": 15, "medium": 40, "hard": 150}[level])
    return _number({"p": share, "n": whole}, share * whole // 100, rng, level)


def _square(rng: Random, level: str) -> Draw:
    a = rng.randint(*{"easy": (2, 12), "medium": (11, 25), "hard": (21, 99)}[level])
    return _number({"a": a}, a * a, rng, level)


def _average(rng: Random, level: str) -> Draw:
    high = {"easy": 12, "medium": 40, "hard": 150}[level]
    a, b = rng.randint(1, high), rng.randint(1, high)
    c = 3 * rng.randint((a + b) // 3 + 1, high + (a + b) // 3) - a - b
    total = a + b + c
    fields = {"a": a, "b": b, "c": c, "s": total}
    slip = total + 3 * rng.choice((1, 2, -1))
    return _number(fields, total // 3, rng, level, wrong=slip // 3, s=slip)


def _sequence(rng: Random, level: str) -> Draw:
    start = rng.randint(1, {"easy": 10, "medium": 30, "hard": 9}[level])
    step = rng.randint(2, {"easy": 5, "medium": 15, "hard": 4}[level])
    terms = [start]
    for _ in range(4):
        terms.append(terms[-1] * step if level == "hard" else terms[-1] + step)
    rule = (
        (f"multiply by {step}", f"乘以{step}") if level == "hard" else (f"add {step}", f"加{step}")
    )
    fields = {
        "terms": (", ".join(map(str, terms[:4])), "、".join(map(str, terms[:4]))),
        "rule": rule,
    }
    return _number(fields, terms[4], rng, level)


def _larger(rng: Random, level: str) -> Draw:
    low, high = _RANGES[level]
    a, b = rng.sample(range(low, high + 1), 2)
    best, least = max(a, b), min(a, b)
    check = choice_check(str(best), (str(a), str(b)))
    return Draw({"a": a, "b": b, "other": least}, best, least, check, level, {"other": best})


def _round(rng: Random, level: str) -> Draw:
    unit = {"easy": 10, "medium": 100, "hard": 1000}[level]
    value = rng.randint(unit + 1, unit * 40)
    value += value % unit == 0
    nearest = (value + unit // 2) // unit * unit
    wrong = nearest - unit if nearest > value else nearest + unit
    return Draw({"a": value, "u": unit}, nearest, wrong, number_check(nearest), level)


_OPERATION_EN = """
    What is {{a}} {sign} {{b}}?
    Calculate {{a}} {sign} {{b}}.
    Compute {{a}} {sign} {{b}}.
    {{a}} {sign} {{b}} = ?
    Work out {{a}} {sign} {{b}}.
    How much is {{a}} {word} {{b}}?
    Find the {noun} {{a}} and {{b}}.
    Can you tell me what {{a}} {word} {{b}} is?"""
_OPERATION_ZH = """
    {{a}}{sign}{{b}}等于多少？
    计算{{a}} {sign} {{b}}。
    请算一下：{{a}} {sign} {{b}}。
    {{a}} {sign} {{b}} = ？
    {{a}}{word}{{b}}是多少？
    求{{a}}与{{b}}的{noun}。"""
_ANSWER_EN = """
    {{a}} {sign} {{b}} = {{answer}}.
    The answer is {{answer}}.
    {{a}} {word} {{b}} is {{answer}}.
    The {noun} {{a}} and {{b}} is {{answer}}."""
_ANSWER_ZH = """
    {{a}} {sign} {{b}} = {{answer}}。
    答案是{{answer}}。
    {{a}}{word}{{b}}等于{{answer}}。
    结果是{{answer}}。"""


def _operation(
    name: str,
    draw: Callable[[Random, str], Draw],
    sign: str,
    en: tuple[str, str],
    zh: tuple[str, str],
    worked: tuple[str, str] = ("", ""),
) -> Task:
    """Build the task of one operation from its sign, verb and noun."""

    def block(text: str, word: str, noun: str) -> str:
        return text.format(sign=sign, word=word, noun=noun)

    english = wording(block(_OPERATION_EN, *en), block(_ANSWER_EN, *en), worked[0])
    chinese = wording(block(_OPERATION_ZH, *zh), block(_ANSWER_ZH, *zh), worked[1])
    return Task(name, "arithmetic", draw, english, chinese)


TASKS = (
    _operation("add", _add, "+", ("plus", "sum of"), ("加", "和")),
    _operation("subtract", _subtract, "-", ("minus", "difference between"), ("减", "差")),
    _operation(
        "multiply",
        _multiply,
        "×",
        ("times", "product of"),
        ("乘以", "积"),
        (
            "{tens} × {b} = {p} and {ones} × {b} = {q}, so {a} × {b} = {answer}.",
            "{tens} × {b} = {p}，{ones} × {b} = {q}，所以{a} × {b} = {answer}。",
        ),
    ),
    _operation("divide", _divide, "÷", ("divided by", "quotient of"), ("除以", "商")),
    Task(
        "remainder",
        "arithmetic",
        _remainder,
        wording(
            """
            What is the remainder when {a} is divided by {b}?
            Divide {a} by {b}. What remains?
            Find {a} mod {b}.
            What is left over when you split {a} into groups of {b}?""",
            """
            The remainder is {answer}.
            Dividing {a} by {b} leaves {answer}.""",
            """
            {b} × {k} = {p}, and {a} - {p} = {answer}. The remainder is {answer}.""",
        ),
        wording(
            """
            {a}除以{b}的余数是多少？
            求{a}除以{b}的余数。
            把{a}个苹果每{b}个装一袋，最后剩几个？""",
            """
            余数是{answer}。
            {a}除以{b}余{answer}。""",
            """
            {b} × {k} = {p}，{a} - {p} = {answer}，余数是{answer}。""",
        ),
    ),
    Task(
        "brackets",
        "arithmetic",
        _brackets,
        wording(
            """
            What is ({a} + {b}) × {c}?
            Calculate ({a} + {b}) × {c}.
            Add {a} and {b}, then multiply by {c}. What do you get?
            Evaluate ({a} + {b}) * {c}.""",
            """
            The result is {answer}.
            ({a} + {b}) × {c} = {answer}.""",
            """
            {a} + {b} = {s}, and {s} × {c} = {answer}.
            First the brackets: {a} + {b} = {s}. Then {s} × {c} = {answer}.""",
        ),
        wording(
            """
            ({a} + {b}) × {c}等于多少？
            计算({a} + {b}) × {c}。
            {a}与{b}的和再乘以{c}是多少？""",
            """
            结果是{answer}。
            ({a} + {b}) × {c} = {answer}。""",
            """
            先算括号：{a} + {b} = {s}，再算{s} × {c} = {answer}。""",
        ),
    ),
    Task(
        "precedence",
        "arithmetic",
        _precedence,
        wording(
            """
            What is {a} + {b} × {c}?
            Calculate {a} + {b} × {c}.
            Evaluate {a} + {b} * {c}.
            Work out {a} + {b} × {c}, minding the order of operations.""",
            """
            The result is {answer}.
            {a} + {b} × {c} = {answer}.""",
            """
            Multiplication first: {b} × {c} = {s}. Then {a} + {s} = {answer}.
            {b} × {c} = {s}, and {a} + {s} = {answer}.""",
        ),
        wording(
            """
            {a} + {b} × {c}等于多少？
            计算{a} + {b} × {c}。
            请按运算顺序算出{a} + {b} × {c}。""",
            """
            结果是{answer}。
            {a} + {b} × {c} = {answer}。""",
            """
            先算乘法：{b} × {c} = {s}，再算加法：{a} + {s} = {answer}。""",
        ),
    ),
    Task(
        "percent",
        "arithmetic",
        _percent,
        wording(
            """
            What is {p}% of {n}?
            Calculate {p}% of {n}.
            Find {p} percent of {n}.
            How much is {p}% of {n}?""",
            """
            {p}% of {n} is {answer}.
            The answer is {answer}.
            It is {answer}.""",
            """
            {p}% of {n} is {n} × {p} / 100 = {answer}.""",
        ),
        wording(
            """
            {n}的{p}%是多少？
            计算{n}的百分之{p}。
            求{n}的{p}%。""",
            """
            {n}的{p}%是{answer}。
            答案是{answer}。""",
            """
            {n} × {p} ÷ 100 = {answer}。""",
        ),
    ),
    Task(
        "square",
        "arithmetic",
        _square,
        wording(
            """
            What is {a} squared?
            Calculate the square of {a}.
            What is the area of a square with side {a}?
            What do you get if you multiply {a} by itself?""",
            """
            {a} × {a} = {answer}.
            It is {answer}.
            The answer is {answer}.""",
        ),
        wording(
            """
            {a}的平方是多少？
            计算{a}的平方。
            边长为{a}的正方形面积是多少？""",
            """
            {a} × {a} = {answer}。
            答案是{answer}。""",
        ),
        weight=0.5,
    ),
    Task(
        "average",
        "arithmetic",
        _average,
        wording(
            """
            What is the average of {a}, {b} and {c}?
            Find the mean of {a}, {b} and {c}.
            Calculate the average of these numbers: {a}, {b}, {c}.""",
            """
            The average is {answer}.
            Their mean is {answer}.""",
            """
            {a} + {b} + {c} = {s}, and {s} ÷ 3 = {answer}.""",
        ),
        wording(
            """
            {a}、{b}、{c}的平均数是多少？
            求{a}、{b}和{c}的平均值。""",
            """
            平均数是{answer}。
            它们的平均值等于{answer}。""",
            """
            {a} + {b} + {c} = {s}，{s} ÷ 3 = {answer}。""",
        ),
    ),
    Task(
        "sequence",
        "arithmetic",
        _sequence,
        wording(
            """
            What comes next: {terms}, ...?
            Continue the sequence with one number: {terms}.
            Find the next number in the pattern {terms}.
            Which number follows {terms}?""",
            """
            The next number is {answer}.
            Next comes {answer}.""",
            """
            The rule is to {rule} each time, so the answer is {answer}.""",
        ),
        wording(
            """
            找规律：{terms}，下一个数是多少？
            数列{terms}的下一项是多少？
            请写出{terms}后面的一个数。""",
            """
            下一个数是{answer}。
            下一项等于{answer}。""",
            """
            规律是每次{rule}，所以答案是{answer}。""",
        ),
    ),
    Task(
        "larger",
        "arithmetic",
        _larger,
        wording(
            """
            Which is larger, {a} or {b}?
            Which number is bigger: {a} or {b}?
            Pick the greater of {a} and {b}.""",
            """
            {answer} is larger than {other}.
            {answer} is the larger one.
            The larger number is {answer}.""",
        ),
        wording(
            """
            {a}和{b}哪个更大？
            比较{a}与{b}，较大的是哪个？""",
            """
            {answer}更大。
            {answer}大于{other}。
            较大的数是{answer}。""",
        ),
        weight=0.6,
    ),
    Task(
        "round",
        "arithmetic",
        _round,
        wording(
            """
            Round {a} to the nearest {u}.
            What is {a} rounded to the nearest {u}?
            Give {a} to the nearest {u}.""",
            """
            {a} rounds to {answer}.
            Rounded to the nearest {u}, it is {answer}.""",
        ),
        wording(
            """
            把{a}四舍五入到最近的{u}的倍数。
            {a}四舍五入到{u}的整数倍是多少？""",
            """
            结果是{answer}。
            约为{answer}。""",
        ),
        weight=0.6,
    ),
)
