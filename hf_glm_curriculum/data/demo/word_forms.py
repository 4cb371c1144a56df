"""Word forms and corrections: plurals, past tense, acronyms, agreement, articles, measure words."""

from collections.abc import Callable
from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Task,
    exact_check,
    wording,
)
from hf_glm_curriculum.data.demo.lexicon import article, things
from hf_glm_curriculum.data.demo.sentences import TIMES
from hf_glm_curriculum.data.demo.word_problems import NAMES

_IRREGULAR_PLURALS = """
child children|mouse mice|foot feet|tooth teeth|goose geese|man men
woman women|ox oxen|leaf leaves|wolf wolves|knife knives|shelf shelves
loaf loaves|half halves|city cities|baby babies|story stories|party parties
box boxes|bus buses|glass glasses|dish dishes|church churches|hero heroes
potato potatoes|person people|cactus cacti|wife wives|library libraries
country countries|watch watches|fox foxes|lady ladies|berry berries|class classes
brush brushes|tomato tomatoes|calf calves|thief thieves|day days|key keys
toy toys|photo photos
"""
_PAST = """
go went|eat ate|see saw|take took|write wrote|run ran
buy bought|bring brought|think thought|drink drank|swim swam|sing sang
give gave|know knew|fly flew|grow grew|speak spoke|break broke
choose chose|drive drove|teach taught|catch caught|find found|keep kept
leave left|sleep slept|feel felt|meet met|tell told|sell sold
stand stood|win won|walk walked|play played|study studied|stop stopped
carry carried|plan planned|cry cried|hope hoped|make made|say said
come came|hold held
"""
_ACRONYMS = """World Health Organization|Random Access Memory|Frequently Asked Questions
Central Processing Unit|Global Positioning System|Artificial Intelligence|Local Area Network
Portable Document Format|Personal Identification Number|Automated Teller Machine
European Union|United Nations|Estimated Time of Arrival|As Soon As Possible|To Be Announced
Graphics Processing Unit|Application Programming Interface|Very Important Person
Do It Yourself|Gross Domestic Product|Chief Executive Officer|Human Resources|Light Emitting Diode
Closed Circuit Television|International Monetary Fund|National Basketball Association
Non Governmental Organization|Universal Serial Bus|World Wide Web|Liquid Crystal Display"""
_SMALL_WORDS = {"of"}


_SAY_EN = """
    {answer}
    Here it is: {answer}
    The result is: {answer}"""
_SAY_ZH = """
    {answer}
    结果是：{answer}
    答案：{answer}"""

_SIMPLE_PAST = (
    ("drinks tea", "drank tea"),
    ("writes letters", "wrote letters"),
    ("buys bread", "bought bread"),
    ("takes the bus", "took the bus"),
    ("sings a song", "sang a song"),
    ("goes to school", "went to school"),
    ("eats an apple", "ate an apple"),
    ("runs in the park", "ran in the park"),
    ("sees a film", "saw a film"),
    ("teaches maths", "taught maths"),
    ("sleeps well", "slept well"),
    ("makes soup", "made soup"),
    ("drives a truck", "drove a truck"),
    ("swims in the lake", "swam in the lake"),
    ("plays chess", "played chess"),
    ("carries a bag", "carried a bag"),
)


def _rows(text: str) -> list[str]:
    return text.strip().replace("\n", "|").split("|")


def _plural(rng: Random, level: str) -> Draw:
    table = [row.split() for row in _rows(_IRREGULAR_PLURALS)]
    table += [[one, many] for one, many, _, _ in things() if one != many]
    one, many = rng.choice(table)
    wrong = one + "s" if many != one + "s" else one + "es"
    return Draw(
        {"w": one}, many, wrong, exact_check(many), "easy" if many == one + "s" else "medium"
    )


def _past(rng: Random, level: str) -> Draw:
    verb, past = rng.choice(_rows(_PAST)).split()
    wrong = verb + "ed" if past != verb + "ed" else verb + "s"
    return Draw({"w": verb}, past, wrong, exact_check(past), "medium")


def _acronym(rng: Random, level: str) -> Draw:
    phrase = rng.choice(_rows(_ACRONYMS))
    answer = "".join(w[0] for w in phrase.split() if w not in _SMALL_WORDS).upper()
    wrong = answer[:-1] + chr((ord(answer[-1]) - 64) % 26 + 65)
    return Draw({"x": phrase}, answer, wrong, exact_check(answer), "medium")


def _agreement(rng: Random, level: str) -> Draw:
    one, many, _, _ = rng.choice([t for t in things() if t[0] != t[1]])
    place = rng.choice(("on the table", "in the box", "near the door", "in the garden", "upstairs"))
    plural = rng.random() < 0.5
    subject = f"The {many if plural else one}"
    right, bad = ("are", "is") if plural else ("is", "are")
    if rng.random() < 0.4:
        right, bad = ("were", "was") if plural else ("was", "were")
    answer = f"{subject} {right} {place}."
    wrong = f"{subject} {right} be {place}."
    return Draw({"x": f"{subject} {bad} {place}."}, answer, wrong, exact_check(answer), "medium")


