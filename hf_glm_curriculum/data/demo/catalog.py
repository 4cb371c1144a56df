"""All demo tasks, grouped by category, with the share each category gets."""

from functools import cache

from hf_glm_curriculum.data.demo import arithmetic, geography
from hf_glm_curriculum.data.demo.draft import Task

CATEGORIES: dict[str, float] = {
    "arithmetic": 1.5,
    "geography": 1.2,
}
_MODULES = (arithmetic, geography)


@cache
def all_tasks() -> tuple[Task, ...]:
    """Return every task of every topic."""
    return tuple(task for module in _MODULES for task in module.TASKS)


def tasks_in(category: str, language: str) -> list[Task]:
    """Return the tasks of a category that can be worded in a language."""
    return [t for t in all_tasks() if t.category == category and t.wording_in(language)]
