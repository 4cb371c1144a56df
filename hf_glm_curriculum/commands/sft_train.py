"""Model and trainer of a fine-tuning run, on either host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.precision import check_precision, load_base_in_4bit
from hf_glm_curriculum.commands.training_settings import TrainingSettings
from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import (
    ConfigError,
    IncompatibleError,
    MissingDependencyError,
    ModelError,
)
from hf_glm_curriculum.models import (
    causal_lm,
    decoder_layers,
    load_model,
    load_tokenizer,
    model_fingerprint,
)
from hf_glm_curriculum.optional import require

if TYPE_CHECKING:
    pass

_LAUNCHERS = {
    "tensor parallelism": ("TP_SIZE", "TENSOR_PARALLEL_SIZE", "ACCELERATE_USE_TP"),
    "Megatron": ("ACCELERATE_USE_MEGATRON_LM", "MEGATRON_LM_TP_DEGREE", "MEGATRON_PATH"),
    "Colossal-AI": ("COLOSSALAI_DISTRIBUTED", "COLOSSALAI_PLUGIN"),
}
_OFF = ("", "0", "1", "false", "no")
"""Values of a launcher's variable that mean no split: a size of one is none either."""


def foreign_launcher() -> str | None:
    """The parallel scheme the environment was launched with that no part here supports."""
    for name, variables in _LAUNCHERS.items():
        for variable in variables:
            value = os.environ.get(variable, "").lower()
            # A flag is on at "1"; a size of 1 splits nothing.
            on = value not in _OFF or (value in ("1", "true") and "USE" in variable)
            if on:
                return f"{name} ({variable}={os.environ[variable]})"
    return None


def refuse_foreign_launcher() -> None:
    """Refuse a parallel scheme under which a sample's loss cannot be found.

    Raises:
        IncompatibleError: Naming the scheme and the way out.
    """
    launcher = foreign_launcher()
    if launcher:
        raise IncompatibleError(
            f"{launcher}: samples cannot be followed where a model's layers are split; start with "
            "accelerate launch or torchrun (DDP, FSDP2, DeepSpeed ZeRO)"
        )


def load_for_training(config: TrainingSettings) -> tuple[Any, Any]:
    """The model, with fresh adapters where LoRA is on, and its tokenizer.

    Raises:
        ModelError: The model cannot be loaded, has no decoder layers, or lacks the LoRA targets.
        MissingDependencyError: LoRA without peft, 4 bits without bitsandbytes, or the embedded
            model without its wheel.
        IncompatibleError: 4 bits or fp16 without CUDA.
    """
    from transformers import set_seed

    if config.lora:
        require("peft", "peft")
    check_precision(config)
    if config.load_in_4bit:
        model, tokenizer = load_base_in_4bit(config)
    elif (Path(config.model).expanduser() / "adapter_config.json").is_file():
        model, tokenizer = _merged(config), load_tokenizer(config.model)
    else:
        model, tokenizer = load_model(config.model, config.dtype)
    causal_lm(model)
    decoder_layers(model)
    set_seed(config.seed)
    return (with_lora(model, config) if config.lora else model), tokenizer


def _merged(config: TrainingSettings) -> Any:
    """An adapter folder as one model: new adapters, or all weights, are trained on top of it.

    Raises:
        ModelError: The adapters or their base model cannot be loaded.
        MissingDependencyError: peft is not installed.
    """
    peft = require("peft", "peft")
    try:
        folder = str(Path(config.model).expanduser())
        model = peft.AutoPeftModelForCausalLM.from_pretrained(folder, dtype=config.dtype)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"cannot load the adapters in {config.model!r} ({reason}); check that their base model "
            "is still where adapter_config.json says"
        ) from error
    return model.merge_and_unload().requires_grad_(True)


