"""Translation of composed sentences between English and Chinese."""

from random import Random

from hf_glm_curriculum.data.demo.draft import (
    Draw,
    Pair,
    Phrase,
    Task,
    overlaps,
    phrase_check,
    say,
    wording,
)
from hf_glm_curriculum.data.demo.lexicon import groups, things
from hf_glm_curriculum.data.demo.sentences import ACTIONS, PLACES, TIMES

_ENGLISH_NUMBERS = "two three four five six seven eight nine"
_NUMBERS = tuple(zip(_ENGLISH_NUMBERS.split(), "两三四五六七八九", strict=True))
_COLOURS = (
    ("red", "红色的"),
    ("blue", "蓝色的"),
    ("green", "绿色的"),
    ("white", "白色的"),
    ("black", "黑色的"),
)
_OWNERS = (
    ("I have", "我有"), ("You have", "你有"), ("We have", "我们有"), ("They have", "他们有"),
    ("She has", "她有"), ("He has", "他有"), ("I see", "我看见"), ("We need", "我们需要"),
    ("They want", "他们想要"), ("He bought", "他买了"), ("She found", "她找到了"),
)  # fmt: skip
_PERSONS = (
    ("She", "她"),
    ("He", "他"),
    ("My mother", "我妈妈"),
    ("My friend", "我的朋友"),
    ("The teacher", "老师"),
)


def _things(rng: Random, level: str) -> tuple[Pair, Pair]:
    """Compose "I have three red apples." and a version with one part changed."""
    owner, (number, number_zh) = rng.choice(_OWNERS), rng.choice(_NUMBERS)
    _, plural, noun, measure = rng.choice(things())
    colour = rng.choice(_COLOURS) if level != "easy" else ("", "")

    def sentence(count: str, count_zh: str, many: str, noun_zh: str, unit: str) -> Pair:
        english = " ".join(part for part in (owner[0], count, colour[0], many) if part)
        return f"{english}.", f"{owner[1]}{count_zh}{unit}{colour[1]}{noun_zh}。"

    right = sentence(number, number_zh, plural, noun, measure)
    if rng.random() < 0.5:
        other = rng.choice([n for n in _NUMBERS if n[0] != number])
        return right, sentence(other[0], other[1], plural, noun, measure)
    _, others, noun_b, unit = rng.choice([t for t in things() if t[1] != plural])
    return right, sentence(number, number_zh, others, noun_b, unit)


def _habit(rng: Random, level: str) -> tuple[Pair, Pair]:
    """Compose "She drinks tea at home every day." and a version with one part changed."""
    who, time = rng.choice(_PERSONS), rng.choice(TIMES)
    place = rng.choice(PLACES) if level == "hard" else ("", "")
    (action, action_zh), (other, other_zh) = rng.sample(ACTIONS, 2)

    def sentence(does: str, does_zh: str) -> Pair:
        english = " ".join(part for part in (who[0], does, place[0], time[0]) if part)
        return f"{english}.", f"{who[1]}{time[1]}{place[1]}{does_zh}。"

    return sentence(action, action_zh), sentence(other, other_zh)


def _translate(rng: Random, level: str, into: str) -> Draw:
    right, wrong = _things(rng, level) if rng.random() < 0.6 else _habit(rng, level)
    source, answer = (right[1], right[0]) if into == "en" else right
    bad = say(wrong, into)
    fields: dict[str, Phrase] = {"x": source}
    stem = answer.rstrip(".。")
    return Draw(fields, answer, bad, phrase_check(stem), level)


def _into_chinese(rng: Random, level: str) -> Draw:
    return _translate(rng, level, "zh")


def _into_english(rng: Random, level: str) -> Draw:
    return _translate(rng, level, "en")


def _word(rng: Random, level: str) -> Draw:
    members = rng.choice(list(groups().values()))
    english, chinese = rng.choice(members)
    wrong = rng.choice([word for _, word in members if not overlaps(word, chinese)])
    fields: dict[str, Phrase] = {"w": english}
    return Draw(fields, chinese, wrong, phrase_check(chinese), "easy")


_ANSWER = "{answer}"

# The answer's language is the point here, so no task has a twin in the other language.
TASKS = (
    Task(
        "to_chinese",
        "translation",
        _into_chinese,
        wording(
            """
            Translate into Chinese: {x}
            How do you say this in Chinese? {x}
            Give the Chinese for: {x}""",
            _ANSWER,
        ),
        brief=False,
        verbatim=True,
    ),
    Task(
        "from_chinese",
        "translation",
        _into_english,
        wording(
            """
            Translate into English: {x}
            What does this mean in English? {x}
            Give the English for: {x}""",
            _ANSWER,
        ),
        brief=False,
        verbatim=True,
    ),
    Task(
        "to_english_zh",
        "translation",
        _into_english,
        None,
        wording(
            """
            翻译成英文：{x}
            这句话用英语怎么说？{x}
            请译成英语：{x}""",
            _ANSWER,
        ),
        brief=False,
        verbatim=True,
    ),
    Task(
        "from_english_zh",
        "translation",
        _into_chinese,
        None,
        wording(
            """
            翻译成中文：{x}
            这句英文是什么意思？{x}
            请译成汉语：{x}""",
            _ANSWER,
        ),
        brief=False,
        verbatim=True,
    ),
    Task(
        "word_to_chinese",
        "translation",
        _word,
        wording(
            """
            What is "{w}" in Chinese?
            Translate the word "{w}" into Chinese.""",
            """
            "{w}" is {answer} in Chinese.
            {answer}""",
        ),
        verbatim=True,
        weight=0.4,
    ),
)
