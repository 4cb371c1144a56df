"""Word problems: shopping, sharing, travel, work, saving, shapes; one to three steps."""

from collections.abc import Callable
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Phrase,
    Task,
    near_miss,
    number_check,
    wording,
)

NAMES = (
    ("Anna", "小安"), ("Ben", "小本"), ("Carla", "小丽"), ("David", "大卫"), ("Emma", "小美"),
    ("Felix", "小飞"), ("Grace", "小雅"), ("Henry", "小亨"), ("Ivy", "小薇"), ("Jack", "小杰"),
    ("Kate", "小凯"), ("Leo", "小乐"), ("Mia", "小米"), ("Noah", "小诺"), ("Olga", "小欧"),
    ("Paul", "小保"), ("Rosa", "小萝"), ("Sam", "小山"), ("Tina", "小婷"), ("Victor", "小维"),
)  # fmt: skip
# English plural, Chinese noun, Chinese measure word, usual price.
ITEMS = (
    ("apples", "苹果", "个", 2), ("pencils", "铅笔", "支", 3), ("books", "书", "本", 15),
    ("oranges", "橙子", "个", 3), ("notebooks", "笔记本", "本", 5), ("cups", "杯子", "个", 8),
    ("eggs", "鸡蛋", "个", 1), ("stamps", "邮票", "张", 2), ("balls", "球", "个", 12),
    ("cookies", "饼干", "块", 2), ("candles", "蜡烛", "支", 4), ("flowers", "花", "朵", 6),
    ("tickets", "票", "张", 20), ("chairs", "椅子", "把", 35), ("shirts", "衬衫", "件", 45),
    ("toy cars", "玩具车", "辆", 18), ("lemons", "柠檬", "个", 2), ("postcards", "明信片", "张", 3),
)  # fmt: skip
_SIZES = {"easy": (2, 9), "medium": (6, 30), "hard": (15, 90)}


def _story(rng: Random) -> dict[str, Phrase]:
    """Draw two people and a thing."""
    name, friend = rng.sample(NAMES, 2)
    plural, noun, measure, price = rng.choice(ITEMS)
    return {
        "name": name,
        "friend": friend,
        "items": (plural, noun),
        "unit": ("", measure),
        "price": price + rng.randint(0, 4),
    }


def _size(rng: Random, level: str) -> int:
    return rng.randint(*_SIZES[level])


def _solve(
    story: dict[str, Phrase], answer: int, rng: Random, level: str, wrong: int | None = None
) -> Draw:
    slip = near_miss(answer, rng) if wrong is None or wrong == answer else wrong
    return Draw(story, answer, slip, number_check(answer), level)


def _cost(rng: Random, level: str) -> Draw:
    story, n = _story(rng), _size(rng, level)
    price = int(str(story["price"]))
    return _solve(story | {"n": n}, n * price, rng, level, rng.choice((n + price, (n + 1) * price)))


def _gave(rng: Random, level: str) -> Draw:
    story, given, left = _story(rng), _size(rng, level), _size(rng, level)
    return _solve(story | {"n": given + left, "k": given}, left, rng, level)


def _share(rng: Random, level: str) -> Draw:
    story, each, friends = _story(rng), _size(rng, level), rng.randint(2, 9)
    return _solve(story | {"n": each * friends, "k": friends}, each, rng, level)


def _boxes(rng: Random, level: str) -> Draw:
    story, boxes, each, extra = _story(rng), rng.randint(2, 9), _size(rng, level), _size(rng, level)
    packed = boxes * each
    story |= {"n": boxes, "k": each, "m": extra, "p": packed}
    draw = _solve(story, packed + extra, rng, level)
    slip = packed + rng.choice((1, -1, 2, 10))
    return Draw(draw.fields, draw.answer, slip + extra, draw.check, level, {"p": slip})


