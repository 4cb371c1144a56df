from __future__ import annotations

import json

import pytest

from hf_glm_curriculum import DimensionWeights, RewardGate, RewardShaper
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.flywheel import FlywheelConfig, append_sft_rows, harvest
from hf_glm_curriculum.rewards.pipeline import RewardPipeline
from tests.rewards.scorers import ScriptedScorer

FROM = {"policy": "smol", "step": 40, "reward_model": "heads-3"}
GOOD = "Paris is the capital of France."


def pipeline(scores, sure=None, **parts) -> RewardPipeline:
    model = ScriptedScorer(scores, sure or [[0.9] * 3] * len(scores))
    return RewardPipeline(model, RewardGate(), DimensionWeights(), **parts)


def reasons(responses, scores=None, prompts=None, sure=None, **settings) -> list[str | None]:
    """Why each answer is left out; None for one that is kept."""
    found = []
    for i, response in enumerate(responses):
        rows = [scores[i]] if scores else [[0.9] * 3]
        pipe = pipeline(rows, [sure[i]] if sure else None)
        got = harvest([(prompts or ["q"] * 9)[i]], [response], pipe, FROM, **settings)
        found.append(next(iter(+got.rejected), None))
        assert bool(got.rows) is (found[-1] is None)
    return found


def test_bad_answers_are_left_out_for_a_named_reason():
    texts = [
        GOOD,
        " ",
        "I'm sorry, but I can't help with that.",
        "抱歉，我无法回答。",
        "Sure! It is Paris.",
        "go home now " * 9 + ".",
        "The capital of France, which is a country in Europe, is the city of",
    ]
    wanted = [None, "empty", "refusal", "refusal", "template", "repetition", "unfinished"]
    assert reasons(texts) == wanted
    assert reasons([GOOD], ended=[False]) == ["unfinished"]


def test_what_the_reward_model_says_decides():
    scores = [[0.9, 0.9, 0.9], [0.9, 0.5, 0.9], [0.65, 0.65, 0.65], [0.9, 0.5, 0.9]]
    sure = [[0.9] * 3, [0.9] * 3, [0.9] * 3, [0.9, 0.1, 0.9]]
    # The closed dimension of the last row is worth the prior, 0.5, and is not held against it.
    assert reasons([GOOD] * 4, scores, sure=sure) == [None, "low logic", "low reward", None]
    strict = FlywheelConfig(must_be_open=("logic",))
    assert reasons([GOOD] * 4, scores, sure=sure, config=strict)[3] == "not confident"


def test_checks_screens_and_wanted_refusals():
    check = {"kind": "contains", "value": "Paris", "any_of": None}
    rows = [{"prompt": "q", "answer_check": check}] * 2
    assert reasons([GOOD, "It is Rome."], prompts=rows) == [None, "answer_check"]
    declined = "I can't help with that."
    assert reasons([declined], prompts=[{"prompt": "harm", "refusal_ok": True}]) == [None]
    screens = {"annotator": lambda prompt, response: False}
    assert reasons([GOOD], screens=screens) == ["annotator"]


def test_the_best_of_each_prompt_once():
    prompts = ["a", "a", "b", "a", "a"]
    texts = ["Fine one.", "Best one.", "Only one.", "Best  one.", "Good one."]
    scores = [[0.75] * 3, [0.95] * 3, [0.8] * 3, [0.95] * 3, [0.85] * 3]
    got = harvest(prompts, texts, pipeline(scores), FROM)
    assert [(row["prompt"], row["response"]) for row in got.rows] == [
        ("a", "Best one."),
        ("b", "Only one."),
    ]
    assert got.rejected == {"duplicate": 1, "not the best": 2}
    assert got.share == pytest.approx(2 / 5)
    two = harvest(prompts, texts, pipeline(scores), FROM, config=FlywheelConfig(most_per_prompt=2))
    assert [row["response"] for row in two.rows] == ["Best one.", "Good one.", "Only one."]


def test_every_row_says_where_it_comes_from(tmp_path):
    row = {"prompt": "Where?", "category": "geography", "meta": {"task": "capital"}}
    got = harvest([row], [GOOD], pipeline([[0.9, 0.8, 0.7]], [[0.9, 0.9, 0.5]]), FROM)
    path = tmp_path / "more.jsonl"
    assert append_sft_rows(path, got.rows) == 1
    loaded = load_records(path, "sft")[0]
    assert (loaded["prompt"], loaded["response"]) == ("Where?", GOOD)
    assert loaded["category"] == "geography"
    meta = loaded["meta"]
    assert meta["origin"] == "policy" and meta["task"] == "capital" and meta["step"] == 40
    assert meta["scores"] == {"factual": 0.9, "logic": 0.8, "compliance": 0.7}
    assert meta["open"] == ["factual", "logic"]
    assert meta["reward"] == pytest.approx((2 * 0.9 + 0.8 + 0.5 * 0.5) / 3.5, abs=1e-4)


def test_appending_keeps_what_is_there_and_adds_nothing_twice(tmp_path):
    path = tmp_path / "data.jsonl"
    own = {"prompt": "mine", "response": "kept as it is"}
    path.write_text(json.dumps(own), "utf-8")  # no line break at the end
    rows = harvest(["a", "b"], [GOOD, GOOD], pipeline([[0.9] * 3] * 2), FROM).rows
    assert append_sft_rows(path, rows[:1]) == 1
    assert append_sft_rows(path, rows) == 1
    assert append_sft_rows(path, rows) == 0
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert lines[0] == own and [line["prompt"] for line in lines] == ["mine", "a", "b"]


def test_harvesting_leaves_the_running_state_alone():
    pipe = pipeline([[0.9] * 3], shaper=RewardShaper())
    before = pipe.state_dict()
    harvest(["a"], [GOOD], pipe, FROM)
    assert pipe.state_dict() == before
    assert harvest([], [], pipe, FROM).rows == []


def test_bad_input_is_named():
    pipe = pipeline([[0.9] * 3])
    with pytest.raises(DataError, match="provenance: must say where"):
        harvest(["a"], [GOOD], pipe, {})
    with pytest.raises(DataError, match="provenance: must be plain JSON"):
        harvest(["a"], [GOOD], pipe, {"model": object()})
    with pytest.raises(DataError, match="one length, got 1 and 2"):
        harvest(["a"], [GOOD] * 2, pipe, FROM)
    with pytest.raises(DataError, match="row 0: prompt must be text"):
        harvest([{"question": "a"}], [GOOD], pipe, FROM)
    with pytest.raises(ConfigError, match="must_be_open: unknown dimension 'facts'"):
        harvest(["a"], [GOOD], pipe, FROM, config=FlywheelConfig(must_be_open=("facts",)))
    with pytest.raises(ConfigError, match="most_per_prompt"):
        FlywheelConfig(most_per_prompt=0)
