"""Metrics reach every tracker, the trainer's history and the run folder, once each."""

from __future__ import annotations

import errno
import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from packaging.version import Version
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_glm_curriculum import reporting
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.reporting import RunReporter, read_metrics, reporter_for

TAG = "ours/steps_seen"


class Reporting(TrainerCallback):
    """The smallest callback of ours: one metric at each of the trainer's logs."""

    def __init__(self, tag: str = TAG, trackers_hidden: bool = False) -> None:
        self.tag = tag
        self.trackers_hidden = trackers_hidden

    def on_train_begin(self, args, state, control, **kwargs):
        self.reporter = reporter_for(args.output_dir)
        self.reporter.begin(args, state, control)

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.reporter.trainer_log(args, state, logs)
        if "loss" in logs:
            metrics = {self.tag: torch.tensor(float(state.global_step))}
            self.reporter.report(metrics, args, state, control, kwargs.get("model"))

    def on_train_end(self, args, state, control, **kwargs):
        self.reporter.end()


def rows(count: int = 16) -> Dataset:
    tokens = [[4 + (7 * i + j) % 250 for j in range(12)] for i in range(count)]
    return Dataset.from_dict({"input_ids": tokens, "labels": tokens})


def arguments(folder: Path, **changes) -> TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "report_to": "tensorboard",
        "logging_steps": 1,
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    return TrainingArguments(**settings)


def event_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → [(step, value)] of all TensorBoard event files below a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensorboard's own imports
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found: dict[str, list[tuple[int, float]]] = {}
        for file in folder.rglob("events.out.tfevents.*"):
            events = EventAccumulator(str(file)).Reload()
            for tag in events.Tags()["scalars"]:
                found.setdefault(tag, []).extend((e.step, e.value) for e in events.Scalars(tag))
    return found


def test_metrics_reach_tensorboard_history_and_file(tmp_path, tiny_llama):
    trainer = Trainer(
        tiny_llama, arguments(tmp_path), train_dataset=rows(), callbacks=[Reporting()]
    )
    trainer.train()

    assert sorted(event_scalars(tmp_path)[f"train/{TAG}"]) == [(s, float(s)) for s in range(1, 5)]
    history = [entry for entry in trainer.state.log_history if TAG in entry]
    assert [entry["step"] for entry in history] == [1, 2, 3, 4]
    lines = read_metrics(tmp_path)
    assert [line[TAG] for line in lines if TAG in line] == [1.0, 2.0, 3.0, 4.0]
    assert len([line for line in lines if "loss" in line]) == 4
    assert "train_runtime" in lines[-1]
    assert reporting._open_reporters == {}


def test_two_callbacks_write_the_trainer_log_once(tmp_path, tiny_llama):
    callbacks = [Reporting("one/x"), Reporting("two/x")]
    args = arguments(tmp_path)
    Trainer(tiny_llama, args, train_dataset=rows(), callbacks=callbacks).train()

    lines = read_metrics(tmp_path)
    assert len([line for line in lines if "loss" in line]) == 4
    assert len([line for line in lines if "one/x" in line]) == 4
    assert len([line for line in lines if "two/x" in line]) == 4
    scalars = event_scalars(tmp_path)
    assert len(scalars["train/one/x"]) == len(scalars["train/two/x"]) == 4


def test_resume_truncates_what_came_after_the_checkpoint(tmp_path, tiny_model):
    def train(**kwargs):
        trainer = Trainer(
            tiny_model(), arguments(tmp_path), train_dataset=rows(), callbacks=[Reporting()]
        )
        trainer.train(**kwargs)
        return [line for line in read_metrics(tmp_path) if "loss" in line or TAG in line]

    straight = train()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"loss": 3.0, "st')  # what a kill leaves
    resumed = train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert [line["step"] for line in resumed] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [line.get("loss") for line in resumed] == pytest.approx(
        [line.get("loss") for line in straight]
    )


def test_a_new_run_keeps_the_earlier_file_aside(tmp_path, tiny_model):
    for _ in range(2):
        trainer = Trainer(
            tiny_model(), arguments(tmp_path), train_dataset=rows(), callbacks=[Reporting()]
        )
        trainer.train()
    assert len([line for line in read_metrics(tmp_path) if TAG in line]) == 4
    assert (tmp_path / "metrics.previous.jsonl").exists()


