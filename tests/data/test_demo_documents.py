"""Demo documents and dialogues."""

from itertools import pairwise

import pytest

from hf_glm_curriculum.data.demo import demo_dialogues, demo_documents
from hf_glm_curriculum.data.demo.documents import han_number
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.text import check_answer, detect_language
from hf_glm_curriculum.text.words import words


@pytest.fixture(scope="module")
def documents() -> list[dict]:
    return demo_documents(8, seed=2, target_chars=6000)


@pytest.fixture(scope="module")
def dialogues() -> list[dict]:
    return demo_dialogues(40, seed=2)


@pytest.mark.parametrize("target", [1000, 8000, 60_000])
def test_documents_have_about_the_length_asked_for(target):
    for document in demo_documents(4, seed=1, target_chars=target):
        assert abs(len(document["text"]) - target) < 0.1 * target + 300


def test_planted_facts_stand_once_where_meta_says(documents):
    for document in documents:
        text, facts = document["text"], document["meta"]["facts"]
        assert len(facts) >= 3
        for fact in facts:
            assert text[fact["start"] : fact["end"]] == fact["statement"]
            assert text.count(fact["statement"]) == 1
            assert check_answer(fact["answer"], fact["answer_check"])
            assert check_answer(fact["statement"], fact["answer_check"])
        assert len({fact["question"] for fact in facts}) == len(facts)


def test_headings_clauses_and_references_point_into_the_text(documents):
    for document in documents:
        text, meta = document["text"], document["meta"]
        for entry in meta["headings"] + meta["clauses"]:
            line = text[entry["start"] :].split("\n")[0]
            assert line.lstrip("# ").startswith(entry["label"])
        labels = [clause["label"] for clause in meta["clauses"]]
        assert len(set(labels)) == len(labels)
        assert meta["references"]
        for reference in meta["references"]:
            assert reference["target"] in labels
            assert text[reference["start"] : reference["end"]].endswith(reference["target"])


def test_documents_are_in_their_language_and_repeat_by_seed(documents):
    assert [detect_language(d["text"]) for d in documents] == ["en", "zh"] * 4
    assert demo_documents(8, seed=2, target_chars=6000) == documents
    assert demo_documents(8, seed=3, target_chars=6000) != documents


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "一"), (10, "十"), (21, "二十一"), (103, "一百零三"), (110, "一百一十")],
)
def test_chinese_numerals(number, text):
    assert han_number(number) == text


def test_dialogues_alternate_and_details_come_back_in_later_turns(dialogues):
    assert {d["topic"] for d in dialogues} == {"refund", "delivery", "hotel", "repair"}
    for dialogue in dialogues:
        roles = [message["role"] for message in dialogue["messages"]]
        assert (roles[0], roles[-1]) == ("user", "assistant")
        assert all(a != b for a, b in pairwise(roles))
        slots = dialogue["meta"]["slots"]
        turns: dict[str, list[int]] = {}
        for mention in dialogue["meta"]["mentions"]:
            content = dialogue["messages"][mention["turn"]]["content"]
            assert slots[mention["slot"]] in content
            turns.setdefault(mention["slot"], []).append(mention["turn"])
        assert max(places[-1] - places[0] for places in turns.values()) >= 4


def test_questions_are_answered_at_the_turn_named(dialogues):
    for dialogue in dialogues:
        assert dialogue["meta"]["questions"]
        for question in dialogue["meta"]["questions"]:
            content = dialogue["messages"][question["turn"]]["content"]
            assert check_answer(content, question["answer_check"])
            earlier = dialogue["messages"][: question["turn"]]
            assert not any(question["answer"] in words(m["content"]) for m in earlier)


def test_dialogues_repeat_by_seed(dialogues):
    assert demo_dialogues(40, seed=2) == dialogues
    assert demo_dialogues(40, seed=5) != dialogues


@pytest.mark.parametrize(
    ("make", "arguments", "field"),
    [
        (demo_documents, {"n": -1}, "n:"),
        (demo_documents, {"n": 1, "target_chars": 10}, "target_chars:"),
        (demo_documents, {"n": 1, "languages": ("fr",)}, "languages:"),
        (demo_dialogues, {"n": -1}, "n:"),
        (demo_dialogues, {"n": 1, "languages": ()}, "languages:"),
    ],
)
def test_bad_arguments_name_the_field(make, arguments, field):
    with pytest.raises(ConfigError, match=f"^{field}"):
        make(**arguments)
