"""Demo instructions: determinism, uniqueness, checkable answers and planted faults."""

from collections import Counter

import pytest

from hf_glm_curriculum.data.demo import FAULT_KINDS, demo_instructions
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.text import check_answer, detect_language


@pytest.fixture(scope="module")
def clean() -> list[dict]:
    return demo_instructions(10_000, seed=3)


@pytest.fixture(scope="module")
def faulty() -> list[dict]:
    return demo_instructions(6_000, seed=5, fault_share=0.3)


def test_same_seed_same_rows_other_seed_other_rows():
    first, second, third = (demo_instructions(200, seed=s, fault_share=0.2) for s in (1, 1, 2))
    assert first == second
    assert sum(a["prompt"] == b["prompt"] for a, b in zip(first, third, strict=True)) < 10


def test_prompts_are_unique_and_every_clean_answer_passes_its_check(clean):
    assert len({row["prompt"] for row in clean}) == len(clean)
    checked = [row for row in clean if row["answer_check"]]
    assert len(checked) > 0.7 * len(clean)
    failed = [row for row in checked if not check_answer(row["response"], row["answer_check"])]
    assert not failed, failed[:3]


def test_wrong_answers_fail_their_check_and_the_clean_twin_passes(faulty):
    for kind in ("wrong_answer", "contradiction"):
        rows = [row for row in faulty if row["fault"] == kind and row["answer_check"]]
        assert len(rows) > 200
        passed = [row for row in rows if check_answer(row["response"], row["answer_check"])]
        assert not passed, passed[:3]
        assert all(check_answer(r["meta"]["clean_response"], r["answer_check"]) for r in rows)


def test_faults_have_the_share_asked_for_in_equal_numbers(faulty):
    counts = Counter(row["fault"] for row in faulty)
    assert sum(counts[kind] for kind in FAULT_KINDS) == pytest.approx(0.3 * len(faulty), abs=20)
    for kind in FAULT_KINDS:
        assert counts[kind] == pytest.approx(0.05 * len(faulty), abs=20)


def test_each_fault_is_what_its_label_says(faulty):
    for row in faulty:
        kind, clean = row["fault"], row["meta"].get("clean_response")
        if kind is None:
            assert clean is None
            continue
        assert row["response"] != clean
        if kind == "truncated":
            assert clean.startswith(row["response"])
        if kind == "prompt_copied":
            assert row["response"] == row["prompt"]
        if kind == "other_language":
            assert detect_language(row["response"]) != row["language"]
        if kind == "contradiction":
            partner = faulty[row["meta"]["contradicts"]]
            assert partner["fault"] is None
            assert partner["response"] == clean
            assert partner["prompt"] != row["prompt"]


def test_shuffled_answers_come_from_other_rows(faulty):
    answers = Counter(row["meta"]["clean_response"] for row in faulty if row["fault"] == "shuffled")
    moved = Counter(row["response"] for row in faulty if row["fault"] == "shuffled")
    assert sum((moved - answers).values()) < 0.02 * moved.total()


def test_limits_on_size_language_category_and_excluded_prompts():
    known = {row["prompt"] for row in demo_instructions(300, seed=8)}
    rows = demo_instructions(
        300, seed=8, languages=("en",), max_words=25, categories=["arithmetic"], exclude=known
    )
    assert {row["language"] for row in rows} == {"en"}
    assert {row["category"] for row in rows} == {"arithmetic"}
    assert max(len((row["prompt"] + " " + row["response"]).split()) for row in rows) <= 25
    assert not known & {row["prompt"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"n": -1}, "n:"),
        ({"n": 5, "fault_share": 1.5}, "fault_share:"),
        ({"n": 5, "languages": ("fr",)}, "languages:"),
        ({"n": 5, "fault_kinds": ("typo",)}, "fault_kinds:"),
        ({"n": 5, "categories": ()}, "categories:"),
        ({"n": 5, "tasks": ["upercase"]}, "tasks: must be some of"),
        ({"n": 5, "max_words": 2}, "max_words:"),
    ],
)
def test_bad_arguments_name_the_field(arguments, field):
    with pytest.raises(ConfigError, match=f"^{field}"):
        demo_instructions(**arguments)


def test_more_rows_than_prompts_is_an_error():
    with pytest.raises(DataError, match="distinct prompts"):
        demo_instructions(50_000, max_words=9, categories=["geography"])


def test_rows_of_some_tasks_only():
    rows = demo_instructions(60, seed=3, tasks=("uppercase", "to_json", "capital"), fault_share=0.2)
    assert {row["meta"]["task"] for row in rows} == {"uppercase", "to_json", "capital"}
    assert sum(row["fault"] is not None for row in rows) == 12
