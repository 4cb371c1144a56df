"""Settings of `ppo`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_glm_curriculum.commands.ppo_aliases import canonical_keys
from hf_glm_curriculum.commands.precision import check_precision_settings
from hf_glm_curriculum.commands.training_settings import check_least
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.rewards.hacking import MonitorConfig


@dataclass
class StructuredUseConfig:
    """What becomes of a structured reward model's scores and confidences."""

    structured: bool | None = None
    """Gate, dimension weights, shaping, KL by sample and negative reinforcement; null uses them \
where the reward is a structured model, false never."""

    advantage_mode: Literal["per_dimension", "scalar"] = "per_dimension"
    """One critic and one advantage for each dimension, or one for the combined reward."""

    gate_threshold: float = 0.85
    """Confidence below which a dimension of a row is closed."""

    gate_fallback: str = "most_confident"
    """The dimension that opens where none passes: most_confident, or a name."""

    dimension_weights: dict[str, float] = field(default_factory=dict)
    """Weight of each dimension; empty takes factual 2, logic 1, compliance 0.5, or equal ones."""

    unlock: list[str] = field(default_factory=list)
    """Dimensions in the order of their unlocking; empty has all from the start."""

    unlock_target: float = 0.7
    """Mean score that a dimension must reach before the next one is unlocked."""

    unlock_min_updates: int = 100
    """Fewest updates between two unlockings."""

    unlock_max_updates: int | None = 500
    """Most updates between two unlockings; null for no limit."""

    kl_kappa: float = 1.0
    """How much the KL coefficient grows where the factual score lies below the others."""

    target_kl: float | None = None
    """KL to the reference, in nats an answer, that the coefficient is steered to; null never."""

    length_band: list[float] = field(default_factory=list)
    """Least and most words that cost nothing; empty has no band."""


