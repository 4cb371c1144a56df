from __future__ import annotations

import json

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.construct import SamplingConfig
from hf_glm_curriculum.rewards.refresh import RefreshConfig, rating_sheet, refresh_reward_model
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from tests.conftest import build_model, build_tokenizer
from tests.rewards.scorers import HashScorer, ScriptedScorer

DIMENSIONS = ("factual", "logic")
CONFIG = RefreshConfig(
    sampling=SamplingConfig(candidates=3, max_new_tokens=4),
    training=RewardTrainingConfig(epochs=3, folds=2, confidence_epochs=2, batch_size=8),
    validation=0.3,
)


def reward_model() -> StructuredRewardModel:
    torch.manual_seed(0)
    return StructuredRewardModel.from_backbone(
        build_model(seed=1).base_model,
        tokenizer=build_tokenizer(),
        dimensions=DIMENSIONS,
        head_hidden_size=8,
    )


def by_length(prompt, answers, row):
    return [float(len(answer)) for answer in answers]


def preferences(number: int, offset: int = 0) -> list[dict[str, str]]:
    """Pairs that a head can learn: the answer that says the truth is the longer one."""
    return [
        {
            "prompt": f"question {n}",
            "chosen": f"a full answer to {n}",
            "rejected": str(n),
            "dimension": DIMENSIONS[n % 2],
        }
        for n in range(offset, offset + number)
    ]


def round_of(tmp_path, model, policy=None, **settings):
    given = {
        "rankers": dict.fromkeys(DIMENSIONS, by_length),
        "replay": preferences(12),
        "config": CONFIG,
        "show_progress": False,
        **settings,
    }
    return refresh_reward_model(
        model,
        policy or build_model(),
        build_tokenizer(),
        [{"prompt": f"p{n}"} for n in range(6)],
        preferences(6, offset=100),
        tmp_path / "round",
        **given,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One real round: the model before it, a copy of its tensors, the result and the folder."""
    folder = tmp_path_factory.mktemp("refresh")
    model = reward_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return model, before, round_of(folder, model), folder / "round"


def test_a_round_samples_ranks_retrains_and_compares(trained):
    model, before, result, folder = trained
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert result.pairs and {row["dimension"] for row in result.pairs} <= set(DIMENSIONS)
    assert all(len(row["chosen"]) > len(row["rejected"]) for row in result.pairs)
    moved = [n for n, t in result.candidate.state_dict().items() if not torch.equal(t, before[n])]
    assert any("heads" in name for name in moved)
    assert not any(name.startswith("backbone") for name in moved)
    drift = json.loads((folder / "drift.json").read_text())
    assert set(drift["fixed"]) == set(DIMENSIONS) and drift["accepted"] is result.accepted
    assert drift["policy_pairs"]["factual"]["pairs"] > 0
    assert result.drift.dimensions["logic"].pairs == 3
    assert (folder / "model").exists() is result.accepted


def test_a_new_model_that_lost_nothing_is_taken_and_saved(tmp_path, trained):
    model = trained[2].candidate
    result = round_of(tmp_path, model, trainer=lambda *args, **kwargs: None)
    assert result.accepted and result.model is result.candidate
    assert all(one.distance == 0 for one in result.drift.dimensions.values())
    loaded = StructuredRewardModel.from_pretrained(tmp_path / "round" / "model")
    texts = ["q"], ["an answer"]
    assert torch.allclose(loaded.score_texts(*texts).scores, model.score_texts(*texts).scores)


def untrained(model, data, config, *, state_dir):
    """A trainer that makes the heads worse: it turns their scores around."""
    with torch.no_grad():
        for name, parameter in model.score.named_parameters():
            if name.endswith("weight") and parameter.shape[0] == 1:
                parameter.neg_()
    return data


def test_a_new_model_that_lost_something_is_not_taken(tmp_path, caplog, trained):
    good = trained[2].candidate
    result = round_of(tmp_path / "again", good, trainer=untrained)
    assert not result.accepted and result.model is good
    assert not (tmp_path / "again" / "round" / "model").exists()
    assert "the old reward model stays" in caplog.text
    assert result.drift.losses(0.02)


def test_prompts_of_the_fixed_set_are_not_trained_on(tmp_path):
    seen = {}

    def trainer(model, data, config, *, state_dir):
        seen["prompts"] = set(data.prompts)

    leak = preferences(4, offset=102)
    ratings = [{"prompt": "question 101", "response": "r", "factual": 0.5, "logic": None}]
    round_of(
        tmp_path, reward_model(), trainer=trainer, replay=[*preferences(12), *leak], ratings=ratings
    )
    assert "question 0" in seen["prompts"]
    assert not {f"question {n}" for n in range(100, 106)} & seen["prompts"]


def test_a_round_called_again_does_not_sample_again(tmp_path):
    model, policy = reward_model(), build_model()
    first = round_of(tmp_path, model, policy, trainer=untrained)
    calls = []
    generate = policy.generate
    policy.generate = lambda *args, **kwargs: calls.append(1) or generate(*args, **kwargs)
    again = round_of(tmp_path, model, policy, trainer=untrained)
    assert again.pairs == first.pairs and calls == []


def test_a_sheet_puts_the_least_certain_first(tmp_path):
    sure = [[0.9, 0.9, 0.9], [0.9, 0.1, 0.9], [0.4, 0.9, 0.9], [0.4, 0.9, 0.9]]
    model = ScriptedScorer([[0.5] * 3] * 4, sure)
    texts = ["a", "b", "c", "c"]
    path = tmp_path / "sheet.jsonl"
    assert rating_sheet(model, texts, texts, path) == 3
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [row["response"] for row in rows] == ["b", "c", "a"]
    assert rows[0] == {
        "prompt": "b",
        "response": "b",
        "factual": None,
        "logic": None,
        "compliance": None,
    }
    # Filled in, it is a rating file.
    filled = "".join(json.dumps({**row, "factual": 0.5}) + "\n" for row in rows)
    path.write_text(filled, "utf-8")
    assert load_records(path, "rating")["factual"] == [0.5] * 3
    assert rating_sheet(model, texts, texts, path, limit=1) == 1
    with pytest.raises(DataError, match="at least one response"):
        rating_sheet(HashScorer(), [], [], path)


def test_bad_settings_are_named():
    with pytest.raises(ConfigError, match="validation"):
        RefreshConfig(validation=1.0)
    with pytest.raises(ConfigError, match="tolerance"):
        RefreshConfig(tolerance=-0.1)
