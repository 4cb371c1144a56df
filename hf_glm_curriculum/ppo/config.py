"""Settings of `StructuredPPOTrainer`: TRL's, and what is added or has another default."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from trl.experimental.ppo import PPOConfig

from hf_glm_curriculum.errors import ConfigError


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class StructuredPPOConfig(PPOConfig):
    """TRL's `PPOConfig` with what structured rewards need.

    One step of the trainer (``global_step``, ``save_steps``, ``logging_steps``) is one *update*: a
    batch of prompts answered, scored, and optimised on for ``num_ppo_epochs``. A batch is
    ``per_device_train_batch_size × gradient_accumulation_steps × processes`` prompts.

    Other defaults than TRL's: ``stop_token="eos"`` (without it every answer has full length),
    ``logging_steps=1``, ``gradient_checkpointing=False`` (TRL's PPO sets True and never turns it
    on; here the setting acts), ``bf16`` on only where a GPU has it (TRL's PPO never uses the
    setting; here it acts), and gradients are clipped to ``max_grad_norm``.

    Raises:
        ConfigError: naming the field, the rule and the value.
    """

    stop_token: Literal["eos"] | None = _setting(
        "eos",
        "Answers end at the tokenizer's EOS token; None lets every answer run to full length.",
    )
    logging_steps: float = _setting(1, "Updates between two logs; below 1, their share of all.")
    gradient_checkpointing: bool = _setting(
        False, "Recompute activations of policy and value model in the backward pass."
    )
    advantage_mode: Literal["per_dimension", "scalar"] = _setting(
        "per_dimension",
        "One critic and one advantage for each reward dimension, or one for the combined reward.",
    )
    least_spread: float | None = _setting(
        None,
        "Before dimensions' advantages are summed each is divided by its spread, or by this share "
        "of the widest dimension's where that is more: 0 brings all to unit spread, 1 sums them as "
        "they are. None: 1 where scores share a scale (levels, or normalised by the shaper), "
        "otherwise 0.",
    )
    structured_defaults: bool | None = _setting(
        None,
        "Gate at 0.85, DimensionWeights, RewardShaper, KLController and NegativeReinforcement with "
        "their defaults where the trainer is given none. None: if the reward model is structured.",
    )
    value_model_kind: Literal["auto", "copy", "shared"] = _setting(
        "auto",
        "What stands in for value_model=None: a copy of the policy's backbone with a head, or a "
        "head on the policy's own trunk. auto: shared for PEFT policies.",
    )
    terminal_reward: Literal["after_last", "last"] = _setting(
        "after_last",
        "Where the score goes in the stream of token rewards: to the state after the last token "
        "(as TRL does), or to the last token itself.",
    )
    max_update_kl: float | None = _setting(
        None, "End an update's epochs once the policy has moved this far (approximate KL, nats)."
    )
    total_updates: int | None = _setting(None, "Updates to make; wins over total_episodes.")
    max_prompt_length: int | None = _setting(None, "Longest prompt, in tokens.")
    long_prompts: Literal["error", "drop"] = _setting(
        "error", "What happens to prompts longer than max_prompt_length or the context allows."
    )
    completion_rows: int = _setting(8, "Answers an update written to completions.jsonl; 0: none.")
    completion_steps: int = _setting(1, "Updates between two that write answers.")
    preflight: bool = _setting(True, "Try the reward on one prompt before the first rollout.")
    debug_dir: str | None = _setting(None, "Folder for a CSV with every row's rewards.")

    def __post_init__(self) -> None:
        """Check every field that can be checked without data and models."""
        if self.bf16 is None:
            self.bf16 = not self.fp16 and not self.use_cpu and _gpu_has_bf16()
        _check_choices(self)
        _check_numbers(self)
        _check_batches(self)
        super().__post_init__()

    @property
    def rows_per_device(self) -> int:
        """Prompts of one update on one device."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps


_CHOICES = {
    "advantage_mode": ("per_dimension", "scalar"),
    "value_model_kind": ("auto", "copy", "shared"),
    "terminal_reward": ("after_last", "last"),
    "long_prompts": ("error", "drop"),
    "kl_estimator": ("k1", "k3"),
    "stop_token": ("eos", None),
}
_LEAST = {
    "num_ppo_epochs": 1,
    "num_mini_batches": 1,
    "response_length": 1,
    "total_updates": 1,
    "max_prompt_length": 1,
    "completion_rows": 0,
    "completion_steps": 1,
    "local_rollout_forward_batch_size": 1,
    "kl_coef": 0.0,
    "vf_coef": 0.0,
    "missing_eos_penalty": 0.0,
}
_POSITIVE = ("temperature", "cliprange", "cliprange_value", "max_update_kl")


def _check_choices(config: StructuredPPOConfig) -> None:
    for name, allowed in _CHOICES.items():
        if getattr(config, name) not in allowed:
            raise ConfigError(
                f"{name}: must be one of {', '.join(map(str, allowed))}, got "
                f"{getattr(config, name)!r}"
            )
    if config.stop_token is not None and config.stop_token_id is not None:
        raise ConfigError(
            f"stop_token, stop_token_id: name one token to stop at, got {config.stop_token!r} and "
            f"{config.stop_token_id}; set stop_token to None to use the id"
        )


def _check_numbers(config: StructuredPPOConfig) -> None:
    for name, least in _LEAST.items():
        value = getattr(config, name)
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{name}: must be at least {least}, got {value}")
    for name in _POSITIVE:
        value = getattr(config, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name}: must be above 0, got {value}")
    for name in ("gamma", "lam", "least_spread"):
        value = getattr(config, name)
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name}: must lie in [0, 1], got {value}")


def _check_batches(config: StructuredPPOConfig) -> None:
    rows, parts = config.rows_per_device, config.num_mini_batches
    if rows % parts:
        raise ConfigError(
            f"num_mini_batches: must divide the {rows} prompts of a device "
            f"(per_device_train_batch_size {config.per_device_train_batch_size} × "
            f"gradient_accumulation_steps {config.gradient_accumulation_steps}), got {parts}"
        )
    if config.whiten_rewards and rows // parts < 8:
        raise ConfigError(
            f"whiten_rewards: needs at least 8 prompts a mini-batch and device, got "
            f"{rows // parts}; use a larger batch, fewer mini-batches, or a RewardShaper"
        )


def _gpu_has_bf16() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported()
