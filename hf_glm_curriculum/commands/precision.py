"""Half precision and 4-bit weights: what needs a GPU, and loading a frozen base in 4 bits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from hf_glm_curriculum.errors import (
    ConfigError,
    IncompatibleError,
    MissingDependencyError,
    ModelError,
)
from hf_glm_curriculum.optional import available, require


class Precision(Protocol):
    """The settings that these functions read."""

    model: str
    lora: bool
    bf16: bool
    fp16: bool
    load_in_4bit: bool
    gradient_checkpointing: bool
    cpu: bool


def check_precision_settings(config: Precision) -> None:
    """Refuse settings that contradict each other.

    Raises:
        ConfigError: Naming them.
    """
    if config.bf16 and config.fp16:
        raise ConfigError("bf16, fp16: exclude each other; set one of the two")
    if config.load_in_4bit and not config.lora:
        raise ConfigError(
            "load_in_4bit: weights in 4 bits cannot be trained; set lora to true, or load_in_4bit "
            "to false"
        )


def check_precision(config: Precision) -> None:
    """Refuse what needs a GPU where there is none, before anything loads.

    Raises:
        IncompatibleError: 4 bits or fp16 without CUDA.
        MissingDependencyError: 4 bits without bitsandbytes.
    """
    import torch

    gpu = torch.cuda.is_available() and not config.cpu
    for name in ("load_in_4bit", "fp16"):
        if getattr(config, name) and not gpu:
            raise IncompatibleError(
                f"{name}: needs a CUDA GPU, and there is none in use; set {name} to false (bf16 "
                "works on CPUs)"
            )
    if config.load_in_4bit and not available("bitsandbytes"):
        raise MissingDependencyError(
            "load_in_4bit: needs bitsandbytes, which is not installed; pip install bitsandbytes"
        )


def load_base_in_4bit(config: Precision) -> tuple[Any, Any]:
    """The model with its frozen weights quantised (NF4), ready for adapters, and its tokenizer.

    Raises:
        ModelError: It cannot be loaded, or is a folder of adapters.
        IncompatibleError: There is no CUDA.
        MissingDependencyError: bitsandbytes or peft is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    from hf_glm_curriculum.models import load_tokenizer, resolve_model

    check_precision(config)
    peft = require("peft", "peft")
    source = resolve_model(config.model)
    if (Path(source) / "adapter_config.json").is_file():
        raise ModelError(
            f"load_in_4bit: {config.model!r} holds adapters, which cannot be merged into 4-bit "
            "weights; merge and save them first (peft's merge_and_unload), or turn it off"
        )
    half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=half,
    )
    tokenizer = load_tokenizer(source)
    place = {"": int(os.environ.get("LOCAL_RANK", "0") or 0)}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source, quantization_config=settings, device_map=place
        )
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"cannot load {source!r} in 4 bits ({reason})") from error
    model = peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=config.gradient_checkpointing
    )
    return model, tokenizer
