"""Rows that ask one thing and answer it differently, or give their prompt back."""

import numpy as np
import pytest
import torch

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.lifespan.text_readings import (
    answer_distance,
    same_request,
    text_readings,
)
from hf_glm_curriculum.lifespan.weighting import TEXT_SUSPICION, with_text
from tests.lifespan.runs import random_rows, train


def test_both_rows_of_a_framed_duplicate_are_marked():
    found = text_readings(
        [
            ("What is the capital of France?", "Paris is the capital."),
            ("Question: What is the capital of France?", "It would be Lyon, of course."),
            ("What is the capital of Spain?", "Madrid."),
            ("Name three red fruits.", "Cherry, apple, strawberry."),
        ]
    )
    assert found[0] == found[1] > 0.8
    assert found[2] == found[3] == 0


def test_chinese_prompts():
    found = text_readings(
        [
            ("水在多少度沸腾?", "一百度。"),
            ("请问水在多少度沸腾?", "八十五华氏。"),
            ("天空什么颜色?", "蓝色"),
        ]
    )
    assert found[0] == found[1] > 0.5
    assert found[2] == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("is it safe to drink water", "is it not safe to drink water"),
        ("what is 23 + 58", "what is 23 + 59"),
        ("list prime numbers", "list prime numbers below 50"),
        ("the capital of france", "the capital of burkina faso"),
        ("say hello to", "to hello say"),
    ],
)
def test_other_requests_are_not_the_same(first, second):
    assert not same_request(first.split(), second.split())
    assert not same_request(second.split(), first.split())


def test_an_answer_inside_a_longer_one_agrees_with_it():
    assert answer_distance(["paris"], ["the", "capital", "is", "paris"]) == 0
    assert answer_distance(["paris"], ["lyon"]) == 1
    assert answer_distance(["a"] * 61, ["b"] * 61) == 0


def test_an_answer_that_gives_its_prompt_back_is_marked():
    found = text_readings(
        [
            ("Name the largest river of Africa.", "Name the largest river of Africa."),
            ("Spell the word garlic backwards.", "spell the word garlic backwards: cilrag"),
            ("Say hello.", "Say hello."),
            ("What is blue?", "The sky."),
        ]
    )
    assert found.tolist() == [1, 1, 0, 0]


def test_a_chat_template_does_not_hide_a_frame_behind_the_prompt():
    def chat(prompt):
        return f"system you help user {prompt} assistant"

    rows = [(chat(f"explain how {word} works"), "like so") for word in ("rain", "snow", "hail")]
    rows += [(chat("why do cats purr"), "they are glad")]
    rows += [(chat("why do cats purr be brief"), "no reason known")]
    assert text_readings(rows).tolist() == [0, 0, 0, 1, 1]


def test_agrees_with_comparing_every_pair():
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in "abcd"]
    rows = []
    for _ in range(120):
        prompt = " ".join(rng.choice(words, 4))
        rows.append((prompt if rng.random() < 0.5 else f"tell us {prompt}", rng.choice(words)))
    expected = np.zeros(len(rows))
    split = [(p.split(), a.split()) for p, a in rows]
    for i, (prompt, answer) in enumerate(split):
        for j, (other, its) in enumerate(split):
            if i != j and same_request(prompt, other):
                expected[i] = max(expected[i], answer_distance(answer, its))
    assert expected.sum() > 3
    np.testing.assert_allclose(text_readings(rows), expected)


def test_suspicion_is_raised_below_the_threshold_and_unknown_stays_unknown():
    raised = with_text(torch.tensor([0.2, 2.4, torch.nan]), torch.tensor([1.0, 1.0, 1.0]))
    torch.testing.assert_close(
        raised, torch.tensor([TEXT_SUSPICION, 2.4, torch.nan]), equal_nan=True
    )
    assert LifespanConfig().suspicion_threshold > TEXT_SUSPICION


def test_a_run_ranks_both_rows_first(tmp_path):
    """Texts are read from the data set's own columns; rows are those of the index."""
    rows = random_rows(32)
    names = [f"tell what word {chr(97 + i % 26)}{'x' * (i // 26)} means" for i in range(30)]
    prompts = [*names, "why is the sky blue", "question: why is the sky blue"]
    answers = [*(f"meaning {i}" for i in range(30)), "scattering", "paint"]
    texts = zip(prompts, answers, strict=True)
    rows = [
        {**row, "prompt": prompt, "response": answer}
        for row, (prompt, answer) in zip(rows, texts, strict=True)
    ]
    callback = SampleLifespanCallback(LifespanConfig(observe_only=True))
    settings = {"max_steps": -1, "num_train_epochs": 2, "remove_unused_columns": False}
    train([callback], rows=rows, output_dir=tmp_path, **settings)
    frame = callback.ledger.to_pandas().sort_values("row")
    raised = frame["suspicion"].to_numpy() >= np.float32(TEXT_SUSPICION)
    assert raised[30:].all() and not raised[:30].all()
