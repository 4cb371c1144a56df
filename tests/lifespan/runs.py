"""Short training runs on tiny models that tests of hooks and weights share."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.conftest import build_model, build_tokenizer

PAD = 0


def random_rows(n: int = 10, seed: int = 0, longest: int = 20) -> list[dict[str, list[int]]]:
    """Rows of unequal length whose first third is prompt; two of them share their tokens."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(n):
        length = int(torch.randint(9, longest, (1,), generator=generator))
        tokens = torch.randint(4, 260, (length,), generator=generator).tolist()
        cut = length // 3
        rows.append({"input_ids": tokens, "labels": [-100] * cut + tokens[cut:]})
    return rows


@dataclass
class Collator:
    """Pads on either side; stands for the user's own."""

    side: str = "right"

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        batch: dict[str, list[list[int]]] = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in rows:
            gap = width - len(row["input_ids"])
            filled = {
                "input_ids": [PAD] * gap,
                "labels": [-100] * gap,
                "attention_mask": [0] * gap,
            }
            real = {**row, "attention_mask": [1] * len(row["input_ids"])}
            for name, padding in filled.items():
                left = self.side == "left"
                values = list(real[name])
                batch[name].append(padding + values if left else values + padding)
        return {name: torch.tensor(values) for name, values in batch.items()}


@dataclass
class Recorder(TrainerCallback):
    """Keeps the gradient norm before each optimizer step."""

    grads: list[torch.Tensor] = field(default_factory=list)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs) -> None:
        parts = [p.grad.detach().flatten() for p in model.parameters() if p.grad is not None]
        # A refused step has no gradients.
        self.grads.append(torch.cat(parts).clone() if parts else torch.zeros(0))


def add_lora(model: torch.nn.Module) -> torch.nn.Module:
    """The model with LoRA on its attention, both matrices non-zero."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(model, config)


def arguments(output_dir: str | Path, cls: type = TrainingArguments, **settings: Any) -> Any:
    """Training arguments of a short quiet run; checkpointing is off unless asked for."""
    defaults = {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 3,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
        "bf16": False,
    }
    return cls(**{**defaults, **settings})


@dataclass
class Run:
    """What a finished run shows."""

    trainer: Any
    grads: list[torch.Tensor]
    losses: list[float]

    @property
    def model(self) -> torch.nn.Module:
        return self.trainer.model


def train(
    callbacks: list[TrainerCallback],
    *,
    sft: bool = False,
    lora: bool = False,
    side: str = "right",
    rows: list[dict[str, list[int]]] | None = None,
    model: torch.nn.Module | None = None,
    kind: str = "llama",
    output_dir: str | Path | None = None,
    resume: bool | str = False,
    fail: type[TrainerCallback] | None = None,
    collator: Any = None,
    **settings: Any,
) -> Run:
    """Train a tiny model on random rows with ``Trainer`` or TRL's ``SFTTrainer``."""
    folder = output_dir or tempfile.mkdtemp()
    model = model or build_model(kind)
    model = add_lora(model) if lora else model
    recorder = Recorder()
    common = {
        "model": model,
        "train_dataset": Dataset.from_list(rows or random_rows()),
        "callbacks": [*callbacks, recorder, *([fail()] if fail else [])],
    }
    if sft:
        trainer = _sft_trainer(folder, common, collator, settings)
    else:
        args = arguments(folder, **settings)
        trainer = Trainer(args=args, data_collator=collator or Collator(side), **common)
    trainer.train(resume_from_checkpoint=resume or None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return Run(trainer, recorder.grads, losses)


def _sft_trainer(folder: Any, common: dict, collator: Any, settings: dict) -> Any:
    from trl import SFTConfig, SFTTrainer

    args = arguments(
        folder, SFTConfig, dataset_kwargs={"skip_prepare_dataset": True}, max_length=64, **settings
    )
    extra = {} if collator is None else {"data_collator": collator}
    return SFTTrainer(args=args, processing_class=build_tokenizer(), **common, **extra)


def one_at_a_time(
    model: torch.nn.Module, rows: list[dict[str, list[int]]]
) -> tuple[list[float], list[float]]:
    """Loss and hidden-gradient norm of each row by itself: the naive version of the probe."""
    from hf_glm_curriculum.models import backbone

    losses, norms = [], []
    for row in rows:
        caught: list[torch.Tensor] = []

        def catch(module: Any, args: Any, output: Any, caught: list = caught) -> None:
            output.last_hidden_state.retain_grad()
            caught.append(output.last_hidden_state)

        handle = backbone(model).register_forward_hook(catch)
        batch = {name: torch.tensor([row[name]]) for name in ("input_ids", "labels")}
        loss = model(**batch).loss
        model.zero_grad()
        loss.backward()
        handle.remove()
        losses.append(loss.item())
        norms.append(caught[0].grad.norm().item())
    model.zero_grad()
    return losses, norms
