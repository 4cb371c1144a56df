"""Short reasoning: orderings, syllogisms, conditionals, sets, queues, directions, swaps, lies."""

from itertools import pairwise
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Pair,
    Phrase,
    choice_check,
    near_miss,
    number_check,
    overlaps,
    phrase_check,
)
from hf_glm_curriculum.data.demo.facts import young
from hf_glm_curriculum.data.demo.lexicon import article, clear_opposites, groups, plural_of
from hf_glm_curriculum.data.demo.word_problems import NAMES

YES, NO = ("Yes", "是的"), ("No", "不是")
CAN, CANNOT = ("Yes", "能"), ("No", "不能")
_SCALES = (
    (("taller", "高"), ("tallest", "最高"), ("shortest", "最矮")),
    (("older", "年纪大"), ("oldest", "年纪最大"), ("youngest", "年纪最小")),
    (("faster", "跑得快"), ("fastest", "跑得最快"), ("slowest", "跑得最慢")),
    (("stronger", "力气大"), ("strongest", "力气最大"), ("weakest", "力气最小")),
    (("richer", "富有"), ("richest", "最富有"), ("poorest", "最不富有")),
    (("heavier", "重"), ("heaviest", "最重"), ("lightest", "最轻")),
)
_KINDS = (
    (("roses", "玫瑰"), ("flowers", "花"), ("plants", "植物")),
    (("sparrows", "麻雀"), ("birds", "鸟"), ("animals", "动物")),
    (("dogs", "狗"), ("mammals", "哺乳动物"), ("animals", "动物")),
    (("oaks", "橡树"), ("trees", "树"), ("plants", "植物")),
    (("squares", "正方形"), ("rectangles", "长方形"), ("quadrilaterals", "四边形")),
    (("violins", "小提琴"), ("instruments", "乐器"), ("objects", "物品")),
    (("blips", "布里"), ("zorks", "佐克"), ("mulls", "穆尔")),
    (("dazes", "达泽"), ("lumps", "伦普"), ("tirks", "提克")),
    (("fanes", "法恩"), ("gribs", "格里"), ("wexes", "韦克斯")),
    (("poets", "诗人"), ("writers", "作家"), ("artists", "艺术家")),
)
# A cause, its effect and what holds without the effect; {n} is a name.
_EVENTS_TABLE = """
it rains|下雨|the street gets wet|街道会湿|the street is dry|街道是干的
the alarm rings|闹钟响|{n} wakes up|{n}会醒|{n} is asleep|{n}还睡着
the lamp is on|灯亮着|the room is bright|房间会明亮|the room is dark|房间很暗
the shop is open|商店开门|the sign is lit|招牌会亮|the sign is off|招牌没亮
the kettle boils|水烧开|the kettle whistles|水壶会响|the kettle makes no sound|水壶没有响
{n} is late|{n}迟到|{n} takes a taxi|{n}会打车|{n} takes no taxi|{n}没有打车
the battery is empty|电池没电|the toy stops|玩具会停|the toy runs|玩具在动
it is Sunday|今天是星期天|{n} bakes bread|{n}会烤面包|{n} bakes no bread|{n}没有烤面包
the gate is open|大门开着|the dog runs out|狗会跑出去|the dog is inside|狗在里面
the oven is hot|烤箱热了|the light turns green|指示灯会变绿|the light is red|指示灯是红的
{n} studies|{n}用功学习|{n} passes the test|{n}会通过测验|{n} fails the test|{n}没有通过测验
the bell rings|铃响|the lesson ends|课会结束|the lesson goes on|课还在继续
"""
_TURNS = ("north", "east", "south", "west")
_TURNS_ZH = "北东南西"
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
             "tenth", "eleventh", "twelfth")  # fmt: skip


def people(rng: Random, count: int) -> list[Pair]:
    """Draw different people."""
    return rng.sample(NAMES, count)


def verdict(
    true: bool,
    level: str,
    fields: dict[str, Phrase],
    spoiled: dict[str, Phrase],
    words: tuple[Pair, Pair] = (YES, NO),
) -> Draw:
    """Build a yes-or-no example."""
    answer, wrong = words if true else words[::-1]
    return Draw(fields, answer, wrong, {"kind": "yes_no", "value": true}, level, spoiled)


