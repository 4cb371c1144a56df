"""End-to-end training: the loss is the plain mean, accumulation changes nothing, runs go on."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.rewards import finetune as module
from hf_glm_curriculum.rewards.finetune import finetune_backbone, last_checkpoint
from hf_glm_curriculum.rewards.objective import balanced_order, classes, dimension_losses
from hf_glm_curriculum.rewards.train import RewardTrainingResult, features_of, finish
from hf_glm_curriculum.rewards.training_config import (
    BackboneTrainingConfig,
    RewardTrainingConfig,
)
from tests.rewards.examples import DIMENSIONS, tiny_data


def config(**tuning) -> RewardTrainingConfig:
    settings = {
        "backbone": "full",
        "backbone_epochs": 2,
        "backbone_batch_size": 8,
        "backbone_learning_rate": 3e-3,
        "logging_steps": 1,
        **tuning,
    }
    return RewardTrainingConfig(
        learning_rate=3e-3, confidence_epochs=2, tuning=BackboneTrainingConfig(**settings)
    )


@pytest.fixture
def fresh(tiny_model, tiny_tokenizer):
    def build() -> StructuredRewardModel:
        torch.manual_seed(3)
        return StructuredRewardModel.from_backbone(
            tiny_model(), tiny_tokenizer, DIMENSIONS, head_hidden_size=8, head_dropout=0.0
        )

    return build


@pytest.fixture
def data():
    return tiny_data(16)


def test_the_logged_loss_is_the_mean_over_the_first_batch(fresh, data, tmp_path):
    model = fresh()
    settings = config(backbone_epochs=0.5)
    start = copy.deepcopy(model)
    finetune_backbone(model, data, settings, tmp_path, cpu=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train = data.splits["train"]
    first = balanced_order(classes(train, 2), 0, 0)[:8]
    out = start.score_texts(data.prompts, data.responses)
    pairs = torch.zeros(len(train.pairs), dtype=torch.bool)
    pairs[first] = True
    part = train.select(pairs, torch.zeros(0, dtype=torch.bool))
    sums, counts = dimension_losses(out.logits, part, settings.center_weight)
    expected = float(sums.sum() / counts.sum())
    assert lines[0]["loss"] == pytest.approx(expected, abs=2e-4)  # the trainer logs 4 digits


def test_every_epoch_has_an_order_of_its_own(fresh, data, tmp_path, monkeypatch):
    seen = []
    order = module.balanced_order
    monkeypatch.setattr(
        module, "balanced_order", lambda g, s, epoch, b: seen.append(epoch) or order(g, s, epoch, b)
    )
    finetune_backbone(fresh(), data, config(backbone_epochs=3), tmp_path, cpu=True)
    assert seen == [0, 1, 2]


def test_accumulation_changes_nothing(fresh, data, tmp_path):
    weights = []
    for name, size, steps in (("one", 8, 1), ("two", 4, 2)):
        model = fresh()
        settings = config(
            backbone_batch_size=size, gradient_accumulation=steps, backbone_epochs=0.5, warmup=0
        )
        finetune_backbone(model, data, settings, tmp_path / name, cpu=True)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert (weights[0] - weights[1]).abs().max() < 2e-4


@pytest.mark.parametrize("how", ["lora", "last_k", "full"])
def test_each_mode_trains_what_it_says_and_learns(fresh, data, tmp_path, how):
    if how == "lora":
        pytest.importorskip("peft")
    model = fresh()
    before = {k: v.clone() for k, v in model.backbone.state_dict().items()}
    # Checkpointing must not cut the gradient off below frozen embeddings.
    tuning = {"last_k": 1, "lora_rank": 4, "gradient_checkpointing": how == "lora"}
    settings = config(backbone=how, backbone_epochs=4, **tuning)
    finetune_backbone(model, data, settings, tmp_path, cpu=True)
    after = model.backbone.state_dict()
    assert after.keys() == before.keys(), "adapters are merged"
    changed = {k for k, v in after.items() if not torch.equal(v, before[k])}
    if how == "last_k":
        assert changed and all(k.startswith(("layers.1.", "norm.")) for k in changed)
    elif how == "lora":
        assert changed and "embed_tokens.weight" not in changed
    else:
        assert "embed_tokens.weight" in changed
    assert model.backbone_is_frozen and model.config.lora is None
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    assert min(losses) < 0.65 and {"eval_loss_factual", "eval_loss_logic"} <= lines[-2].keys()


def test_levels_and_confidence_after_tuning_come_from_the_validation_split(fresh, data, tmp_path):
    model = fresh()
    settings = config()
    finetune_backbone(model, data, settings, tmp_path, cpu=True)
    result = RewardTrainingResult()
    finish(model, features_of(model, data, settings, None), data, settings, result, None)
    for name in DIMENSIONS:
        figures = result.figures["validation"][name]
        middle = (figures["mean_chosen"] + figures["mean_rejected"]) / 2
        assert middle == pytest.approx(0.5, abs=1e-4)
    model.save_pretrained(tmp_path / "model")
    again = StructuredRewardModel.from_pretrained(tmp_path / "model")
    out = again.score_texts(data.prompts[:3], data.responses[:3])
    torch.testing.assert_close(out.scores, result.output.scores[:3], atol=1e-6, rtol=0)


def test_a_stopped_run_goes_on_from_its_checkpoint(fresh, data, tmp_path):
    straight = fresh()
    finetune_backbone(straight, data, config(backbone_epochs=2), tmp_path / "straight", cpu=True)
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs):
            if state.epoch >= 1:
                control.should_save = True

        def on_save(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    folder = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        finetune_backbone(fresh(), data, config(), folder, cpu=True, callbacks=[Stop()])
    checkpoint = last_checkpoint(folder)
    assert checkpoint is not None
    resumed = fresh()
    finetune_backbone(resumed, data, config(), folder, cpu=True, resume=checkpoint)
    for one, two in zip(resumed.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


def test_no_checkpoint_where_there_is_none(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    assert last_checkpoint(tmp_path) is None
