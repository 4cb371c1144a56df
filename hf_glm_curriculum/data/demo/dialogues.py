"""Customer dialogues over several turns, with details that later turns come back to."""

import string
from collections.abc import Sequence
from random import Random
from typing import Any

from hf_glm_curriculum.data.demo.dialogue_parts import CITIES, FAULTS, ITEMS, Turn, scripts
from hf_glm_curriculum.data.demo.draft import LANGUAGES, Phrase, say
from hf_glm_curriculum.data.demo.word_problems import NAMES
from hf_glm_curriculum.errors import ConfigError

Row = dict[str, Any]
_ROLES = {"user": "user", "agent": "assistant"}
_MONTHS = """January February March April May June July August September October November
December"""
_QUESTIONS = {
    "order": ("Which number did the customer give or get?", "对话中的编号是多少？"),
    "card": ("What are the last digits of the card?", "银行卡尾号是多少？"),
    "price": ("What is the price in dollars?", "价格是多少元？"),
    "date": ("Which date is named?", "提到的日期是哪一天？"),
    "name": ("Which person is named?", "提到的人叫什么？"),
    "phone": ("What is the phone number?", "电话号码是多少？"),
    "city": ("Which city is named?", "提到的是哪座城市？"),
    "mail": ("What is the e-mail address?", "邮箱地址是什么？"),
    "nights": ("For how many nights is the room booked?", "房间订了几晚？"),
}


def demo_dialogues(n: int, seed: int = 0, languages: Sequence[str] = LANGUAGES) -> list[Row]:
    """Generate customer dialogues: refunds, deliveries, hotel bookings, repairs.

    Details (order number, date, card, …) are given in one turn and taken up again in later ones.

    Args:
        n: number of dialogues; topics and languages in turn.
        seed: the same arguments and seed give the same dialogues.
        languages: "en", "zh" or both.

    Returns:
        Rows with `messages` (`role` user or assistant, `content`), `language`, `topic` and `meta`:
        `slots` (name to value), `mentions` (each `slot`, `turn`, in order) and `questions` (each
        `question`, `answer`, `answer_check`, `slot`, `turn` where it was first said).

    Raises:
        ConfigError: if an argument is out of range.
    """
    if n < 0:
        raise ConfigError(f"n: must not be negative, got {n}")
    if not languages or any(language not in LANGUAGES for language in languages):
        raise ConfigError(f"languages: must be some of {', '.join(LANGUAGES)}; got {languages!r}")
    rng = Random(f"dialogues-{seed}")
    topics = scripts()
    rows = []
    for index in range(n):
        topic = list(topics)[index // len(languages) % len(topics)]
        rows.append(_play(topic, topics[topic], languages[index % len(languages)], rng))
    return rows


def _play(topic: str, script: list[Turn], language: str, rng: Random) -> Row:
    values = {name: say(value, language) for name, value in _details(rng).items()}
    messages: list[dict[str, str]] = []
    mentions: list[dict[str, Any]] = []
    for turn in script:
        if turn.is_optional and rng.random() < 0.5:
            continue
        template = rng.choice(turn.wordings[language])
        index = _say(messages, _ROLES[turn.speaker], template.format(**values), language)
        mentions += [{"slot": slot, "turn": index} for slot in _slots(template)]
    used = {mention["slot"] for mention in mentions}
    meta = {
        "slots": {name: value for name, value in values.items() if name in used},
        "mentions": mentions,
        "questions": _questions(values, mentions, language),
    }
    return {"messages": messages, "language": language, "topic": topic, "meta": meta}


def _say(messages: list[dict[str, str]], role: str, text: str, language: str) -> int:
    """Add a turn, joining two in a row of one speaker; return its index."""
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += (" " if language == "en" else "") + text
    else:
        messages.append({"role": role, "content": text})
    return len(messages) - 1


def _slots(template: str) -> list[str]:
    names = (name for _, name, _, _ in string.Formatter().parse(template) if name)
    return list(dict.fromkeys(names))


def _details(rng: Random) -> dict[str, Phrase]:
    """Draw the details of one dialogue."""
    month, day = rng.randint(1, 12), rng.randint(1, 28)
    name = rng.choice(NAMES)
    return {
        "item": rng.choice(ITEMS),
        "fault": rng.choice(FAULTS),
        "city": rng.choice(CITIES),
        "name": name,
        "order": rng.randint(100_000, 999_999),
        "card": rng.randint(1000, 9999),
        "price": rng.randint(12, 480),
        "date": (f"{_MONTHS.split()[month - 1]} {day}", f"{month}月{day}日"),
        "days": rng.randint(2, 14),
        "nights": rng.randint(2, 9),
        "phone": f"555-{rng.randint(1000, 9999)}",
        "mail": f"{name[0].lower()}{rng.randint(10, 99)}@example.com",
    }


def _questions(
    values: dict[str, str], mentions: list[dict[str, Any]], language: str
) -> list[dict[str, Any]]:
    """Ask about every detail that is said and has a question."""
    first: dict[str, int] = {}
    for mention in mentions:
        first.setdefault(mention["slot"], mention["turn"])
    return [
        {
            "question": say(_QUESTIONS[slot], language),
            "answer": values[slot],
            "answer_check": {"kind": "contains", "value": values[slot]},
            "slot": slot,
            "turn": turn,
        }
        for slot, turn in first.items()
        if slot in _QUESTIONS
    ]