def ordering(rng: Random, level: str) -> Draw:
    """Who is the tallest (or shortest) of a chain of comparisons."""
    line = people(rng, {"easy": 3, "medium": 4, "hard": 5}[level])
    (more, more_zh), most, least = rng.choice(_SCALES)
    steps = list(pairwise(line))
    told = steps if level == "easy" else rng.sample(steps, len(steps))
    english = " ".join(f"{a[0]} is {more} than {b[0]}." for a, b in told)
    chinese = "，".join(f"{a[1]}比{b[1]}{more_zh}" for a, b in told) + "。"
    top = rng.random() < 0.5
    answer, wrong = (line[0], line[-1]) if top else (line[-1], line[0])
    chain = (" > ".join(p[0] for p in line), " > ".join(p[1] for p in line))
    fields: dict[str, Phrase] = {
        "facts": (english, chinese),
        "which": most if top else least,
        "chain": chain,
    }
    check = choice_check(answer, tuple(line))
    if len(line) == 3 and rng.random() < 0.3:
        wrong = line[1]
    return Draw(fields, answer, wrong, check, level)


def syllogism(rng: Random, level: str) -> Draw:
    """Does it follow? Valid chains and the common mistakes."""
    low, mid, top = rng.choice(_KINDS)
    form = rng.randrange(4)
    kinds = {"a": low, "b": mid, "c": top}
    name = rng.choice(NAMES)
    if form == 0:
        facts, claim, true = "All {a} are {b}. All {b} are {c}.", "all {a} are {c}", True
        facts_zh, claim_zh = "所有{a}都是{b}，所有{b}都是{c}。", "所有{a}都是{c}"
    elif form == 1:
        facts, claim, true = "All {a} are {b}. All {a} are {c}.", "all {b} are {c}", False
        facts_zh, claim_zh = "所有{a}都是{b}，所有{a}都是{c}。", "所有{b}都是{c}"
    elif form == 2:
        facts, claim, true = "No {a} are {c}. All {b} are {c}.", "no {a} are {b}", True
        facts_zh, claim_zh = "没有{a}是{c}，所有{b}都是{c}。", "没有{a}是{b}"
        # Sound only as a puzzle, so with made-up kinds.
        kinds = dict(zip("abc", rng.choice(_KINDS[6:9]), strict=True))
    else:
        facts, claim, true = "All {a} are {b}. Some {b} are {c}.", "some {a} are {c}", False
        facts_zh, claim_zh = "所有{a}都是{b}，有些{b}是{c}。", "有些{a}是{c}"
        kinds = dict(zip("abc", rng.choice(_KINDS[6:9]), strict=True))

    def both(english: str, chinese: str) -> Pair:
        return (
            english.format(**{k: v[0] for k, v in kinds.items()}),
            chinese.format(**{k: v[1] for k, v in kinds.items()}),
        )

    fields: dict[str, Phrase] = {
        "facts": both(facts, facts_zh),
        "claim": both(claim, claim_zh),
        "name": name,
        "follows": _follows(true),
    }
    return verdict(true, level, fields, {"follows": _follows(not true)}, (CAN, CANNOT))


def _follows(true: bool) -> Pair:
    if true:
        return "it follows from the statements", "由前提可以推出"
    return "it does not follow from the statements", "由前提推不出来"


def conditional(rng: Random, level: str) -> Draw:
    """Modus ponens, modus tollens and the two fallacies beside them."""
    name = rng.choice(NAMES)
    parts = rng.choice(_EVENTS_TABLE.strip().splitlines()).split("|")
    event = [
        (english.format(n=name[0]), chinese.format(n=name[1]))
        for english, chinese in zip(parts[::2], parts[1::2], strict=True)
    ]
    cause, effect, denied = event
    form = rng.randrange(3)
    rule = (f"If {cause[0]}, {effect[0]}.", f"如果{cause[1]}，{effect[1]}。")
    no_cause = ("it is not the case that " + cause[0], "并非" + cause[1])
    given, asked, true = (
        (cause, effect, True),
        (denied, no_cause, True),
        (effect, cause, False),
    )[form]
    fields: dict[str, Phrase] = {
        "rule": rule,
        "given": given,
        "asked": (asked[0], asked[1].replace("会", "")),
        "why": _why(form, true),
    }
    return verdict(true, level, fields, {"why": _why(form, not true)}, (CAN, CANNOT))


def _why(form: int, true: bool) -> Pair:
    if not true:
        return "there may be another reason", "也可能有别的原因"
    if form == 1:
        return "otherwise the effect would have occurred", "否则结果就会出现"
    return "the rule applies directly", "直接符合规则"


