"""Training end to end on a tiny model: figures, resumption, unseen sources, the card."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.errors import ModelError
from hf_glm_curriculum.rewards import train as module
from hf_glm_curriculum.rewards.plots import (
    reliability_png,
    risk_coverage_png,
    scores_png,
    training_png,
)
from hf_glm_curriculum.rewards.reward_data import reward_data
from hf_glm_curriculum.rewards.shift import warnings_of
from hf_glm_curriculum.rewards.train import train_reward_model
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows

CONFIG = RewardTrainingConfig(
    epochs=8, batch_size=16, learning_rate=5e-3, folds=2, confidence_epochs=4
)


@pytest.fixture
def model(tiny_llama, tiny_tokenizer):
    def build():
        torch.manual_seed(2)
        return StructuredRewardModel.from_backbone(
            tiny_llama, tiny_tokenizer, DIMENSIONS, head_hidden_size=32, pooling="mean"
        )

    return build()


@pytest.fixture
def data():
    rows = [*preference_rows(40), *preference_rows(6, seed=9, source="elsewhere")]
    return reward_data(rows, dimensions=DIMENSIONS).split(0.2, 0.2, 0, unseen=["elsewhere"])


def test_training_measures_every_split_and_survives_saving(model, data, tmp_path):
    result = train_reward_model(model, data, CONFIG, state_dir=tmp_path / "s")
    assert set(result.figures) == {"train", "validation", "test", "unseen"}
    test = result.figures["test"]
    for name in DIMENSIONS:
        figures = test[name]
        assert figures["pairs"] == 8 and figures["statements"] == 16
        assert figures["pairwise_accuracy"] > 0.8
        assert 0 <= figures["ece"] <= 1 and figures["ece_before"] is not None
    validation = result.figures["validation"]
    for name in DIMENSIONS:
        means = validation[name]["mean_chosen"], validation[name]["mean_rejected"]
        assert sum(means) / 2 == pytest.approx(0.5, abs=1e-4), "levels are anchored"
    assert 0 < result.joint_entropy <= 1
    model.save_pretrained(tmp_path / "model")
    again = StructuredRewardModel.from_pretrained(tmp_path / "model")
    out = again.score_texts(data.prompts[:4], data.responses[:4])
    torch.testing.assert_close(out.scores, result.output.scores[:4], atol=1e-6, rtol=0)
    torch.testing.assert_close(out.confidence, result.output.confidence[:4], atol=1e-6, rtol=0)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "On unseen sources:" in card and "pairwise accuracy" in card
    assert again.config.calibration["test"]["logic"]["pairs"] == 8


def test_only_the_heads_changed(model, data):
    before = {k: v.clone() for k, v in model.backbone.state_dict().items()}
    train_reward_model(model, data, CONFIG, shift_check=False)
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, before[name])


def test_sources_left_out_say_how_far_scores_carry(model):
    # Source s1 is labelled the other way round: no head trained on s0 can be right on it.
    rows = preference_rows(60)
    for row in rows:
        if row["source"] == "s1":
            row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
            row["prompt"] = "other " + row["prompt"]
    data = reward_data(rows, dimensions=DIMENSIONS).split(0.2, 0.2, 0)
    result = train_reward_model(model, data, CONFIG)
    assert set(result.shift) == {"s0", "s1", "warnings"}
    assert result.shift["s1"]["logic"]["pairs"] == 60 // 2
    assert result.shift["s1"]["logic"]["pairwise_accuracy"] < 0.3


def test_only_a_loss_beyond_chance_is_warned_of():
    left = {"s": {"logic": {"pairs": 200, "pairwise_accuracy": 0.6}}}
    many = {"s": {"logic": {"pairs": 200, "pairwise_accuracy": 0.8}}}
    few = {"s": {"logic": {"pairs": 5, "pairwise_accuracy": 0.8}}}
    (line,) = warnings_of(left, many)
    assert line.startswith("logic: 60% of the pairs of s right without training on it, 80% with")
    assert warnings_of(left, few) == [] == warnings_of(left, left)


def test_a_dimension_of_one_source_cannot_be_left_out(model):
    data = reward_data(preference_rows(20, source="only"), dimensions=DIMENSIONS).split(0.2, 0, 0)
    assert train_reward_model(model, data, CONFIG).shift == {"warnings": []}


def test_a_killed_run_ends_as_an_uninterrupted_one(
    tiny_llama, tiny_tokenizer, data, tmp_path, monkeypatch
):
    def fresh():
        torch.manual_seed(2)
        return StructuredRewardModel.from_backbone(
            tiny_llama, tiny_tokenizer, DIMENSIONS, head_hidden_size=32
        )

    whole = train_reward_model(fresh(), data, CONFIG, shift_check=False)
    folders = {"state_dir": tmp_path / "state", "cache_dir": tmp_path / "features"}

    def die(epoch, metrics):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_reward_model(fresh(), data, CONFIG, **folders, on_epoch=die, shift_check=False)
    read = module.pooled_features

    def only_read(model, *args, **kwargs):
        monkeypatch.setattr(model, "pooled", lambda *a, **k: pytest.fail("computed again"))
        return read(model, *args, **kwargs)

    monkeypatch.setattr(module, "pooled_features", only_read)
    torch.rand(3)
    again = train_reward_model(fresh(), data, CONFIG, **folders, shift_check=False)
    assert len(again.history) == len(whole.history)
    for name in ("scores", "confidence", "logits"):
        assert torch.equal(getattr(again.output, name), getattr(whole.output, name))


def test_other_data_or_settings_do_not_go_on_from_there(model, data, tmp_path):
    train_reward_model(model, data, CONFIG, state_dir=tmp_path, shift_check=False)
    other = RewardTrainingConfig(**{**vars(CONFIG), "epochs": 2})
    result = train_reward_model(model, data, other, state_dir=tmp_path, shift_check=False)
    assert len(result.history) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_ratings_and_preferences_together_with_missing_dimensions(model):
    data = reward_data(preference_rows(20), rating_rows(60), DIMENSIONS).split(0.2, 0.2, 0)
    result = train_reward_model(model, data, CONFIG, shift_check=False)
    assert result.anchors == [0.0, 0.0], "ratings fix the levels"
    for name in DIMENSIONS:
        assert result.figures["test"][name]["rating_error"] < 0.5


def test_weights_that_are_not_finite_are_named(model, data):
    next(model.backbone.parameters()).data.fill_(float("nan"))
    with pytest.raises(ModelError):
        train_reward_model(model, data, CONFIG, shift_check=False)


@pytest.mark.pictures
def test_pictures_are_written(model, data, tmp_path):
    result = train_reward_model(model, data, CONFIG, shift_check=False)
    figures = result.figures["test"]
    reliability_png(figures, 0.85, tmp_path / "reliability.png")
    scores_png(result.output.scores, data.splits["test"], DIMENSIONS, tmp_path / "s.png", "test")
    risk_coverage_png(figures, tmp_path / "risk.png")
    training_png(result.history, DIMENSIONS, tmp_path / "training.png")
    for path in tmp_path.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
    assert len(list(tmp_path.glob("*.png"))) == 4
