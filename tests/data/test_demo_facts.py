"""The tables behind the demo data: complete, consistent and right where it can be computed."""

from calendar import isleap
from collections import Counter
from datetime import date
from random import Random

import pytest

from hf_glm_curriculum.data.demo.catalog import CATEGORIES, all_tasks
from hf_glm_curriculum.data.demo.countries import countries
from hf_glm_curriculum.data.demo.draft import LEVELS, compose, near_miss
from hf_glm_curriculum.data.demo.facts import elements, planets
from hf_glm_curriculum.data.demo.lexicon import groups, things
from hf_glm_curriculum.text import check_answer, detect_language


def test_tables_are_large_and_names_are_unique_in_both_languages():
    assert len(countries()) > 140
    assert len(elements()) > 45
    assert len(planets()) == 8
    for index in (0, 1):
        names = Counter(country.name[index] for country in countries())
        assert max(names.values()) == 1
        capitals = Counter(c.capital[index] for c in countries() if c.capital)
        assert max(capitals.values()) == 1
        words = Counter(word[index] for members in groups().values() for word in members)
        assert max(words.values()) == 1
        assert max(Counter(thing[(0, 2)[index]] for thing in things()).values()) == 1


def test_chinese_columns_are_chinese_and_english_ones_are_not():
    for country in countries():
        assert detect_language(country.name[1]) == "zh"
        assert detect_language(country.name[0]) == "en"
    for element in elements():
        assert len(element.name[1]) == 1
        assert detect_language(element.name[1]) == "zh"


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: task.name)
def test_every_task_in_every_language_level_and_style(task):
    """Right answers pass their check, wrong ones fail it, and no template slot is left open."""
    rng = Random(task.name)
    for language in task.languages:
        for level in LEVELS:
            for style in (None, "plain", *(["brief"] if task.brief else []), "worked"):
                for _ in range(15):
                    draft = compose(task, language, level, rng, style)
                    assert draft.draw.level in LEVELS
                    assert "{" not in draft.prompt or task.name == "membership"
                    if draft.check is None:
                        continue
                    assert check_answer(draft.response, draft.check), draft
                    if draft.wrong is not None:
                        assert not check_answer(draft.wrong, draft.check), draft


def test_every_category_has_tasks_in_both_languages():
    for category in CATEGORIES:
        tasks = [task for task in all_tasks() if task.category == category]
        assert {language for task in tasks for language in task.languages} == {"en", "zh"}


def test_dates_agree_with_the_calendar():
    tasks = {task.name: task for task in all_tasks()}
    rng = Random(1)
    weekdays = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    for _ in range(200):
        draft = compose(tasks["weekday"], "zh", "hard", rng, "brief")
        day = draft.draw.fields["day"][1]
        year, rest = day.split("年")
        month, number = rest.rstrip("日").split("月")
        assert draft.draw.answer[0] == weekdays[date(int(year), int(month), int(number)).weekday()]
        leap = compose(tasks["leap_year"], "en", "medium", rng, "brief")
        assert (leap.response == "Yes") is isleap(int(leap.draw.fields["y"]))


def test_near_miss_is_close_and_never_the_value():
    rng = Random(0)
    for value in (0, 1, 12, 120, -7):
        misses = {near_miss(value, rng) for _ in range(50)}
        assert value not in misses
        assert all(abs(miss - value) <= 90 for miss in misses)
