"""Wording of the reasoning tasks."""

from hf_glm_curriculum.data.demo import reasoning
from hf_glm_curriculum.data.demo.draft import Task, Wording, wording


def _task(name: str, en: Wording, zh: Wording, weight: float = 1.0) -> Task:
    return Task(name, "reasoning", getattr(reasoning, name), en, zh, weight=weight)


_VERDICT_ZH = """
    {answer}。"""

TASKS = (
    _task(
        "ordering",
        wording(
            """
            {facts} Who is the {which}?
            {facts} Which of them is the {which}?
            Read this: {facts} Name the {which} person.""",
            """
            {answer} is the {which}.
            The {which} is {answer}.""",
            """
            The order is {chain}. The answer is {answer}.""",
        ),
        wording(
            """
            {facts}谁{which}？
            {facts}他们当中{which}的是谁？""",
            """
            {answer}{which}。
            {which}的是{answer}。""",
            """
            顺序是{chain}。答案是{answer}。""",
        ),
        2.0,
    ),
    _task(
        "syllogism",
        wording(
            """
            {facts} Does it follow that {claim}?
            {facts} Is it certain that {claim}?
            {name} says: {facts} Must it be true that {claim}?""",
            """
            {answer}, {follows}.
            {answer}.""",
        ),
        wording(
            """
            {facts}能推出“{claim}”吗？
            {name}说：{facts}由此能断定“{claim}”吗？""",
            """
            {answer}，{follows}。
            {answer}。""",
        ),
    ),
    _task(
        "conditional",
        wording(
            """
            {rule} Now {given}. Can we be sure that {asked}?
            {rule} We know that {given}. Does it follow that {asked}?""",
            """
            {answer}.
            {answer}, {why}.""",
        ),
        wording(
            """
            {rule}现在{given}。能肯定{asked}吗？
            已知：{rule}又知道{given}。能推出{asked}吗？""",
            """
            {answer}，{why}。
            {answer}。""",
        ),
    ),
    _task(
        "membership",
        wording(
            """
            Box A holds: {left}. Box B holds: {right}. Is {the_item} in {where}?
            A = {{{left}}}, B = {{{right}}}. Is {the_item} in {where}?""",
            """
            {answer}, {the_item} {verb} in {where}.
            {answer}.""",
        ),
        wording(
            """
            A盒有{left}，B盒有{right}。{item}是在{where}吗？
            A盒：{left}；B盒：{right}。{item}在不在{where}？""",
            """
            {answer}，{item}{verb}{where}。
            {answer}。""",
        ),
    ),
    _task(
        "odd_one_out",
        wording(
            """
            Which word does not belong: {options}?
            Find the odd one out: {options}.
            One of these is different. Which? {options}""",
            """
            {answer} does not belong.
            The odd one out is {answer}.""",
            """
            The answer is {answer}. The others are {group}.""",
        ),
        wording(
            """
            下面哪个词不属于同一类：{options}？
            找出不同类的词：{options}。""",
            """
            {answer}不属于同一类。
            不同类的是{answer}。""",
            """
            答案是{answer}，其余都是{group}。""",
        ),
        1.5,
    ),
    _task(
        "queue",
        wording(
            """
            {name} is {front} from the front and {back} from the back. How many are in the queue?
            {name} is {front} from the left and {back} from the right. How many are in the row?""",
            """
            There are {answer} people.
            {answer} people are in the line.""",
            """
            {f} + {b} - 1 = {answer}, because {name} is counted twice.""",
        ),
        wording(
            """
            {name}从前数排第{front}，从后数排第{back}，队伍共有几人？
            一排人里，{name}从左数第{front}，从右数第{back}，一共多少人？""",
            """
            一共{answer}人。
            队伍有{answer}人。""",
            """
            {f} + {b} - 1 = {answer}，因为{name}被数了两次。""",
        ),
    ),
    _task(
        "direction",
        wording(
            """
            {name} faces {start}, {turns}. Which way does {name} face now?
            {name} looks {start} and {turns}. In which direction does {name} look?""",
            """
            {name} faces {answer}.
            Now it is {answer}.""",
        ),
        wording(
            """
            {name}面朝{start}，{turns}，现在面朝哪个方向？
            {name}一开始朝{start}，{turns}，最后朝哪边？""",
            """
            现在面朝{answer}。
            朝{answer}。""",
        ),
    ),
    _task(
        "swaps",
        wording(
            """
            {start}. {moves}. What does {who} have now?
            At first {start}. Then {moves}. Which thing does {who} hold?""",
            """
            {who} has the {answer}.
            Now {who} holds the {answer}.""",
        ),
        wording(
            """
            {start}。{moves}。现在{who}有什么？
            开始时{start}。之后{moves}。{who}手里是什么？""",
            """
            {who}有{answer}。
            现在是{answer}。""",
        ),
    ),
    _task(
        "liars",
        wording(
            """
            {facts} Does {who} tell the truth?
            {facts} Is {who} honest?""",
            """
            {answer}, {who} {does}.
            {answer}.""",
        ),
        wording(
            """
            {facts}{who}说的是真话吗？
            已知{facts}{who}是诚实的吗？""",
            """
            {answer}，{who}{does}。
            {answer}。""",
        ),
    ),
    _task(
        "boolean",
        wording(
            """
            Evaluate: {x}
            What is the value of {x}?
            Is this True or False: {x}""",
            """
            {answer}.
            The answer is {answer}.""",
        ),
        wording(
            """
            求逻辑表达式的值：{x}
            {x}的结果是真还是假？""",
            """
            {answer}。
            答案是{answer}。""",
        ),
        0.7,
    ),
    _task(
        "analogy",
        wording(
            """
            Complete the analogy: {a} is to {b} as {c} is to ...
            {a} : {b} = {c} : ?
            {a} goes with {b}. What goes with {c} in the same way?""",
            """
            {answer}.
            {c} goes with {answer}.""",
        ),
        wording(
            """
            {a}对{b}，正如{c}对什么？
            类比：{a}—{b}，{c}—？""",
            """
            是{answer}。
            {c}对{answer}。""",
        ),
    ),
    _task(
        "parity",
        wording(
            """
            Is {x} even?
            Without computing it, is {x} an even number?""",
            """
            {answer}, {x} is {kind}.
            {answer}.""",
        ),
        wording(
            """
            {x}是偶数吗？
            不计算结果，判断{x}是不是偶数。""",
            """
            {answer}，{x}是{kind}。
            {answer}。""",
        ),
        0.7,
    ),
    _task(
        "pigeonhole",
        wording(
            """
            A drawer has {k} socks in each of {n} colours. How many must you draw to get a pair?
            Balls come in {n} colours, {k} of each. How many must you take to get two alike?""",
            """
            You need {answer}.
            {answer} are enough.""",
            """
            With one of each colour you have {n}, so one more is needed: {answer}.""",
        ),
        wording(
            """
            抽屉里有{n}种颜色的袜子，每种{k}只，至少拿几只才能保证有一双同色？
            球有{n}种颜色，每种{k}个，至少取几个能保证两个同色？""",
            """
            至少是{answer}。
            答案是{answer}。""",
            """
            每种颜色各拿一只是{n}只，再多一只就够了，答案是{answer}。""",
        ),
        0.3,
    ),
)