def _article(rng: Random, level: str) -> Draw:
    one, _, _, _ = rng.choice(things())
    owner = rng.choice(NAMES)[0]
    verb = rng.choice(("has", "wants", "bought", "found", "drew", "needs"))
    right = article(one)
    bad = "a" if right == "an" else "an"
    answer = f"{owner} {verb} {right} {one}."
    return Draw(
        {"x": f"{owner} {verb} {bad} {one}."},
        answer,
        f"{owner} {verb} the {one}s.",
        exact_check(answer),
        "easy",
    )


def _measure(rng: Random, level: str) -> Draw:
    _, _, noun, measure = rng.choice([t for t in things() if t[3] not in ("个",)])
    number = rng.choice("一两三四五六七八九")
    verb = rng.choice(("桌上有", "我买了", "他有", "那里有", "她画了", "我看见"))
    answer = f"{verb}{number}{measure}{noun}。"
    bad = rng.choice([m for m in "位片滴颗堂" if m != measure])
    text = f"{verb}{number}{bad}{noun}。"
    wrong = f"{verb}{number}{rng.choice([m for m in '口粒' if m != measure])}{noun}。"
    return Draw({"x": text, "n": noun}, answer, wrong, exact_check(answer), "medium")


def _change_tense(rng: Random, level: str) -> Draw:
    name, other = rng.sample(NAMES, 2)
    here, there = rng.choice(_SIMPLE_PAST)
    time = rng.choice(TIMES)[0]
    answer = f"{name[0]} {there} {time}."
    wrong = f"{other[0]} {there} {time}."
    text = f"{name[0]} {here} {time}."
    return Draw({"x": text}, answer, wrong, exact_check(answer), "medium")


def _text_task(
    name: str, draw: Callable[[Random, str], Draw], en: str, zh: str, weight: float = 1.0
) -> Task:
    """Build a task whose answer is a text given back letter for letter."""
    english, chinese = wording(en, _SAY_EN), wording(zh, _SAY_ZH)
    return Task(name, "editing", draw, english, chinese, verbatim=True, weight=weight)


TASKS = (
    Task(
        "plural",
        "editing",
        _plural,
        wording(
            """
            What is the plural of "{w}"?
            Give the plural form of "{w}".
            Write "{w}" in the plural.
            One {w}, two ...?""",
            """
            The plural of "{w}" is "{answer}".
            It is "{answer}".""",
        ),
        wording(
            """
            英文单词{w}的复数是什么？
            写出{w}的复数形式。""",
            """
            {w}的复数是{answer}。
            复数形式是{answer}。""",
        ),
        weight=0.6,
    ),
    Task(
        "past_tense",
        "editing",
        _past,
        wording(
            """
            What is the past tense of "{w}"?
            Give the simple past of "{w}".
            Put the verb "{w}" into the past tense.""",
            """
            The past tense of "{w}" is "{answer}".
            It is "{answer}".""",
        ),
        wording(
            """
            英文动词{w}的过去式是什么？
            写出{w}的过去式。""",
            """
            {w}的过去式是{answer}。
            过去式是{answer}。""",
        ),
        weight=0.6,
    ),
    Task(
        "acronym",
        "editing",
        _acronym,
        wording(
            """
            What is the acronym for "{x}"?
            Abbreviate "{x}" to its initials.
            Which letters stand for "{x}"?""",
            """
            The acronym is {answer}.
            "{x}" is shortened to {answer}.""",
        ),
        wording(
            """
            {x}的缩写是什么？
            写出{x}的首字母缩写。""",
            """
            缩写是{answer}。
            {x}缩写为{answer}。""",
        ),
        weight=0.5,
    ),
    _text_task(
        "fix_agreement",
        _agreement,
        """
        Correct the grammar: {x}
        Fix this sentence: {x}
        Find and correct the mistake: {x}""",
        """
        改正这句英文的语法错误：{x}
        请修改这个英文句子：{x}""",
    ),
    _text_task(
        "fix_article",
        _article,
        """
        Correct the article: {x}
        Fix the small mistake in this sentence: {x}
        Proofread: {x}""",
        """
        改正这句英文里的冠词：{x}
        请校对这个英文句子：{x}""",
    ),
    Task(
        "fix_measure_word",
        "editing",
        _measure,
        None,
        wording(
            """
            改正量词的错误：{x}
            下面的句子量词用错了，请修改：{x}
            请把句子里的量词改对：{x}""",
            _SAY_ZH,
        ),
        verbatim=True,
    ),
    _text_task(
        "change_tense",
        _change_tense,
        """
        Put this into the past tense: {x}
        Rewrite in the simple past: {x}
        Change the verb to the past: {x}""",
        """
        把这句英文改成过去时：{x}
        用一般过去时改写：{x}""",
    ),
)
