"""Hyperparameter search: whatever callback keeps a state keeps it in the trial's own folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from hf_glm_curriculum import (
    CompositeLoss,
    CompositeLossCallback,
    CurriculumMixture,
    LossSwapCallback,
    MigrationConfig,
    MixtureCallback,
    ObjectiveMigrationCallback,
    RewardHackingMonitor,
)
from hf_glm_curriculum.losses.terms import CausalLMLoss
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.storage import load_tensors
from tests.lifespan.runs import random_rows
from tests.trials import search_trials

STEPS = 2


def losses() -> tuple[list[Any], Any]:
    composite = CompositeLoss({"lm": CausalLMLoss()})
    return [CompositeLossCallback(composite), LossSwapCallback(composite)], None


def sources() -> dict[str, Dataset]:
    return {n: Dataset.from_list(random_rows(8, seed=s)) for s, n in enumerate(("web", "chat"))}


def migration() -> tuple[list[Any], Any]:
    mixed = CurriculumMixture(sources(), {"web": 1.0, "chat": 0.0})
    names = {"pretrain_source": "web", "instruction_source": "chat"}
    config = MigrationConfig(window=1.0)
    return [ObjectiveMigrationCallback(config, mixture=mixed, **names)], mixed


def mixture() -> tuple[list[Any], Any]:
    mixed = CurriculumMixture(sources(), {"web": 0.5, "chat": 0.5})
    return [MixtureCallback(mixed)], mixed


def monitor() -> tuple[list[Any], Any]:
    return [RewardHackingMonitor(sources={"reward": "loss"})], None


@pytest.mark.parametrize(
    ("make", "states", "outputs", "metric"),
    [
        (losses, ["losses.json", "loss_swap.json"], ["control.status.json"], "losses/lm"),
        (migration, ["migration.safetensors"], ["migration"], "migration/ratio_asked"),
        (mixture, ["mixture.json"], [], "mixture/chat_asked"),
        (monitor, ["reward_monitor.json"], [], "reward_monitor/alarms"),
    ],
    ids=["losses", "migration", "mixture", "reward-monitor"],
)
def test_a_trials_state_lies_in_the_trials_folder(
    monkeypatch, tmp_path, make, states, outputs, metric
):
    callbacks, data = make()
    search_trials(
        monkeypatch,
        tmp_path,
        callbacks,
        data=data,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=STEPS,
    )
    for number in range(2):
        folder = tmp_path / f"run-{number}"
        saved = folder / f"checkpoint-{STEPS}" / "hf_glm_curriculum"
        assert sorted(path.name for path in saved.iterdir()) == sorted(states)
        for name in states:
            assert _holds_something(saved / name)
        assert all((folder / name).exists() for name in outputs)
        lines = [line for line in read_metrics(folder) if metric in line]
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert {path.name for path in tmp_path.iterdir()} <= {"run-0", "run-1", "runs"}


def _holds_something(path: Path) -> bool:
    if path.suffix == ".json":
        return bool(json.loads(path.read_text()))
    return load_tensors(path)[1]["step"] == str(STEPS)
