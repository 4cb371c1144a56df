"""All demo tasks, grouped by category, with the share each category gets."""

from functools import cache

from hf_glm_curriculum.data.demo import (
    advice,
    arithmetic,
    dates,
    editing,
    geography,
    knowledge,
    reasoning_tasks,
    safety,
    structured,
    translation,
    units,
    word_forms,
    word_problems,
)
from hf_glm_curriculum.data.demo.draft import Task

CATEGORIES: dict[str, float] = {
    "arithmetic": 1.5,
    "geography": 1.2,
    "knowledge": 1.2,
    "units": 1.0,
    "editing": 1.5,
    "format": 0.7,
    "calendar": 1.0,
    "word_problem": 1.2,
    "reasoning": 1.5,
    "translation": 0.8,
    "safety": 0.7,
    "advice": 0.7,
}

CHECKABLE = (
    "arithmetic",
    "geography",
    "knowledge",
    "units",
    "editing",
    "format",
    "reasoning",
    "safety",
    "word_problem",
)
"""Categories whose English tasks a rule can check and a small model can pick up; translation is
left out, since the embedded model knows no Chinese."""
_MODULES = (
    advice,
    arithmetic,
    dates,
    editing,
    geography,
    knowledge,
    reasoning_tasks,
    safety,
    structured,
    translation,
    units,
    word_forms,
    word_problems,
)


@cache
def all_tasks() -> tuple[Task, ...]:
    """Return every task of every topic."""
    return tuple(task for module in _MODULES for task in module.TASKS)


def tasks_in(category: str, language: str) -> list[Task]:
    """Return the tasks of a category that can be worded in a language."""
    return [t for t in all_tasks() if t.category == category and t.wording_in(language)]