def membership(rng: Random, level: str) -> Draw:
    """Is a word in both, either or none of two boxes?"""
    pool = [word for members in groups().values() for word in members]
    words = rng.sample(pool, 6 if level == "easy" else 8)
    half = len(words) // 2
    left, right = words[:half], words[half:]
    if level == "hard":
        right = [*right[:-1], rng.choice(left)]
    item = rng.choice(words)
    box = rng.choice(("A", "B", "both", "neither")) if level == "hard" else rng.choice("AB")
    in_left, in_right = item in left, item in right
    true = {
        "A": in_left,
        "B": in_right,
        "both": in_left and in_right,
        "neither": not (in_left or in_right),
    }[box]
    where = {
        "A": ("box A", "A盒里"),
        "B": ("box B", "B盒里"),
        "both": ("both boxes", "两个盒子里"),
        "neither": ("neither box", "两个盒子之外"),
    }[box]
    fields: dict[str, Phrase] = {
        "left": _list(left),
        "right": _list(right),
        "item": item,
        "the_item": (f"the {item[0]}", item[1]),
        "where": where,
        "verb": _is(true),
    }
    return verdict(true, level, fields, {"verb": _is(not true)})


def _is(true: bool) -> Pair:
    return ("is", "在") if true else ("is not", "不在")


def _list(words: list[Pair]) -> Pair:
    return ", ".join(w[0] for w in words), "、".join(w[1] for w in words)


def odd_one_out(rng: Random, level: str) -> Draw:
    """Which word does not belong to the group of the others?"""
    home, away = rng.sample(list(groups()), 2)
    if {home[0], away[0]} == {"animal", "bird"}:  # a bird is an animal
        away = ("tool", "工具")
    insiders = rng.sample(groups()[home], {"easy": 3, "medium": 4, "hard": 5}[level])
    odd = rng.choice(groups()[away])
    options = [*insiders, odd]
    rng.shuffle(options)
    fields: dict[str, Phrase] = {
        "options": _list(options),
        "group": (plural_of(home[0]), home[1]),
    }
    check = choice_check(odd, tuple(options))
    return Draw(fields, odd, insiders[0], check, level)


def queue(rng: Random, level: str) -> Draw:
    """How many stand in a queue, or how many stand between two people."""
    front, back = rng.randint(2, 12), rng.randint(2, 12)
    total = front + back - 1
    fields: dict[str, Phrase] = {
        "name": rng.choice(NAMES),
        "front": (_ORDINALS[front - 1], str(front)),
        "back": (_ORDINALS[back - 1], str(back)),
        "f": front,
        "b": back,
    }
    return Draw(fields, total, front + back, number_check(total), "medium")


def direction(rng: Random, level: str) -> Draw:
    """Which way does somebody face after some turns?"""
    start = rng.randrange(4)
    turns = [rng.choice((1, -1, 2)) for _ in range({"easy": 1, "medium": 2, "hard": 4}[level])]
    end = (start + sum(turns)) % 4
    wrong = (end + rng.choice((1, 2, 3))) % 4
    english = {1: "turns right", -1: "turns left", 2: "turns around"}
    chinese = {1: "向右转", -1: "向左转", 2: "向后转"}
    fields: dict[str, Phrase] = {
        "name": rng.choice(NAMES),
        "start": (_TURNS[start], _TURNS_ZH[start]),
        "turns": (
            ", then ".join(english[t] for t in turns),
            "，再".join(chinese[t] for t in turns),
        ),
    }
    answer, bad = (_TURNS[end], _TURNS_ZH[end]), (_TURNS[wrong], _TURNS_ZH[wrong])
    return Draw(fields, answer, bad, phrase_check(answer, none_of=bad), level)