def _change(rng: Random, level: str) -> Draw:
    story, n = _story(rng), rng.randint(2, 6)
    price = int(str(story["price"]))
    cost = n * price
    paid = next(bill for bill in (20, 50, 100, 200, 500) if bill > cost)
    story |= {"n": n, "paid": paid, "p": cost}
    slip = cost + rng.choice((price, -price, 1))
    check = number_check(paid - cost)
    return Draw(story, paid - cost, paid - slip, check, level, {"p": slip})


def _travel(rng: Random, level: str) -> Draw:
    speed = 5 * rng.randint(2, {"easy": 12, "medium": 20, "hard": 30}[level])
    hours = rng.randint(2, 9)
    story = _story(rng) | {"v": speed, "h": hours}
    return _solve(story, speed * hours, rng, level, speed * (hours + rng.choice((1, -1))))


def _saving(rng: Random, level: str) -> Draw:
    weekly, weeks, had = rng.randint(3, 25), rng.randint(3, 20), rng.randint(5, 60)
    saved = weekly * weeks
    story = _story(rng) | {"w": weekly, "n": weeks, "k": had, "p": saved}
    slip = saved + rng.choice((weekly, -weekly, 10))
    return Draw(story, saved + had, slip + had, number_check(saved + had), level, {"p": slip})


def _area(rng: Random, level: str) -> Draw:
    a, b = _size(rng, level), _size(rng, level)
    place = rng.choice((("garden", "花园"), ("room", "房间"), ("field", "田地"), ("wall", "墙面")))
    story: dict[str, Phrase] = {"a": a, "b": b, "place": place}
    return _solve(story, a * b, rng, level, rng.choice((2 * (a + b), a * (b + 1))))


def _perimeter(rng: Random, level: str) -> Draw:
    a, b = _size(rng, level), _size(rng, level)
    story: dict[str, Phrase] = {"a": a, "b": b, "s": a + b}
    return _solve(story, 2 * (a + b), rng, level, rng.choice((a + b, a * b)))


def _discount(rng: Random, level: str) -> Draw:
    share, price = rng.choice((10, 20, 25, 50)), 20 * rng.randint(1, 15)
    off = price * share // 100
    story = _story(rng) | {"d": share, "c": price, "p": off}
    story["z"] = f"{(100 - share) / 10:g}"
    slip = off + rng.choice((1, 2, 10)) if off != price // 2 else off - 1
    return Draw(story, price - off, price - slip, number_check(price - off), level, {"p": slip})


def _difference(rng: Random, level: str) -> Draw:
    story, few, more = _story(rng), _size(rng, level), _size(rng, level)
    total = few + few + more
    story |= {"n": few, "k": more, "p": few + more}
    slip = few + more + rng.choice((1, -1, 2))
    return Draw(story, total, few + slip, number_check(total), level, {"p": slip})


def _task(
    name: str,
    draw: Callable[[Random, str], Draw],
    en: tuple[str, str, str],
    zh: tuple[str, str, str],
) -> Task:
    return Task(name, "word_problem", draw, wording(*en), wording(*zh))


