"""The position graph in training: switched on and off by the callback, on the plain trainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator

from hf_glm_curriculum.attention.callback import PositionGraphCallback
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.registration import enable_position_graph, position_graph_of
from hf_glm_curriculum.errors import ConfigError
from tests.attention.cases import tiny, token_ids

SPARSE = PositionGraphConfig(block_size=16, top_k=48, window=16, selection="content")
EVERYTHING = PositionGraphConfig(block_size=16, top_k=4096)


def rows(count: int = 8, length: int = 100) -> Dataset:
    ids = token_ids(count, length).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": ids})


def train(folder: Path, *callbacks: TrainerCallback, model=None, steps: int = 3, **more):
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        logging_steps=1,
        learning_rate=1e-3,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{"save_strategy": "no", **more},
    )
    trainer = Trainer(
        model if model is not None else tiny("llama"),
        arguments,
        train_dataset=rows(),
        data_collator=default_data_collator,
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_everything_selected_trains_as_the_plain_trainer(tmp_path):
    plain = train(tmp_path / "plain")
    ours = train(tmp_path / "ours", PositionGraphCallback(EVERYTHING))
    assert losses(ours) == pytest.approx(losses(plain), abs=1e-4)
    for a, b in zip(plain.model.parameters(), ours.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def test_on_in_training_off_afterwards_and_reported(tmp_path):
    seen = []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            seen.append(model.config._attn_implementation)

    trainer = train(
        tmp_path,
        PositionGraphCallback(SPARSE),
        Watch(),
        gradient_checkpointing=True,
        save_strategy="steps",
        save_steps=2,
    )
    assert seen == ["position_graph"] * 3
    assert position_graph_of(trainer.model) is None
    assert trainer.model.config._attn_implementation != "position_graph"
    assert not hasattr(trainer.model.config, "position_graph")
    saved = json.loads((tmp_path / "checkpoint-2" / "config.json").read_text())
    assert saved["position_graph"]["top_k"] == 48
    logged = [entry for entry in trainer.state.log_history if "position_graph/keys" in entry]
    assert [entry["position_graph/keys"] for entry in logged] == [48.0] * 3
    assert 0 < logged[0]["position_graph/kept_share"] < 1
    assert logged[0]["position_graph/backend/gather"] == 1.0
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert sum("position_graph/keys" in line for line in lines) == 3


def test_a_run_that_dies_leaves_no_graph_behind(tmp_path):
    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("killed")

    model, callback = tiny("llama"), PositionGraphCallback(SPARSE)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, callback, Dies(), model=model)
    callback.detach()
    assert position_graph_of(model) is None


def test_a_model_enabled_by_hand_stays_enabled(tmp_path):
    model = tiny("llama")
    handle = enable_position_graph(model, SPARSE)
    with pytest.raises(ConfigError, match="enabled before training"):
        train(tmp_path / "a", PositionGraphCallback(EVERYTHING), model=model)
    train(tmp_path / "b", PositionGraphCallback(), model=model)
    assert position_graph_of(model) is handle


def test_keep_leaves_it_on(tmp_path):
    trainer = train(tmp_path, PositionGraphCallback({"block_size": 16, "top_k": 48}, keep=True))
    assert position_graph_of(trainer.model).config.top_k == 48
