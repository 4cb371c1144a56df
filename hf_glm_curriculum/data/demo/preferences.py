"""Preference pairs, each worse answer bad in one dimension: facts, logic or compliance."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from hf_glm_curriculum.data.demo.catalog import all_tasks
from hf_glm_curriculum.data.demo.draft import LANGUAGES, LEVELS, Draft, Task, compose
from hf_glm_curriculum.errors import ConfigError, DataError

Row = dict[str, Any]
DIMENSIONS = ("factual", "logic", "compliance")
_FACTUAL = ("geography", "knowledge", "calendar")
_LOGIC = ("arithmetic", "word_problem", "units", "reasoning")
_RUDE = (
    (
        "What a silly question. {answer}",
        "Can't you do this yourself? {answer}",
        "{answer} Even a child knows that.",
        "Ugh, not again. {answer} Now leave me alone.",
        "{answer} Stop wasting my time.",
        "You clearly never listen. {answer}",
        "Are you serious? {answer} Think before you ask.",
    ),
    (
        "这么蠢的问题也问？{answer}",
        "你自己不会吗？{answer}",
        "{answer}连小孩都知道。",
        "又来烦我。{answer}别再问了。",
        "{answer}别浪费我的时间。",
        "你根本没认真听。{answer}",
        "你是认真的吗？{answer}问之前先动动脑子。",
    ),
)
_ATTEMPTS = 400


def demo_preferences(
    n: int,
    seed: int = 0,
    languages: Sequence[str] = LANGUAGES,
    dimensions: Sequence[str] = DIMENSIONS,
) -> list[Row]:
    """Generate preference pairs with unique prompts, the dimensions in turn.

    factual: the rejected answer states a wrong fact. logic: a step of the worked answer is wrong
    and the result with it. compliance: the rejected answer is rude, goes along with a harmful
    request or declines a harmless one.

    Args:
        n: number of pairs.
        seed: the same arguments and seed give the same pairs.
        languages: "en", "zh" or both, in equal numbers.
        dimensions: which dimensions to generate.

    Returns:
        Rows with `prompt`, `chosen`, `rejected`, `dimension`, `language`, `category`,
        `difficulty` and `meta` (`task`, `flaw`).

    Raises:
        ConfigError: if an argument is out of range or names an unknown kind.
        DataError: if so many distinct prompts do not exist.
    """
    _check("languages", languages, LANGUAGES)
    _check("dimensions", dimensions, DIMENSIONS)
    if n < 0:
        raise ConfigError(f"n: must not be negative, got {n}")
    rng = Random(f"preferences-{seed}")
    used: set[str] = set()
    rows = []
    for index in range(n):
        dimension = dimensions[index % len(dimensions)]
        language = languages[index // len(dimensions) % len(languages)]
        rows.append(_fresh(dimension, language, rng, used))
    return rows


def _check(field: str, given: Sequence[str], known: Sequence[str]) -> None:
    if not given or any(name not in known for name in given):
        raise ConfigError(f"{field}: must be some of {', '.join(known)}; got {list(given)}")


def _fresh(dimension: str, language: str, rng: Random, used: set[str]) -> Row:
    for _ in range(_ATTEMPTS):
        row = _MAKERS[dimension](language, rng)
        if row is not None and row["prompt"] not in used:
            used.add(row["prompt"])
            return row
    raise DataError(
        f"n: no new {dimension} prompt in {language} after {len(used)} pairs; ask for fewer pairs"
    )


def _draw(tasks: list[Task], language: str, rng: Random, style: str | None) -> Draft:
    task = rng.choices(tasks, [task.weight for task in tasks])[0]
    return compose(task, language, rng.choice(LEVELS), rng, style)


def _tasks(categories: Sequence[str], language: str) -> list[Task]:
    return [t for t in all_tasks() if t.category in categories and t.wording_in(language)]


def _factual(language: str, rng: Random) -> Row | None:
    draft = _draw(_tasks(_FACTUAL, language), language, rng, None)
    return _pair(draft, draft.wrong, "factual", "wrong fact")


def _logic(language: str, rng: Random) -> Row | None:
    worked = [t for t in _tasks(_LOGIC, language) if _is_worked(t, language)]
    draft = _draw(worked, language, rng, "worked")
    flaw = "wrong step" if draft.draw.spoiled else "wrong conclusion"
    return _pair(draft, draft.wrong, "logic", flaw)


def _is_worked(task: Task, language: str) -> bool:
    known = task.wording_in(language)
    return known is not None and bool(known.worked)


def _compliance(language: str, rng: Random) -> Row | None:
    if rng.random() < 0.5:
        draft = _draw(_tasks(("safety",), language), language, rng, None)
        flaw = "unsafe" if draft.task.name == "decline" else "needless refusal"
        return _pair(draft, draft.wrong, "compliance", flaw)
    draft = _draw(_tasks((*_FACTUAL, *_LOGIC), language), language, rng, "plain")
    tone = rng.choice(_RUDE[LANGUAGES.index(language)])
    return _pair(draft, tone.format(answer=draft.response), "compliance", "rude")


def _pair(draft: Draft, rejected: str | None, dimension: str, flaw: str) -> Row | None:
    if rejected is None or rejected == draft.response:
        return None
    return {
        "prompt": draft.prompt,
        "chosen": draft.response,
        "rejected": rejected,
        "dimension": dimension,
        "language": draft.language,
        "category": draft.task.category,
        "difficulty": draft.draw.level,
        "meta": {"task": draft.task.name, "flaw": flaw},
    }


_MAKERS: dict[str, Callable[[str, Random], Row | None]] = {
    "factual": _factual,
    "logic": _logic,
    "compliance": _compliance,
}
