"""With the real mixture: what is drawn follows the schedule, and a run resumes exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from hf_glm_curriculum import CurriculumMixture, MixtureCallback
from hf_glm_curriculum.migration.callback import ObjectiveMigrationCallback
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.schedule import schedule_for
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Collator, arguments, random_rows

CONFIG = MigrationConfig(window=0.5, pretrain_steps=12, increment=0.004, post_ramp=4)
STEPS = 18
HOSTS = pytest.mark.parametrize("sft", [False, True], ids=["trainer", "sft"])


def mixture(streamed: bool = False) -> CurriculumMixture:
    sources: dict[str, Any] = {
        "web": Dataset.from_list(random_rows(30, seed=1)),
        "chat": Dataset.from_list(random_rows(30, seed=2)),
    }
    if streamed:
        sources = {name: rows.to_iterable_dataset() for name, rows in sources.items()}
    return CurriculumMixture(sources, {"web": 1.0, "chat": 0.0})


def trained(
    folder: Any, mixed: CurriculumMixture, sft: bool, resume: Any = None, **more: Any
) -> Any:
    callback = ObjectiveMigrationCallback(
        CONFIG, mixture=mixed, pretrain_source="web", instruction_source="chat"
    )
    both = [callback, *more.pop("callbacks", [])]
    settings = {"max_steps": STEPS, "per_device_train_batch_size": 4, **more}
    common = {"model": build_model(), "train_dataset": mixed, "callbacks": both}
    if sft:
        skip = {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": 64}
        args = arguments(folder, SFTConfig, **skip, **settings)
        trainer = SFTTrainer(args=args, processing_class=build_tokenizer(), **common)
    else:
        args = arguments(folder, **settings)
        trainer = Trainer(args=args, data_collator=Collator(), **common)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def series(folder: Any, name: str) -> dict[int, float]:
    lines = read_metrics(folder)
    return {m["step"]: m[f"migration/{name}"] for m in lines if f"migration/{name}" in m}


@pytest.mark.parametrize("streamed", [False, True], ids=["rows", "streams"])
@HOSTS
def test_what_is_trained_on_follows_the_schedule(sft, streamed, tmp_path, caplog):
    trained(tmp_path, mixture(streamed), sft)
    schedule = schedule_for(CONFIG, STEPS)
    asked = series(tmp_path, "ratio_asked")
    assert asked == {s + 1: pytest.approx(schedule.injected_ratio(s)) for s in range(STEPS)}
    drawn, held = series(tmp_path, "ratio_drawn"), series(tmp_path, "ratio_trained")
    assert drawn == {step: pytest.approx(value) for step, value in held.items()}
    assert all(drawn[step] == 0 for step in range(1, 7)) and drawn[STEPS] == 1.0
    window = range(7, 13)
    wanted, found = (sum(one[step] for step in window) / 6 for one in (asked, drawn))
    assert found == pytest.approx(wanted, abs=0.15) and found > 0
    assert "belong to no known source" not in caplog.text


@pytest.mark.parametrize(
    ("sft", "step"),
    [(False, 4), (True, 8), (False, 14)],
    ids=["trainer-before", "sft-window", "trainer-ramp"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(sft, step, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    straight = trained(tmp_path / "a", mixture(), sft, **saving)
    folder = str(tmp_path / "a" / f"checkpoint-{step}")
    resumed = trained(tmp_path / "b", mixture(), sft, resume=folder, **saving)
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    for name in ("ratio_asked", "ratio_drawn", "loss_pretrain", "progress"):
        whole, rest = series(tmp_path / "a", name), series(tmp_path / "b", name)
        assert rest == {k: v for k, v in whole.items() if k > step}


@pytest.mark.parametrize("whole", [False, True], ids=["late-window", "window-from-step-0"])
@pytest.mark.parametrize("order", [1, -1])
def test_beside_the_mixtures_own_callback(order, whole, tmp_path):
    """Both save the mixture's state, and both start it anew; neither loses what the other asked."""
    config = MigrationConfig(window=1.0, increment=0.02) if whole else CONFIG

    def run(folder: Any, own: bool) -> Any:
        mixed = mixture()
        migration = ObjectiveMigrationCallback(
            config, mixture=mixed, pretrain_source="web", instruction_source="chat"
        )
        callbacks = [MixtureCallback(mixed), migration] if own else [migration]
        trainer = Trainer(
            model=build_model(),
            args=arguments(folder, max_steps=STEPS, per_device_train_batch_size=4),
            train_dataset=mixed,
            data_collator=Collator(),
            callbacks=callbacks[::order],
        )
        trainer.train()
        return trainer, mixed

    (alone, log), (both, beside) = run(tmp_path / "a", False), run(tmp_path / "b", True)
    assert beside.changes == log.changes
    assert beside.drawn(STEPS) == log.drawn(STEPS)
    assert all(map(torch.equal, both.model.parameters(), alone.model.parameters()))
    schedule = schedule_for(config, STEPS)
    asked = series(tmp_path / "b", "ratio_asked")
    assert asked == {s + 1: pytest.approx(schedule.injected_ratio(s)) for s in range(STEPS)}


def test_accumulated_steps_count_as_one(tmp_path):
    trained(
        tmp_path, mixture(), False, per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    schedule = schedule_for(CONFIG, STEPS)
    asked = series(tmp_path, "ratio_asked")
    assert asked == {s + 1: pytest.approx(schedule.injected_ratio(s)) for s in range(STEPS)}


def test_stratified_steps_hold_both_objectives(tmp_path):
    sources = {
        "web": Dataset.from_list(random_rows(30, seed=1)),
        "chat": Dataset.from_list(random_rows(30, seed=2)),
    }
    mixed = CurriculumMixture(sources, {"web": 1.0, "chat": 0.0}, stratify=4)
    trained(tmp_path, mixed, False)
    both = series(tmp_path, "steps_with_both")
    assert all(both[step] == 0.0 for step in range(1, 7))
    assert all(both[step] == 1.0 for step in range(7, 17))