def complete_saved(config: TrainingSettings, folder: Path) -> None:
    """Make a saved adapter the whole model where it was trained on top of other adapters.

    An adapter names the model below the first adapters as its base, and without them it is another
    model. For the first process alone, after the trainer has saved.

    Raises:
        ModelError: The adapters that the run began with cannot be loaded again.
    """
    below = Path(config.model).expanduser() / "adapter_config.json"
    saved = folder / "adapter_config.json"
    if not (config.lora and below.is_file() and saved.is_file()) or config.load_in_4bit:
        return
    peft = require("peft", "peft")
    whole = peft.PeftModel.from_pretrained(_merged(config), str(folder)).merge_and_unload()
    whole.save_pretrained(folder)
    for path in (*folder.glob("adapter_model*"), saved):
        path.unlink()


def with_lora(model: Any, config: TrainingSettings) -> Any:
    """Wrap a model in fresh low-rank adapters; as initialised they change nothing.

    Raises:
        ModelError: No module has a name in `lora_targets`.
    """
    peft = require("peft", "peft")
    targets = config.lora_targets
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=targets[0] if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )
    try:
        wrapped = peft.get_peft_model(model, settings)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ModelError(
            f"lora_targets: {targets} do not fit {type(model).__name__} ({reason}); use all-linear "
            "or names of its linear layers"
        ) from error
    if config.gradient_checkpointing:
        wrapped.enable_input_require_grads()
    return wrapped


def model_facts(model: Any, name: str) -> dict[str, Any]:
    """What `run.json` says of a model."""
    parameters = list(model.parameters())
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "fingerprint": model_fingerprint(model),
    }


def training_arguments(config: TrainingSettings, **more: Any) -> Any:
    """The trainer's arguments of a config.

    Args:
        config: The settings.
        more: Arguments besides or in place of these, such as how long to train.

    Raises:
        ConfigError: transformers refuses a combination, such as bf16 where it is not supported.
        MissingDependencyError: The host or a tracker is not installed.
    """
    if config.trainer == "sft_trainer":
        kind = require("trl", "trl").SFTConfig
        extra: dict[str, Any] = {"dataset_kwargs": {"skip_prepare_dataset": True}}
        extra["max_length"] = None  # the rows are cut already
    else:
        from transformers import TrainingArguments as kind

        extra = {}
    check_trackers(config.report_to)
    try:
        return kind(**{**_arguments(config), **extra, **more})
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"transformers refuses the settings ({reason}); correct them, or install what it asks "
            "for"
        ) from error


def _arguments(config: TrainingSettings) -> dict[str, Any]:
    """Settings under the names that transformers gives them."""
    by_steps = config.save_steps is not None
    return {
        "output_dir": str(Path(config.output_dir).expanduser()),
        "per_device_train_batch_size": config.batch_size,
        "per_device_eval_batch_size": config.batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler,
        "warmup_steps": config.warmup,
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "logging_steps": config.logging_steps,
        "save_strategy": "steps" if by_steps else "epoch",
        "save_steps": config.save_steps or 500,
        "save_total_limit": config.save_total_limit,
        "report_to": config.report_to or "none",
        "seed": config.seed,
        "data_seed": config.seed,
        "bf16": config.bf16,
        "fp16": config.fp16,
        "gradient_checkpointing": config.gradient_checkpointing,
        "use_cpu": config.cpu,
        "remove_unused_columns": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed, before anything is written.

    Raises:
        ConfigError: Naming the tracker and the known ones.
        MissingDependencyError: Naming the tracker.
    """
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    installed = get_available_reporting_integrations()
    for name in names:
        if name in ("none", "all"):
            continue
        if name not in INTEGRATION_TO_CALLBACK:
            raise ConfigError(
                f"report_to: {name!r} is no tracker; {nearest(name, INTEGRATION_TO_CALLBACK)}"
            )
        if name not in installed:
            raise MissingDependencyError(
                f"report_to: {name} is not installed; pip install {name}, or leave it out"
            )
