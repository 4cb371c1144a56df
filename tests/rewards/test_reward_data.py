"""Reading, refusing and splitting preferences and ratings."""

from __future__ import annotations

import json

import pytest
import torch

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.reward_data import read_reward_data, reward_data
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows, tiny_data


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_files_of_both_kinds_become_one_data_set(tmp_path):
    pairs = write(tmp_path / "pairs.jsonl", preference_rows(3))
    rated = write(tmp_path / "rated.jsonl", rating_rows(4))
    data = read_reward_data([pairs], [rated], dimensions=DIMENSIONS)
    assert len(data.examples.pairs) == 6 and len(data.examples.rated) == 4
    assert data.sources == ["s0", "s1", "rated"]
    first = data.examples.pairs[0]
    assert data.responses[first[0]] == preference_rows(3)[0]["chosen"]
    assert torch.isnan(data.examples.ratings[0]).tolist() == [False, True]


def test_one_text_is_one_item():
    rows = [{"prompt": "p", "chosen": "a", "rejected": b, "dimension": "logic"} for b in ("b", "c")]
    data = reward_data(rows, dimensions=DIMENSIONS)
    assert data.responses == ["a", "b", "c"]
    assert data.examples.pairs.tolist() == [[0, 1], [0, 2]]


def test_no_prompt_is_on_two_sides_of_a_split():
    data = tiny_data(50)
    prompts = [
        {data.prompts[i] for i in data.splits[name].items().tolist()}
        for name in ("train", "validation", "test")
    ]
    assert not (prompts[0] & prompts[1] or prompts[0] & prompts[2] or prompts[1] & prompts[2])
    assert [len(p) for p in prompts] == [60, 20, 20]
    for name in ("train", "validation", "test"):
        assert torch.bincount(data.splits[name].pair_dimension).float().std() == 0


def test_prompts_keep_their_side_when_others_are_added():
    few, more = tiny_data(40), tiny_data(44)

    def test_prompts(data):
        return {data.prompts[i] for i in data.splits["test"].items().tolist()}

    moved = test_prompts(few) - test_prompts(more)
    assert len(moved) <= 6  # of 16: only those at the boundary


def test_unseen_sources_are_evaluated_on_only():
    data = reward_data(preference_rows(40), dimensions=DIMENSIONS)
    split = data.split(0.2, 0.2, seed=0, unseen=["s1"])
    assert set(split.splits["unseen"].pair_source.tolist()) == {1}
    for name in ("train", "validation", "test"):
        assert set(split.splits[name].pair_source.tolist()) == {0}
    with pytest.raises(ConfigError, match="no source 's9'"):
        data.split(0.2, 0.2, 0, unseen=["s9"])


def test_levels_name_every_statement():
    rows = [{"prompt": "p", "chosen": "a", "rejected": "b", "dimension": "logic"}]
    rated = [{"prompt": "p", "response": "c", "factual": 0.3, "logic": 1.0}]
    levels = reward_data(rows, rated, DIMENSIONS).examples.levels()
    found = {
        (int(i), int(d)): float(t)
        for i, d, t in zip(levels.item, levels.dimension, levels.target, strict=True)
    }
    assert found == pytest.approx({(0, 1): 1.0, (1, 1): 0.0, (2, 0): 0.3, (2, 1): 1.0})
    scores = torch.tensor([[0.0, 0.6], [0.0, 0.6], [0.5, 0.7]])
    right = dict(zip(found, levels.correct(scores).tolist(), strict=True))
    assert right == {(0, 1): True, (1, 1): False, (2, 0): True, (2, 1): False}


@pytest.mark.parametrize(
    ("rows", "rated", "match"),
    [
        ([{"prompt": "p", "chosen": "a", "rejected": "a", "dimension": "logic"}], [], "same text"),
        ([{"prompt": "p", "chosen": "a", "rejected": "b", "dimension": "tone"}], [], "'tone'"),
        ([{"prompt": "p", "chosen": "a", "rejected": "b"}], [], "got None"),
        ([], [{"prompt": "p", "response": "a", "factual": None, "logic": None}], "rates none of"),
        ([], [{"prompt": "p", "response": "a", "factual": 1.2, "logic": None}], r"got 1\.2"),
        ([], [], "hold no row"),
    ],
)
def test_rows_that_say_nothing_are_refused(rows, rated, match):
    with pytest.raises(DataError, match=match):
        reward_data(rows, rated, DIMENSIONS)


def test_bad_files_are_named_with_their_line(tmp_path):
    rows = [*preference_rows(1), {**preference_rows(1)[0], "dimension": "factul"}]
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 3.*did you mean 'factual'"):
        read_reward_data([write(tmp_path / "pairs.jsonl", rows)], dimensions=DIMENSIONS)
    bad = [{**rating_rows(1)[0], "factual": 3}]
    with pytest.raises(DataError, match=r"rated\.jsonl, line 1, field 'factual'.*\[0, 1\]"):
        read_reward_data([], [write(tmp_path / "rated.jsonl", bad)], dimensions=DIMENSIONS)


def test_plain_preferences_need_to_be_told_their_dimension(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "dimension"} for row in preference_rows(2)]
    file = write(tmp_path / "plain.jsonl", rows)
    with pytest.raises(DataError, match="dimension"):
        read_reward_data([file], dimensions=DIMENSIONS)
    data = read_reward_data([file], dimensions=DIMENSIONS, preference_dimension="logic")
    assert set(data.examples.pair_dimension.tolist()) == {1}
    with pytest.raises(ConfigError, match="preference_dimension"):
        read_reward_data([file], dimensions=DIMENSIONS, preference_dimension="tone")
    with pytest.raises(ConfigError, match="at least one file"):
        read_reward_data(dimensions=DIMENSIONS)


def test_shares_that_leave_nothing_are_refused():
    data = reward_data(preference_rows(10), dimensions=DIMENSIONS)
    for shares in ((0.0, 0.1), (0.6, 0.4)):
        with pytest.raises(ConfigError, match="validation, test"):
            data.split(*shares, seed=0)
    lonely = reward_data(preference_rows(1), dimensions=DIMENSIONS)
    with pytest.raises(DataError, match="no example is left to train on"):
        lonely.split(0.2, 0.2, seed=0)


def test_the_fingerprint_changes_with_texts_and_split():
    one, two = tiny_data(20), tiny_data(20)
    assert one.fingerprint() == two.fingerprint()
    assert one.split(0.2, 0.2, seed=1).fingerprint() != one.fingerprint()
    two.responses[0] += "!"
    assert one.fingerprint() != two.fingerprint()
