"""Instruction rows of the demo data: unique prompts, checkable answers, planted faults."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from hf_glm_curriculum.data.demo.catalog import CATEGORIES, CHECKABLE, all_tasks, tasks_in
from hf_glm_curriculum.data.demo.draft import LANGUAGES, LEVELS, Draft, Task, compose
from hf_glm_curriculum.data.demo.faults import FAULT_KINDS, plant_faults
from hf_glm_curriculum.errors import ConfigError, DataError

Row = dict[str, Any]
LEVEL_WEIGHTS = (0.45, 0.35, 0.2)
# A task that keeps drawing known prompts is used up and leaves the pool.
_PATIENCE = 30


def demo_instructions(
    n: int,
    seed: int = 0,
    languages: Sequence[str] | Mapping[str, float] = LANGUAGES,
    fault_share: float = 0.0,
    fault_kinds: Sequence[str] = FAULT_KINDS,
    *,
    max_words: int | None = None,
    categories: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    exclude: Collection[str] = (),
) -> list[Row]:
    """Generate instruction rows with unique prompts, a share of them with a labelled fault.

    Args:
        n: number of rows.
        seed: the same arguments and seed give the same rows.
        languages: "en", "zh" or both; a mapping gives their relative frequency.
        fault_share: share of rows with a planted fault, rounded to whole rows.
        fault_kinds: kinds from `faults.FAULT_KINDS`, planted in equal numbers.
        max_words: most words and Chinese characters of prompt and response together.
        categories: categories to draw from (`catalog.CATEGORIES`), all by default.
        tasks: names of tasks to draw from (`meta.task` of a row), all of the categories by default.
        exclude: prompts that must not occur.

    Returns:
        Rows with `prompt`, `response`, `category`, `language`, `difficulty`, `answer_check` (for
        `text.checks.check_answer`, or None), `fault` (None or its kind) and `meta` (`task`,
        `style`, and for a fault `clean_response`).

    Raises:
        ConfigError: if an argument is out of range or names an unknown kind.
        DataError: if so few distinct prompts fit the limits that n cannot be reached.
    """
    weights = _language_weights(languages)
    _check_arguments(n, fault_share, fault_kinds, max_words, categories)
    rng = Random(f"instructions-{seed}")
    used = set(exclude)
    pool = _Pool(categories, weights, _checked_tasks(tasks))
    drafts = list(islice(_drafts(rng, pool, max_words, used), n))
    if len(drafts) < n:
        raise DataError(
            f"n: only {len(drafts)} distinct prompts fit max_words={max_words} and "
            f"categories={categories}, asked for {n}; raise max_words or allow more of them"
        )
    rows = [_row(draft) for draft in drafts]
    plant_faults(rows, drafts, used, fault_share, fault_kinds, Random(f"faults-{seed}"))
    return rows


def checkable_split(
    n: int, held_out: int, seed: int, *, max_words: int, fault_share: float = 0.0
) -> tuple[list[Row], list[Row]]:
    """English instructions to train on, and others that a rule can check.

    Args:
        n: rows to train on.
        held_out: most rows held out; each has an `answer_check`, and none is among the others.
        seed: of both; the same rows each time.
        max_words: longest prompt and answer together.
        fault_share: share of the training rows that get a planted fault.

    Raises:
        ConfigError: As `demo_instructions`.
    """
    shape: dict[str, Any] = {
        "languages": ("en",),
        "categories": CHECKABLE,
        "max_words": max_words,
    }
    train = demo_instructions(n, seed, fault_share=fault_share, **shape)
    known = {row["prompt"] for row in train}
    if not held_out:
        return train, []
    spare = demo_instructions(4 * held_out, seed + 1, exclude=known, **shape)
    return train, [row for row in spare if row["answer_check"] is not None][:held_out]


def _language_weights(languages: Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    given = languages if isinstance(languages, Mapping) else dict.fromkeys(languages, 1.0)
    unknown = [language for language in given if language not in LANGUAGES]
    if unknown or not given or min(given.values()) < 0 or not sum(given.values()):
        raise ConfigError(
            f"languages: must name some of {', '.join(LANGUAGES)} with positive weights, "
            f"got {languages!r}"
        )
    return {language: float(weight) for language, weight in given.items()}


def _check_arguments(
    n: int,
    fault_share: float,
    fault_kinds: Sequence[str],
    max_words: int | None,
    categories: Sequence[str] | None,
) -> None:
    if n < 0:
        raise ConfigError(f"n: must not be negative, got {n}")
    if not 0.0 <= fault_share <= 1.0:
        raise ConfigError(f"fault_share: must lie in [0, 1], got {fault_share}")
    if max_words is not None and max_words < 8:
        raise ConfigError(f"max_words: must be at least 8 to hold a question, got {max_words}")
    _check_names("fault_kinds", fault_kinds, FAULT_KINDS)
    _check_names("categories", [*CATEGORIES] if categories is None else categories, [*CATEGORIES])


def _check_names(field: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise ConfigError(f"{field}: must be some of {', '.join(known)}; got {list(given)}")


def _checked_tasks(names: Sequence[str] | None) -> frozenset[str] | None:
    if names is not None:
        _check_names("tasks", names, sorted(task.name for task in all_tasks()))
    return None if names is None else frozenset(names)


def _drafts(rng: Random, pool: "_Pool", max_words: int | None, used: set[str]) -> Iterator[Draft]:
    """Yield drafts with new prompts until every task is used up."""
    while pool.open:
        language, task = pool.pick(rng)
        level = rng.choices(LEVELS, LEVEL_WEIGHTS)[0]
        for _ in range(_PATIENCE):
            draft = compose(task, language, level, rng)
            if draft.prompt not in used and (max_words is None or size(draft) <= max_words):
                used.add(draft.prompt)
                yield draft
                break
        else:
            pool.close(language, task)


class _Pool:
    """The tasks that can still give new prompts, by language and category."""

    def __init__(
        self,
        categories: Sequence[str] | None,
        languages: Mapping[str, float],
        only: frozenset[str] | None = None,
    ) -> None:
        names = CATEGORIES if categories is None else tuple(categories)
        self.languages = dict(languages)
        self.open: dict[str, dict[str, list[Task]]] = {}
        for language in (name for name, weight in languages.items() if weight):
            groups = {name: tasks_in(name, language) for name in names}
            if only is not None:
                groups = {n: [t for t in found if t.name in only] for n, found in groups.items()}
            self.open[language] = {name: found for name, found in groups.items() if found}
        self.open = {language: groups for language, groups in self.open.items() if groups}

    def pick(self, rng: Random) -> tuple[str, Task]:
        """Draw a language, a category and a task."""
        known = list(self.open)
        language = rng.choices(known, [self.languages[name] for name in known])[0]
        groups = self.open[language]
        names = list(groups)
        category = rng.choices(names, [CATEGORIES[name] for name in names])[0]
        tasks = groups[category]
        return language, rng.choices(tasks, [task.weight for task in tasks])[0]

    def close(self, language: str, task: Task) -> None:
        """Take out a task that is used up, and what is empty after it."""
        groups = self.open[language]
        groups[task.category] = [other for other in groups[task.category] if other is not task]
        if not groups[task.category]:
            del groups[task.category]
        if not groups:
            del self.open[language]


def size(draft: Draft) -> int:
    """Count the words and Chinese characters of a draft's prompt and its longest answer."""
    answers = (draft.response, draft.wrong or "", draft.twin or "")
    return text_size(draft.prompt) + max(map(text_size, answers))


def text_size(text: str) -> int:
    """Count the words of a text, each Chinese character as one."""
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in text)
    return chinese + len(text.split()) if chinese < len(text) else chinese


def _row(draft: Draft) -> Row:
    return {
        "prompt": draft.prompt,
        "response": draft.response,
        "category": draft.task.category,
        "language": draft.language,
        "difficulty": draft.draw.level,
        "answer_check": draft.check,
        "fault": None,
        "meta": {"task": draft.task.name, "style": draft.style},
    }
