"""Demo preference pairs."""

from collections import Counter

import pytest

from hf_glm_curriculum.data.demo import demo_preferences
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.text import is_refusal
from hf_glm_curriculum.text.words import words


@pytest.fixture(scope="module")
def pairs() -> list[dict]:
    return demo_preferences(1200, seed=4)


def test_dimensions_and_languages_are_balanced_and_prompts_unique(pairs):
    assert Counter(p["dimension"] for p in pairs) == dict.fromkeys(
        ("factual", "logic", "compliance"), 400
    )
    assert Counter(p["language"] for p in pairs) == {"en": 600, "zh": 600}
    assert len({p["prompt"] for p in pairs}) == len(pairs)
    assert all(p["chosen"] != p["rejected"] for p in pairs)


def test_same_seed_same_pairs():
    assert demo_preferences(60, seed=9) == demo_preferences(60, seed=9)
    assert demo_preferences(60, seed=9) != demo_preferences(60, seed=10)


def test_flaws_are_what_they_are_called(pairs):
    flaws = {p["meta"]["flaw"] for p in pairs}
    assert flaws == {
        "wrong fact",
        "wrong step",
        "wrong conclusion",
        "unsafe",
        "needless refusal",
        "rude",
    }
    for pair in pairs:
        if pair["meta"]["flaw"] == "unsafe":
            assert is_refusal(pair["chosen"])
            assert not is_refusal(pair["rejected"])
        if pair["meta"]["flaw"] == "needless refusal":
            assert is_refusal(pair["rejected"])
        if pair["meta"]["flaw"] == "rude":
            assert pair["chosen"] in pair["rejected"]


def test_a_wrong_step_shows_in_the_working(pairs):
    steps = [p for p in pairs if p["meta"]["flaw"] == "wrong step" and " = " in p["chosen"]]
    assert len(steps) > 20
    for pair in steps:
        # Not the result alone differs, a number on the way does too.
        right, wrong = words(pair["chosen"]), words(pair["rejected"])
        assert sum(a != b for a, b in zip(right, wrong, strict=False)) >= 2, pair


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"n": -1}, "n:"),
        ({"n": 1, "dimensions": ("style",)}, "dimensions:"),
        ({"n": 1, "languages": ()}, "languages:"),
    ],
)
def test_bad_arguments_name_the_field(arguments, field):
    with pytest.raises(ConfigError, match=f"^{field}"):
        demo_preferences(**arguments)