def swaps(rng: Random, level: str) -> Draw:
    """Who holds a thing after some swaps?"""
    holders = people(rng, 3)
    pool = [
        w for name in ("fruit", "tool") for k, ws in groups().items() if k[0] == name for w in ws
    ]
    objects = rng.sample(pool, 3)
    owns = dict(zip(holders, objects, strict=True))
    english = ", ".join(f"{h[0]} has {article(o[0])} {o[0]}" for h, o in owns.items())
    chinese = "，".join(f"{h[1]}有{o[1]}" for h, o in owns.items())
    moves_en, moves_zh = [], []
    for _ in range({"easy": 1, "medium": 2, "hard": 3}[level]):
        a, b = rng.sample(holders, 2)
        owns[a], owns[b] = owns[b], owns[a]
        moves_en.append(f"{a[0]} and {b[0]} swap")
        moves_zh.append(f"{a[1]}和{b[1]}交换")
    who = rng.choice(holders)
    wrong = rng.choice([o for h, o in owns.items() if h != who])
    fields: dict[str, Phrase] = {
        "start": (english, chinese),
        "moves": (", then ".join(moves_en), "，然后".join(moves_zh)),
        "who": who,
    }
    return Draw(fields, owns[who], wrong, phrase_check(owns[who], none_of=wrong), level)


def liars(rng: Random, level: str) -> Draw:
    """Does the last of a chain of people tell the truth?"""
    chain = people(rng, {"easy": 2, "medium": 3, "hard": 4}[level])
    honest = rng.random() < 0.5
    facts = [f"{chain[0][0]} {'tells the truth' if honest else 'lies'}."]
    facts_zh = [f"{chain[0][1]}{'说真话' if honest else '说谎'}"]
    for before, speaker in pairwise(chain):
        says_honest = rng.random() < 0.5
        facts.append(
            f"{speaker[0]} says {before[0]} {'tells the truth' if says_honest else 'lies'}."
        )
        facts_zh.append(f"{speaker[1]}说{before[1]}{'说真话' if says_honest else '说谎'}")
        honest = says_honest is honest
    fields: dict[str, Phrase] = {
        "facts": (" ".join(facts), "，".join(facts_zh) + "。"),
        "who": chain[-1],
        "does": _honest(honest),
    }
    return verdict(honest, level, fields, {"does": _honest(not honest)})


def _honest(true: bool) -> Pair:
    return ("tells the truth", "说的是真话") if true else ("lies", "说的是谎话")


def boolean(rng: Random, level: str) -> Draw:
    """Evaluate an expression of True, False, and, or, not."""
    text, true = _expression(rng, {"easy": 1, "medium": 2, "hard": 3}[level])
    answer, wrong = (("True", "真"), ("False", "假")) if true else (("False", "假"), ("True", "真"))
    return Draw({"x": text}, answer, wrong, {"kind": "yes_no", "value": true}, level)


def _expression(rng: Random, depth: int) -> tuple[str, bool]:
    """Build an expression of some depth together with its value."""
    if depth == 0:
        value, negated = rng.random() < 0.5, rng.random() < 0.5
        return f"{'not ' if negated else ''}{value}", value is not negated
    left, left_value = _expression(rng, depth - 1)
    right, right_value = _expression(rng, rng.randrange(depth))
    joint = rng.choice(("and", "or"))
    both = left_value and right_value if joint == "and" else left_value or right_value
    text = f"{left} {joint} {right}"
    return (text if depth == 1 else f"({text})"), both


def analogy(rng: Random, level: str) -> Draw:
    """Complete "a is to b as c is to ?" from opposites or animals and their young."""
    table = clear_opposites() if rng.random() < 0.6 else young()
    (a, b), (c, d) = rng.sample(table, 2)
    wrong = rng.choice([y for _, y in table if not overlaps(y, d)])
    return Draw({"a": a, "b": b, "c": c}, d, wrong, phrase_check(d), level)


def parity(rng: Random, level: str) -> Draw:
    """Is a sum or product even, told without computing it?"""
    high = {"easy": 20, "medium": 200, "hard": 5000}[level]
    a, b = rng.randint(2, high), rng.randint(2, high)
    times = rng.random() < 0.5
    true = (a * b if times else a + b) % 2 == 0
    fields: dict[str, Phrase] = {
        "x": f"{a} × {b}" if times else f"{a} + {b}",
        "kind": _parity(true),
    }
    return verdict(true, level, fields, {"kind": _parity(not true)})


def _parity(even: bool) -> Pair:
    return ("even", "偶数") if even else ("odd", "奇数")


def pigeonhole(rng: Random, level: str) -> Draw:
    """How many socks must be drawn in the dark to have a pair of one colour?"""
    colours = rng.randint(2, 9)
    each = rng.randint(3, 20)
    fields: dict[str, Phrase] = {"n": colours, "k": each}
    wrong = near_miss(colours + 1, rng)
    wrong = colours + 2 if wrong in (colours, each) else wrong
    return Draw(fields, colours + 1, wrong, number_check(colours + 1), "hard")
