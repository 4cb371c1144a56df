"""Checks and figures of answers."""

import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.evaluation.answers import evaluate_answers, judge_answers

NUMBER = {"kind": "number", "value": 4}


def test_answers_are_judged_by_their_checks():
    assert judge_answers(["It is 4.", "5", "blue"], [NUMBER, NUMBER, None]) == [True, False, None]


def test_figures_count_only_what_can_be_checked():
    figures = evaluate_answers(
        ["It is 4.", "5", "I can't help with that.", "是的"],
        [NUMBER, NUMBER, None, None],
        ["sum", "sum", "chat", "chat"],
    )
    assert figures["n"] == 4 and figures["checkable"] == 2 and figures["correct"] == 1
    assert figures["accuracy"] == 0.5
    assert figures["refusals"] == 0.25
    assert figures["languages"]["zh"] == 1
    assert figures["categories"] == {"sum": {"checkable": 2, "correct": 1}}


def test_nothing_checkable_has_no_accuracy():
    assert evaluate_answers(["a"], [None])["accuracy"] is None
    assert evaluate_answers([], [])["n"] == 0


def test_repetition_shows():
    assert evaluate_answers(["go go go go go go"], [None])["repetition"] > 0.5
    assert evaluate_answers(["one two three four"], [None])["repetition"] == 0


def test_wrong_lengths_are_named():
    with pytest.raises(DataError, match="got 1 for 2"):
        judge_answers(["a", "b"], [None])
    with pytest.raises(DataError, match="categories"):
        evaluate_answers(["a"], [None], ["x", "y"])