@dataclass
class PpoCommandConfig:
    """PPO on a policy, with rewards by rules or by reward models; see ``docs/methods/ppo.md``."""

    model: str = "embedded"
    """The policy: a folder, the folder of an sft run, adapters, a hub id, or "embedded"."""

    reward: list[str] = field(default_factory=list)
    """The folder of a reward run, a reward model's folder or hub id, several of them (an \
ensemble), or rules by name: length, correct, factual, logic, compliance, no_repetition, \
no_refusal, same_language."""

    prompts: list[str] = field(default_factory=list)
    """Files, folders or hub ids of records with a prompt, instruction, query or messages; further \
columns reach the rules."""

    demo: int = 0
    """Demo prompts with checkable answers to train on, beside or in place of prompts."""

    eval_prompts: list[str] = field(default_factory=list)
    """Held-out prompts; empty takes a share of the prompts, or further demo prompts."""

    held_out: float = 0.1
    """Share of the prompts held out where eval_prompts is empty."""

    answers: int = 16
    """Held-out prompts answered greedily before and after training; 0 for none."""

    output_dir: str = "runs/ppo"
    """The run's folder: checkpoints, metrics, completions, answers, the model and the report."""

    updates: int = 100
    """PPO updates: a batch of prompts answered, scored and optimised on."""

    batch_size: int = 16
    """Prompts an update, over all devices."""

    mini_batch_size: int | None = None
    """Prompts an optimizer step; null takes the whole batch."""

    micro_batch_size: int | None = None
    """Prompts in one forward and backward pass of one device; null takes at most 8."""

    ppo_epochs: int = 4
    """Passes over each batch."""

    learning_rate: float = 1e-5
    """Peak learning rate."""

    lr_scheduler: str = "linear"
    """Learning-rate schedule by its transformers name, such as linear, cosine or constant."""

    warmup: float = 0.0
    """Warm-up steps (1 or more), or their share of all steps (below 1)."""

    weight_decay: float = 0.0
    """Weight decay of AdamW."""

    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""

    kl_coef: float = 0.05
    """Weight of the KL to the reference, the policy as it was before training."""

    kl_estimator: Literal["k1", "k3"] = "k1"
    """Estimator of that KL: unbiased, or of lower variance."""

    max_update_kl: float | None = None
    """End the passes over a batch once the policy has moved this far, in nats; null never does."""

    cliprange: float = 0.2
    """Clip range of the policy's ratio."""

    cliprange_value: float = 0.2
    """Clip range of the value's change."""

    vf_coef: float = 0.1
    """Weight of the value loss."""

    gamma: float = 1.0
    """Discount."""

    lam: float = 0.95
    """λ of the generalised advantage estimate."""

    whiten_rewards: bool = False
    """Whiten the rewards of a batch."""

    missing_eos_penalty: float | None = None
    """Taken off the reward of an answer that was cut off; null takes none (shaping has its own)."""

    max_new_tokens: int = 64
    """Longest answer, in tokens, in training and evaluation."""

    temperature: float = 0.7
    """Of the answers in training; those of the evaluation are greedy."""

    max_prompt_length: int | None = None
    """Longest prompt, in tokens; null has the model's context as the only limit."""

    long_prompts: Literal["error", "drop"] = "error"
    """What happens to longer prompts."""

    length_target: float = 30.0
    """Words that the rule "length" asks for."""

    ensemble_penalty: float = 1.0
    """Standard deviations that an ensemble takes off its mean score."""

    lora: bool = True
    """Train low-rank adapters (reference: adapters off) instead of every weight."""

    lora_rank: int = 16
    """Rank r of the adapters."""

    lora_alpha: int = 32
    """Scale of the adapters, as alpha / r."""

    lora_dropout: float = 0.0
    """Dropout before the adapters."""

    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the modules that get adapters; all-linear for every linear layer but the head."""

    load_in_4bit: bool = False
    """Keep the policy's frozen weights in 4 bits; needs CUDA, bitsandbytes and lora."""

    value_model: Literal["auto", "copy", "shared"] = "auto"
    """The critic: a copy of the policy's backbone, or heads on its trunk; auto shares with LoRA."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the stored weights; auto keeps the model's own."""

    bf16: bool = False
    """Train under bfloat16 autocast."""

    fp16: bool = False
    """Train under float16 autocast with loss scaling; needs CUDA."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""

    cpu: bool = False
    """Train on the CPU even where there is a GPU."""

    seed: int = 0
    """Seed of the split, the order of prompts, the sampling and new weights."""

    logging_steps: int = 1
    """Updates between two lines of metrics."""

    completion_rows: int = 8
    """Answers an update written to completions.jsonl with their scores."""

    save_steps: int | None = None
    """Updates between two checkpoints; null saves ten times in a run."""

    save_total_limit: int = 2
    """Checkpoints kept."""

    report_to: list[str] = field(default_factory=list)
    """Trackers such as tensorboard or wandb; metrics.jsonl and the report are written anyway."""

    stop_on_alarm: bool = False
    """End the run when the reward is being gamed; without it alarms are logged and reported."""

    alarm_window: int | None = None
    """Updates that alarms look back on; null takes 20, or a third of a shorter run."""

    resume: bool = False
    """Go on from the last whole checkpoint in output_dir, if there is one."""

    overwrite: bool = False
    """Throw away the run that output_dir holds."""

    debug_dir: str | None = None
    """Folder for a CSV with every row's scores, confidences and gates."""

    use: StructuredUseConfig = field(default_factory=StructuredUseConfig)
    """How structured scores become advantages."""

    @classmethod
    def canonical_keys(
        cls, tree: Mapping[Any, Any], path: str | os.PathLike[str]
    ) -> dict[Any, Any]:
        """Bring the other names that PPO's settings go by into ours; `load_config` calls this.

        Raises:
            ConfigError: A setting stands there under two names with different values.
        """
        return canonical_keys(tree, f"{os.fspath(path)}: ")

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_least(self, _LEAST)
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        for name in ("held_out", "lora_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name}: must lie in [0, 1), got {getattr(self, name)}")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: must lie in [0, 1], got {getattr(self, name)}")
        self._check_pairs()
        self._check_batches()

    def _check_pairs(self) -> None:
        """Settings that exclude or need each other."""
        if self.resume and self.overwrite:
            raise ConfigError("resume, overwrite: contradict each other; set one of the two")
        check_precision_settings(self)
        if self.lora and not self.lora_targets:
            raise ConfigError("lora_targets: needs at least one name; all-linear suits most models")
        if self.use.length_band and len(self.use.length_band) != 2:
            raise ConfigError(
                f"length_band: must be [least, most] words, got {self.use.length_band}"
            )
        if self.alarm_window is not None:
            MonitorConfig(window=self.alarm_window)

    def _check_batches(self) -> None:
        """Batches that come out even, as far as that does not depend on the number of devices."""
        mini = self.mini_batch_size
        if mini is not None and self.batch_size % mini:
            raise ConfigError(
                f"batch_size: {self.batch_size} is not divisible by mini_batch_size {mini}; a "
                f"mini_batch_size of {_nearest_divisor(self.batch_size, mini)} would do"
            )
        micro, whole = self.micro_batch_size, mini or self.batch_size
        if micro is not None and whole % micro:
            name = "batch_size" if mini is None else "mini_batch_size"
            raise ConfigError(
                f"{name}: {whole} is not divisible by micro_batch_size {micro}; a micro_batch_size "
                f"of {_nearest_divisor(whole, micro)} would do"
            )


