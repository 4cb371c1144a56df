"""Trainers with one option set, and what they were seen to train on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from hf_glm_curriculum import SampleLifespanCallback
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Collator, Recorder, arguments, random_rows


@dataclass
class Seen(TrainerCallback):
    """Counts, by itself, which rows the trainer trained on in the run that came to its end."""

    rows: list[dict[str, Any]]
    counts: Counter[int] = field(default_factory=Counter)
    handle: Any = None

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        if self.handle is not None:
            self.handle.remove()
        self.counts.clear()
        self.handle = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.handle.remove()

    @torch.compiler.disable
    def _count(self, module: torch.nn.Module, args: Any, kwargs: dict) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        known = {tuple(row["input_ids"]): i for i, row in enumerate(self.rows)}
        for tokens, mask in zip(kwargs["input_ids"], kwargs["attention_mask"], strict=True):
            self.counts[known[tuple(tokens[mask == 1].tolist())]] += 1


@dataclass
class Host:
    """A trainer, ready to train, with its witnesses."""

    trainer: Any
    grads: Recorder
    seen: Seen

    def train(self, **kwargs: Any) -> Host:
        self.trainer.train(**kwargs)
        return self

    @property
    def losses(self) -> list[float]:
        return [entry["loss"] for entry in self.trainer.state.log_history if "loss" in entry]

    @property
    def model(self) -> torch.nn.Module:
        return self.trainer.model


def host(
    folder: Any,
    callbacks: list[TrainerCallback],
    *,
    sft: bool = False,
    model: torch.nn.Module | None = None,
    rows: list[dict[str, Any]] | None = None,
    dataset: Any = None,
    collator: Any = None,
    others: list[TrainerCallback] | None = None,
    **settings: Any,
) -> Host:
    """A trainer over random rows; evaluation data are always there."""
    rows = rows or random_rows()
    recorder, seen = Recorder(), Seen(rows)
    common: dict[str, Any] = {
        "model": model or build_model(),
        "train_dataset": Dataset.from_list(rows) if dataset is None else dataset,
        "eval_dataset": Dataset.from_list(random_rows(4, seed=5)),
        "callbacks": [*callbacks, recorder, seen, *(others or [])],
    }
    if sft:
        settings = {"dataset_kwargs": {"skip_prepare_dataset": True}, "max_length": 64} | settings
        trainer = SFTTrainer(
            args=arguments(folder, SFTConfig, **settings),
            processing_class=build_tokenizer(),
            data_collator=collator,
            **common,
        )
    else:
        trainer = Trainer(
            args=arguments(folder, **settings), data_collator=collator or Collator(), **common
        )
    return Host(trainer, recorder, seen)


def assert_ledger_holds(callback: SampleLifespanCallback, seen: Seen) -> None:
    """Every visit that happened is in the ledger, under its row, and no other."""
    frame = callback.ledger.to_pandas()
    assert dict(zip(frame["row"], frame["lifetime"], strict=True)) == dict(seen.counts)
    assert frame[["loss", "grad_norm", "weight"]].notna().all().all()


def assert_same_training(one: Host, other: Host, tolerance: float = 1e-6) -> None:
    """Losses, gradients and final weights of two runs agree."""
    assert torch.allclose(torch.tensor(one.losses), torch.tensor(other.losses), atol=tolerance)
    assert len(one.grads.grads) == len(other.grads.grads) > 0
    for ours, theirs in zip(one.grads.grads, other.grads.grads, strict=True):
        assert (ours - theirs).norm() <= tolerance * (1 + theirs.norm())
    for ours, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=max(tolerance, 1e-6))