def test_after_an_exception_the_next_run_starts_clean(tmp_path, tiny_model):
    class Failing(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("stop here")

    ours = Reporting()
    args = arguments(tmp_path)
    failing = Trainer(tiny_model(), args, train_dataset=rows(), callbacks=[ours, Failing()])
    with pytest.raises(RuntimeError, match="stop here"):
        failing.train()
    Trainer(tiny_model(), args, train_dataset=rows(), callbacks=[ours]).train()
    assert [line[TAG] for line in read_metrics(tmp_path) if TAG in line] == [1.0, 2.0, 3.0, 4.0]
    assert reporting._open_reporters == {}


def test_trackers_of_our_own_where_no_handler_calls(tmp_path, caplog):
    args, state = arguments(tmp_path), TrainerState(global_step=3, epoch=0.5)
    reporter = RunReporter(tmp_path)
    reporter.begin(args, TrainerState())
    reporter.report({TAG: 7.0}, args, state)
    reporter.end()
    assert event_scalars(tmp_path)[f"train/{TAG}"] == [(3, 7.0)]
    assert "trackers were not found" in caplog.text


def test_other_ranks_write_nothing(tmp_path):
    args = arguments(tmp_path / "run")
    state = TrainerState(is_world_process_zero=False)
    reporter = RunReporter(tmp_path / "run")
    reporter.begin(args, state, TrainerControl())
    reporter.trainer_log(args, state, {"loss": 1.0})
    reporter.report({TAG: 1.0}, args, state)
    reporter.end()
    assert not (tmp_path / "run").exists()
    assert state.log_history == []


def test_values_json_cannot_hold_become_null(tmp_path):
    args, state = arguments(tmp_path, report_to="none"), TrainerState()
    reporter = RunReporter(tmp_path)
    reporter.begin(args, state)
    reporter.report({"a": float("nan"), "b": float("inf"), "c": 1.5}, args, state)
    line = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (line["a"], line["b"], line["c"]) == (None, None, 1.5)


def test_a_full_disk_leaves_whole_lines_only(tmp_path, monkeypatch):
    args, state = arguments(tmp_path, report_to="none"), TrainerState()
    reporter = RunReporter(tmp_path)
    reporter.begin(args, state)
    reporter.report({"a": 1.0}, args, state)
    real_write = os.write

    def short_then_full(handle, data):
        if len(data) > 5:
            return real_write(handle, bytes(data[:5]))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(StateError, match=r"metrics\.jsonl: No space left on device; free some"):
        reporter.report({"a": 2.0}, args, state)
    monkeypatch.undo()
    assert [line["a"] for line in read_metrics(tmp_path)] == [1.0]


def test_a_run_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    args = arguments(tmp_path, report_to="none")
    with pytest.raises(StateError) as caught:
        RunReporter(tmp_path / "file" / "run").begin(args, TrainerState())
    assert "Not a directory" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\nnot json\n{"a": 2}\n')
    with pytest.raises(StateError, match="line 2 is not JSON"):
        read_metrics(tmp_path)
    with pytest.raises(StateError, match="cannot read"):
        read_metrics(tmp_path / "absent")


@pytest.mark.parametrize("loss_type", ["nll", "chunked_nll"])
def test_sft_trainer(tmp_path, tiny_llama, tiny_tokenizer, loss_type):
    trl = pytest.importorskip("trl")
    if loss_type == "chunked_nll" and Version(trl.__version__) >= Version("1.13"):
        pytest.skip("deprecated since TRL 1.13: nll computes in chunks there")
    texts = [{"prompt": f"What is {i}+1?", "completion": f" {i + 1}"} for i in range(8)]
    args = trl.SFTConfig(
        output_dir=str(tmp_path),
        report_to="tensorboard",
        logging_steps=1,
        max_steps=2,
        per_device_train_batch_size=2,
        save_steps=1,
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        loss_type=loss_type,
    )
    trainer = trl.SFTTrainer(
        tiny_llama,
        args,
        train_dataset=Dataset.from_list(texts),
        processing_class=tiny_tokenizer,
        callbacks=[Reporting()],
    )
    trainer.train()
    assert sorted(event_scalars(tmp_path)[f"train/{TAG}"]) == [(1, 1.0), (2, 2.0)]
    lines = read_metrics(tmp_path)
    assert [line[TAG] for line in lines if TAG in line] == [1.0, 2.0]
    assert all("mean_token_accuracy" in line for line in lines if "loss" in line)
