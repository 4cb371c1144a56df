"""Pairs out of a model's own answers: repeatable, resumable, ranked by rules or judges."""

from __future__ import annotations

import json

import pytest
import torch

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.rewards import construct
from hf_glm_curriculum.rewards.construct import (
    SamplingConfig,
    build_preferences,
    rank_pairs,
    rule_ranker,
    sample_answers,
)
from hf_glm_curriculum.rewards.reward_data import read_reward_data

CONFIG = SamplingConfig(candidates=3, max_new_tokens=4)
ROWS = [
    {"prompt": f"Say something {n}", "answer_check": {"kind": "contains", "any_of": list("abcdef")}}
    for n in range(4)
]


def lengths(prompt, answers, row):
    return [float(len(answer)) for answer in answers]


def test_answers_follow_from_seed_and_prompt_alone(tiny_llama, tiny_tokenizer):
    first = sample_answers(tiny_llama, tiny_tokenizer, "one", CONFIG)
    torch.rand(3)
    sample_answers(tiny_llama, tiny_tokenizer, "two", CONFIG)
    assert sample_answers(tiny_llama, tiny_tokenizer, "one", CONFIG) == first
    assert len(first) == 3 and len(set(first)) > 1
    other = SamplingConfig(candidates=3, max_new_tokens=4, sampling_seed=1)
    assert sample_answers(tiny_llama, tiny_tokenizer, "one", other) != first


def test_sampling_leaves_model_and_random_numbers_as_they_were(tiny_llama, tiny_tokenizer):
    tiny_llama.train()
    tiny_llama.generation_config.suppress_tokens = list(range(4, 260))
    own = tiny_llama.generation_config
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    answers = sample_answers(tiny_llama, tiny_tokenizer, "one", CONFIG)
    assert torch.equal(torch.rand(1), expected)
    assert tiny_llama.training and tiny_llama.generation_config is own
    assert any(answers), "the model's own suppressed tokens do not leak in"


def test_pairs_can_be_read_back_as_training_data(tiny_llama, tiny_tokenizer, tmp_path):
    path = tmp_path / "pairs.jsonl"
    pairs = build_preferences(
        tiny_llama, tiny_tokenizer, ROWS, path, rankers={"logic": lengths}, config=CONFIG
    )
    assert pairs and all(len(p["chosen"]) > len(p["rejected"]) for p in pairs)
    data = read_reward_data([path])
    assert len(data.examples.pairs) == len(pairs)
    assert data.sources == ["sampled"]


def test_a_killed_run_goes_on_and_ends_the_same(tiny_llama, tiny_tokenizer, tmp_path, monkeypatch):
    def build(name):
        return build_preferences(
            tiny_llama,
            tiny_tokenizer,
            ROWS,
            tmp_path / name,
            rankers={"logic": lengths},
            config=CONFIG,
        )

    whole = build("whole.jsonl")
    sample, asked = construct.sample_answers, []

    def die_at_the_third(*args):
        asked.append(args[2])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return sample(*args)

    monkeypatch.setattr(construct, "sample_answers", die_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        build("killed.jsonl")
    log = tmp_path / "killed.candidates.jsonl"
    with log.open("a") as file:
        file.write('{"key": "torn')
    asked.clear()
    monkeypatch.setattr(construct, "sample_answers", lambda *a: asked.append(a[2]) or sample(*a))
    assert build("killed.jsonl") == whole
    assert asked == ["Say something 2", "Say something 3"]
    killed, whole_file = (tmp_path / n for n in ("killed.jsonl", "whole.jsonl"))
    assert killed.read_bytes() == whole_file.read_bytes()
    assert all(json.loads(line) for line in log.read_text().splitlines())


def test_a_log_of_other_settings_is_refused(tiny_llama, tiny_tokenizer, tmp_path):
    run = (tiny_llama, tiny_tokenizer, ROWS[:1], tmp_path / "pairs.jsonl")
    build_preferences(*run, rankers={"logic": lengths}, config=CONFIG)
    paired = SamplingConfig(candidates=3, max_new_tokens=4, pairs_per_prompt=1)
    build_preferences(*run, rankers={"logic": lengths}, config=paired)
    with pytest.raises(StateError, match="another model or other settings"):
        build_preferences(*run, rankers={"logic": lengths}, config=SamplingConfig(candidates=4))


def test_rules_prefer_what_passes_the_check():
    row = {"prompt": "2 + 2?", "answer_check": json.dumps({"kind": "number", "value": 4})}
    assert rule_ranker(row["prompt"], ["4", "5", "It is 4."], row) == [1.0, 0.0, 1.0]
    pairs = rank_pairs(row, ["5", "4", "6", "4"], rule_ranker, CONFIG)
    assert [(p["chosen"], p["rejected"], p["dimension"]) for p in pairs] == [
        ("4", "5", "logic"),
        ("4", "6", "logic"),
    ]
    assert rule_ranker("?", ["a"], {"prompt": "?"}) == [None]


def test_a_row_names_its_own_dimension():
    row = {"prompt": "p", "dimension": "tone"}
    assert rank_pairs(row, ["a", "bb"], lengths, CONFIG)[0]["dimension"] == "tone"
    with pytest.raises(DataError, match="which dimension"):
        rank_pairs({"prompt": "p"}, ["a", "bb"], lengths, CONFIG)


def test_the_furthest_apart_come_first_and_ties_give_no_pair():
    scores = {"a": 0.1, "b": 0.5, "c": 0.9, "d": 0.5, "e": None}

    def judge(prompt, answers, row):
        return [scores[answer] for answer in answers]

    config = SamplingConfig(pairs_per_prompt=9, margin=0.3)
    pairs = rank_pairs({"prompt": "p", "dimension": "x"}, list("abcde"), judge, config)
    assert (pairs[0]["chosen"], pairs[0]["rejected"]) == ("c", "a")
    gaps = [p["meta"]["gap"] for p in pairs]
    assert gaps == sorted(gaps, reverse=True) and min(gaps) > 0.3
    same = {"a": 1.0, "b": 1.0}
    assert (
        rank_pairs(
            {"prompt": "p", "dimension": "x"}, ["a", "b"], lambda *_: [*same.values()], config
        )
        == []
    )


def test_a_judge_that_miscounts_is_named():
    with pytest.raises(DataError, match="got 1 for 2 answers"):
        rank_pairs({"prompt": "p", "dimension": "x"}, ["a", "b"], lambda *_: [1.0], CONFIG)


def test_references_may_compete(tiny_llama, tiny_tokenizer, tmp_path):
    rows = [{"prompt": "p", "response": "a very long reference answer", "dimension": "logic"}]
    run = (tiny_llama, tiny_tokenizer, rows, tmp_path / "pairs.jsonl")
    pairs = build_preferences(*run, rankers=lengths, config=CONFIG, include_reference=True)
    assert pairs[0]["chosen"] == rows[0]["response"]


@pytest.mark.parametrize(
    "settings", [{"candidates": 1}, {"temperature": 0}, {"top_p": 1.5}, {"pairs_per_prompt": 0}]
)
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SamplingConfig(**settings)


def test_a_row_without_a_prompt(tiny_llama, tiny_tokenizer, tmp_path):
    with pytest.raises(DataError, match="prompt 0: must be text"):
        build_preferences(tiny_llama, tiny_tokenizer, [{"prompt": " "}], tmp_path / "x.jsonl")
