"""What the end of an epoch does is done once, wherever between two lines of it a kill falls."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum import SampleLifespanCallback
from hf_glm_curriculum.commands.host_trainer import ending_in_time
from hf_glm_curriculum.data.collator import SftCollator
from hf_glm_curriculum.evaluation.heldout import HeldOutLossCallback
from hf_glm_curriculum.evaluation.sample_callback import SampleGenerationCallback
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import build_model, build_tokenizer

ROWS = [{"input_ids": [4 + n] * 6, "labels": [4 + n] * 6} for n in range(12)]
MOMENTS = ("on_save", "on_epoch_end", "on_train_end")


class Dies(TrainerCallback):
    """Ends the process, as it were, at a step in one of the events."""

    def __init__(self, step: int, event: str) -> None:
        setattr(self, event, lambda args, state, control, **kwargs: self._die(state, step))

    def _die(self, state: Any, step: int) -> None:
        if state.global_step == step:
            raise KeyboardInterrupt


def train(folder, *more, first=(), resume=None, steps=-1):
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    collate = SftCollator(tokenizer.pad_token_id)
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_train_epochs=3,
        max_steps=steps,
        save_steps=1,
        logging_steps=1,
        learning_rate=1e-2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = ending_in_time(Trainer)(
        model=build_model(),
        args=args,
        train_dataset=ROWS,
        data_collator=collate,
        processing_class=tokenizer,
        callbacks=[
            *first,
            SampleLifespanCallback(),
            HeldOutLossCallback(ROWS[:3], collate),
            SampleGenerationCallback(["ab", "cd"], max_new_tokens=3),
            *more,
        ],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def left(folder):
    metrics = [
        (line["step"], {k: v for k, v in line.items() if k.startswith(("heldout", "samples"))})
        for line in read_metrics(folder)
    ]
    answers = (folder / "samples" / "answers.jsonl").read_text("utf-8").split("\n")
    return {
        "metrics": sorted(((s, m) for s, m in metrics if m), key=str),
        "answers": [json.loads(line) for line in answers if line],
        "flow": (folder / "lifespan" / "state_flow.csv").read_text("utf-8"),
        "samples": (folder / "lifespan" / "samples.csv").read_text("utf-8"),
    }


@pytest.mark.parametrize("steps", [-1, 7])
@pytest.mark.parametrize("event", MOMENTS)
@pytest.mark.parametrize("early", [False, True], ids=["after ours", "before ours"])
def test_a_kill_at_the_end_of_an_epoch_costs_and_doubles_nothing(tmp_path, steps, event, early):
    straight = train(tmp_path / "straight", steps=steps)
    last = straight.state.global_step
    assert last == (9 if steps < 0 else steps)
    for step in {3, last} if event != "on_train_end" else {last}:
        folder = tmp_path / f"run{step}"
        dies = Dies(step, event)
        with pytest.raises(KeyboardInterrupt):
            train(folder, *([] if early else [dies]), first=[dies] if early else (), steps=steps)
        newest = folder / f"checkpoint-{step}"
        if event == "on_save" and early:
            # Its state was not written: a command passes over such a checkpoint.
            shutil.rmtree(newest)
            newest = folder / f"checkpoint-{step - 1}"
        resumed = train(folder, resume=str(newest), steps=steps)
        assert resumed.state.global_step == last
        for name, value in left(tmp_path / "straight").items():
            assert left(folder)[name] == value, (step, name)
        for ours, theirs in zip(
            resumed.model.parameters(), straight.model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
