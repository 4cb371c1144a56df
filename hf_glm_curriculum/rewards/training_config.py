"""Settings of training a reward model; each is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.errors import ConfigError


@dataclass
class BackboneTrainingConfig:
    """End-to-end training of the backbone beside the heads, before the heads' own training."""

    backbone: Literal["frozen", "lora", "last_k", "full"] = "frozen"
    """What trains of the backbone: nothing, adapters (needs the extra [peft]), the last blocks, \
all."""

    last_k: int = 2
    """How many blocks "last_k" trains."""

    lora_rank: int = 16
    """Rank r of the adapters."""

    lora_alpha: int = 32
    """Scale of the adapters, as alpha / r."""

    lora_dropout: float = 0.0
    """Dropout before the adapters."""

    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the modules that get adapters; all-linear for every linear layer."""

    backbone_epochs: float = 2.0
    """Passes over the training examples; early stopping may end sooner."""

    backbone_batch_size: int = 8
    """Examples (a pair has two texts) in one forward pass of one device."""

    gradient_accumulation: int = 1
    """Forward passes an optimizer step."""

    backbone_learning_rate: float = 1e-4
    """Peak learning rate of the backbone; the heads train at the heads' own."""

    warmup: float = 0.03
    """Warm-up steps (1 or more), or their share of all steps (below 1)."""

    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""

    bf16: bool = False
    """Train under bfloat16 autocast."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""

    logging_steps: int = 10
    """Optimizer steps between two lines of metrics."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        _at_least(self, last_k=1, lora_rank=1, lora_alpha=1, backbone_batch_size=1, warmup=0)
        _at_least(self, gradient_accumulation=1, logging_steps=1)
        _above_zero(self, "backbone_epochs", "backbone_learning_rate", "max_grad_norm")
        if not 0 <= self.lora_dropout < 1:
            raise ConfigError(f"lora_dropout: must lie in [0, 1), got {self.lora_dropout}")
        if self.backbone == "lora" and not self.lora_targets:
            raise ConfigError("lora_targets: needs at least one name; all-linear suits most models")

    def lora_settings(self) -> dict[str, object]:
        """The adapters' settings by `peft.LoraConfig`'s names."""
        return {
            "r": self.lora_rank,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "target_modules": list(self.lora_targets),
        }


@dataclass
class RewardTrainingConfig:
    """How heads, levels and confidences are trained; see ``docs/methods/rewards.md``."""

    epochs: int = 30
    """Passes over the training examples; early stopping may end sooner."""

    batch_size: int = 128
    """Examples an optimizer step of the heads."""

    learning_rate: float = 1e-3
    """Learning rate of the heads (AdamW, cosine decay)."""

    weight_decay: float = 0.05
    """Weight decay of the heads."""

    patience: int = 4
    """Epochs without a better validation loss after which a dimension's head stops; the best is \
kept."""

    balanced: bool = True
    """Draw every dimension (and low and high ratings within it) equally often."""

    center_weight: float = 0.01
    """Weight of (chosen + rejected logit)², which keeps levels of different prompts comparable."""

    anchor: bool = True
    """Shift logits so that validation chosen and rejected scores average 0.5 (where a dimension \
has no ratings, which fix its level)."""

    folds: int = 5
    """Held-out folds whose mistakes the confidence heads learn from."""

    confidence_epochs: int = 40
    """Most passes of the confidence heads; early stopping may end sooner."""

    confidence_weight_decay: float = 3.0
    """Weight decay of the confidence heads."""

    calibrate: bool = True
    """Fit a temperature and an offset for each confidence on the validation split."""

    gate_threshold: float = 0.85
    """Confidence from which a dimension counts; stated in the model card."""

    feature_batch_size: int = 8
    """Texts in one forward pass of the frozen backbone."""

    seed: int = 0
    """Seed of the split, the order of examples and new weights."""

    tuning: BackboneTrainingConfig = field(default_factory=BackboneTrainingConfig)
    """Training of the backbone."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        _at_least(self, epochs=1, batch_size=1, weight_decay=0, patience=1, center_weight=0)
        _at_least(self, folds=2, confidence_epochs=1, confidence_weight_decay=0)
        _at_least(self, feature_batch_size=1)
        _above_zero(self, "learning_rate")
        if not 0 < self.gate_threshold <= 1:
            raise ConfigError(f"gate_threshold: must lie in (0, 1], got {self.gate_threshold}")


def _at_least(config: object, **least: float) -> None:
    for name, bound in least.items():
        if not getattr(config, name) >= bound:
            raise ConfigError(f"{name}: must be at least {bound}, got {getattr(config, name)}")


def _above_zero(config: object, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ConfigError(f"{name}: must be above 0, got {getattr(config, name)}")