TASKS = (
    _task(
        "cost",
        _cost,
        (
            """
            {name} buys {n} {items} at ${price} each. How much does {name} pay?
            One of the {items} costs ${price}. What do {n} {items} cost?
            {items} are ${price} apiece. {name} takes {n}. What is the total in dollars?""",
            """
            {name} pays ${answer}.
            The total is ${answer}.""",
            """
            {n} × {price} = {answer}, so the price is ${answer}.""",
        ),
        (
            """
            {name}买了{n}{unit}{items}，每{unit}{price}元，一共多少钱？
            一{unit}{items}{price}元，买{n}{unit}要付多少元？""",
            """
            一共{answer}元。
            要付{answer}元。""",
            """
            {n} × {price} = {answer}，所以一共{answer}元。""",
        ),
    ),
    _task(
        "gave",
        _gave,
        (
            """
            {name} has {n} {items} and gives {k} to {friend}. How many are left?
            There were {n} {items}. {friend} took {k}. How many remain?
            {name} had {n} {items} and lost {k}. How many does {name} have now?""",
            """
            {answer} {items} are left.
            {name} has {answer} {items} now.""",
            """
            {n} - {k} = {answer}, so {answer} {items} are left.""",
        ),
        (
            """
            {name}有{n}{unit}{items}，给了{friend}{k}{unit}，还剩多少{unit}？
            原来有{n}{unit}{items}，用掉{k}{unit}，还剩几{unit}？""",
            """
            还剩{answer}{unit}。
            {name}还有{answer}{unit}{items}。""",
            """
            {n} - {k} = {answer}，所以还剩{answer}{unit}。""",
        ),
    ),
    _task(
        "share",
        _share,
        (
            """
            {name} shares {n} {items} equally among {k} friends. How many does each get?
            {n} {items} are split evenly between {k} people. How many per person?
            {k} children divide {n} {items} equally. What is the share of one child?""",
            """
            Each gets {answer} {items}.
            Everyone gets {answer}.""",
            """
            {n} ÷ {k} = {answer}, so each gets {answer} {items}.""",
        ),
        (
            """
            {name}把{n}{unit}{items}平均分给{k}个朋友，每人几{unit}？
            {n}{unit}{items}由{k}个人平分，每人分到多少{unit}？""",
            """
            每人{answer}{unit}。
            每个人分到{answer}{unit}{items}。""",
            """
            {n} ÷ {k} = {answer}，所以每人{answer}{unit}。""",
        ),
    ),
    _task(
        "boxes",
        _boxes,
        (
            """
            {name} has {n} boxes with {k} {items} each and {m} more. How many {items} in all?
            There are {n} bags of {k} {items}, plus {m} loose ones. How many {items} is that?
            {n} shelves hold {k} {items} each; {m} lie on the table. How many {items} in total?""",
            """
            There are {answer} {items} in all.
            That is {answer} {items}.""",
            """
            {n} × {k} = {p}, and {p} + {m} = {answer} {items}.
            The boxes hold {n} × {k} = {p}. With {m} more: {p} + {m} = {answer}.""",
        ),
        (
            """
            {name}有{n}盒{items}，每盒{k}{unit}，另外还有{m}{unit}，一共多少{unit}？
            {n}袋{items}，每袋{k}{unit}，再加{m}{unit}，总共几{unit}？""",
            """
            一共{answer}{unit}。
            总共有{answer}{unit}{items}。""",
            """
            {n} × {k} = {p}，{p} + {m} = {answer}，一共{answer}{unit}。""",
        ),
    ),
    _task(
        "change",
        _change,
        (
            """
            {name} buys {n} {items} at ${price} each and pays with ${paid}. How much change is due?
            {n} {items} cost ${price} apiece. What is the change from ${paid}?""",
            """
            The change is ${answer}.
            {name} gets ${answer} back.""",
            """
            {n} × {price} = {p}, and {paid} - {p} = {answer}. The change is ${answer}.""",
        ),
        (
            """
            {name}买{n}{unit}{items}，每{unit}{price}元，付了{paid}元，应找回多少元？
            {items}每{unit}{price}元，买{n}{unit}，付{paid}元，找多少钱？""",
            """
            应找回{answer}元。
            找{answer}元。""",
            """
            {n} × {price} = {p}，{paid} - {p} = {answer}，应找回{answer}元。""",
        ),
    ),
    _task(
        "travel",
        _travel,
        (
            """
            {name} drives at {v} km per hour for {h} hours. How far is that?
            A train goes {v} km an hour. How many kilometres does it cover in {h} hours?
            How far does {name} get in {h} hours at {v} km/h?""",
            """
            {name} covers {answer} km.
            The distance is {answer} km.""",
            """
            {v} × {h} = {answer}, so the distance is {answer} km.""",
        ),
        (
            """
            {name}开车每小时行{v}千米，{h}小时行多少千米？
            火车每小时走{v}千米，{h}小时能走多远？""",
            """
            一共{answer}千米。
            能走{answer}千米。""",
            """
            {v} × {h} = {answer}，所以是{answer}千米。""",
        ),
    ),
    _task(
        "saving",
        _saving,
        (
            """
            {name} has ${k} and saves ${w} a week. How much is it after {n} weeks?
            Starting with ${k}, {name} puts aside ${w} a week. What is there after {n} weeks?""",
            """
            After {n} weeks {name} has ${answer}.
            It is ${answer}.""",
            """
            {w} × {n} = {p}, and {p} + {k} = {answer}. {name} has ${answer}.""",
        ),
        (
            """
            {name}有{k}元，每周存{w}元，{n}周后有多少元？
            {name}原有{k}元，每星期再存{w}元，{n}个星期后一共多少元？""",
            """
            {n}周后有{answer}元。
            一共{answer}元。""",
            """
            {w} × {n} = {p}，{p} + {k} = {answer}，一共{answer}元。""",
        ),
    ),
    _task(
        "area",
        _area,
        (
            """
            A {place} is {a} m long and {b} m wide. What is its area in square metres?
            Find the area of a {place} measuring {a} m by {b} m.""",
            """
            The area is {answer} square metres.
            It is {answer} square metres.""",
            """
            {a} × {b} = {answer}, so the area is {answer} square metres.""",
        ),
        (
            """
            {place}长{a}米，宽{b}米，面积是多少平方米？
            一块长{a}米、宽{b}米的长方形{place}，面积多大？""",
            """
            面积是{answer}平方米。
            是{answer}平方米。""",
            """
            {a} × {b} = {answer}，面积是{answer}平方米。""",
        ),
    ),
    _task(
        "perimeter",
        _perimeter,
        (
            """
            A rectangle is {a} cm by {b} cm. What is its perimeter?
            Find the perimeter of a rectangle with sides {a} cm and {b} cm.""",
            """
            The perimeter is {answer} cm.
            It is {answer} cm.""",
            """
            {a} + {b} = {s}, and 2 × {s} = {answer}, so the perimeter is {answer} cm.""",
        ),
        (
            """
            长方形长{a}厘米，宽{b}厘米，周长是多少？
            求边长为{a}厘米和{b}厘米的长方形的周长。""",
            """
            周长是{answer}厘米。
            是{answer}厘米。""",
            """
            ({a} + {b}) × 2 = {answer}，周长是{answer}厘米。""",
        ),
    ),
    _task(
        "discount",
        _discount,
        (
            """
            A coat costs ${c}. With {d}% off, what does {name} pay?
            The price is ${c} and the discount is {d}%. What is the new price?
            {name} gets {d}% off a ${c} order. How much is left to pay?""",
            """
            The new price is ${answer}.
            {name} pays ${answer}.""",
            """
            {d}% of {c} is {p}, and {c} - {p} = {answer}. The price is ${answer}.""",
        ),
        (
            """
            一件外套{c}元，打{z}折后多少元？
            原价{c}元，便宜{d}%，{name}要付多少元？""",
            """
            要付{answer}元。
            打折后是{answer}元。""",
            """
            优惠{p}元，{c} - {p} = {answer}，要付{answer}元。""",
        ),
    ),
    _task(
        "difference",
        _difference,
        (
            """
            {name} has {n} {items}. {friend} has {k} more than {name}. How many do both have?
            {friend} owns {k} more {items} than {name}, who owns {n}. How many together?""",
            """
            Together they have {answer} {items}.
            They have {answer} in total.""",
            """
            {friend} has {n} + {k} = {p}, and {n} + {p} = {answer} in total.""",
        ),
        (
            """
            {name}有{n}{unit}{items}，{friend}比{name}多{k}{unit}，两人一共多少{unit}？
            {friend}的{items}比{name}多{k}{unit}，{name}有{n}{unit}，两人共有几{unit}？""",
            """
            两人一共有{answer}{unit}。
            共{answer}{unit}{items}。""",
            """
            {friend}有{n} + {k} = {p}，{n} + {p} = {answer}，一共{answer}{unit}。""",
        ),
    ),
)
