"""LoRA runs of SmolLM2-135M on short real rows, which several benchmarks share."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from planted_faults import Row
from transformers import Trainer, TrainerCallback, TrainingArguments

from hf_glm_curriculum.data.collator import SftCollator
from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.evaluation.heldout import held_out_loss
from hf_glm_curriculum.models import load_model

MAX_LENGTH = 96
MOST_TEXT_TOKENS = 62
"""Tokens of prompt and response together; the chat template adds 32."""


def fits(tokenizer: Any, row: Row) -> bool:
    """Whether a row is short enough not to be cut."""
    sizes = (len(tokenizer(text)["input_ids"]) for text in (row.prompt, row.response))
    return sum(sizes) < MOST_TEXT_TOKENS


def tokenized(tokenizer: Any, rows: Sequence[Row]) -> Dataset:
    """Token rows with response-only labels, in the order of ``rows``."""
    texts = Dataset.from_list([{"prompt": r.prompt, "response": r.response} for r in rows])
    data = tokenize_sft(texts, tokenizer, max_length=MAX_LENGTH)
    return data.select_columns(["input_ids", "labels"])


def lora_model(seed: int) -> tuple[Any, Any]:
    """A fresh SmolLM2-135M with LoRA of rank 16 on every linear layer, and its tokenizer."""
    from peft import LoraConfig, get_peft_model

    model, tokenizer = load_model()
    torch.manual_seed(seed)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(model, lora), tokenizer


def train(
    model: Any,
    tokenizer: Any,
    data: Dataset,
    callbacks: list[TrainerCallback],
    epochs: float,
    seed: int,
    **settings: Any,
) -> list[float]:
    """Train in place and return the loss of every optimizer step."""
    with tempfile.TemporaryDirectory() as folder:
        defaults: dict[str, Any] = {
            "output_dir": folder,
            "per_device_train_batch_size": 8,
            "num_train_epochs": epochs,
            "learning_rate": 2e-4,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 4,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "seed": seed,
            "use_cpu": not torch.cuda.is_available(),
        }
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**(defaults | settings)),
            train_dataset=data,
            data_collator=SftCollator(tokenizer.pad_token_id),
            processing_class=tokenizer,
            callbacks=callbacks,
        )
        trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def held_out(model: Any, tokenizer: Any, rows: Sequence[Row]) -> float:
    """Mean over rows of the mean loss of the answer's tokens, nats."""
    collate = SftCollator(tokenizer.pad_token_id)
    found = held_out_loss(model, tokenized(tokenizer, rows), collate, show_progress=False)
    return found["sample_loss"]