@dataclass(frozen=True)
class Batches:
    """How an update's prompts are cut up."""

    per_device: int
    """Prompts in one pass of one device."""

    accumulation: int
    """Such passes of one device an update and epoch."""

    mini_batches: int
    """Optimizer steps an epoch."""


_MOST_AT_ONCE = 8


def batches_of(config: PpoCommandConfig, processes: int) -> Batches:
    """Cut the batch up for so many devices.

    Args:
        config: the settings.
        processes: devices that share a batch.

    Raises:
        ConfigError: The batch does not come out even; names a size that does.
    """
    mini = config.mini_batch_size or config.batch_size
    if mini % processes:
        name = "mini_batch_size" if config.mini_batch_size else "batch_size"
        raise ConfigError(
            f"{name}: {mini} prompts cannot be shared by {processes} processes; use a multiple of "
            f"{processes}, such as {-(-mini // processes) * processes}"
        )
    local = mini // processes
    micro = config.micro_batch_size or _nearest_divisor(local, _MOST_AT_ONCE)
    if local % micro:
        raise ConfigError(
            f"micro_batch_size: {micro} does not divide the {local} prompts that each of "
            f"{processes} processes has in a mini-batch; {_nearest_divisor(local, micro)} would do"
        )
    count = config.batch_size // mini
    return Batches(micro, count * local // micro, count)


def _nearest_divisor(number: int, wanted: int) -> int:
    """The largest divisor of `number` that is at most `wanted`."""
    return max(size for size in range(1, min(number, wanted) + 1) if number % size == 0)


_LEAST = {
    "demo": 0,
    "answers": 0,
    "updates": 1,
    "batch_size": 1,
    "mini_batch_size": 1,
    "micro_batch_size": 1,
    "ppo_epochs": 1,
    "warmup": 0,
    "weight_decay": 0,
    "kl_coef": 0,
    "vf_coef": 0,
    "missing_eos_penalty": 0,
    "max_new_tokens": 1,
    "max_prompt_length": 1,
    "ensemble_penalty": 0,
    "lora_rank": 1,
    "lora_alpha": 1,
    "logging_steps": 1,
    "completion_rows": 0,
    "save_steps": 1,
    "save_total_limit": 1,
}
_POSITIVE = (
    "learning_rate",
    "max_grad_norm",
    "cliprange",
    "cliprange_value",
    "temperature",
    "length_target",
)
