"""Whether attention keeps packed samples apart, told from a forward pass's inputs.

Where it does not, a sample's loss depends on the samples in front of it, and so would every signal.
What decides was read off transformers 5.24 and is checked against perturbed neighbours in
``tests/signals/test_packing.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hf_glm_curriculum.errors import IncompatibleError

_MASKED = ("eager", "sdpa", "flex_attention")
_RECURRENT = ("linear_attention", "mamba", "recurrent", "conv")
_VARLEN = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


def check_samples_are_apart(model: nn.Module, inputs: Mapping[str, Any]) -> None:
    """Refuse a packed batch whose samples would attend to each other.

    Attention implementations that are not transformers' own are trusted.

    Args:
        model: the ``...ForCausalLM`` that gets the batch.
        inputs: its arguments by name; some row of ``input_ids`` holds several samples.

    Raises:
        IncompatibleError: naming what mixes the samples, and the way out.
    """
    kinds = getattr(_text_config(model), "layer_types", None) or ()
    recurrent = sorted({kind for kind in kinds if kind in _RECURRENT})
    if recurrent:
        raise IncompatibleError(
            f"packing: {recurrent[0]} layers carry their state from one sample of a row to the "
            "next; train on rows of one sample."
        )
    implementation = str(getattr(model.config, "_attn_implementation", None))
    if implementation in _MASKED:
        reason = _mixed_by_mask(model, inputs)
    elif "flash" in implementation:
        reason = _mixed_by_flash(inputs)
    else:
        return
    if reason is not None:
        raise IncompatibleError(
            f"packing: {implementation} attention lets the samples of a row see each other, "
            f"because {reason}."
        )


def _mixed_by_mask(model: nn.Module, inputs: Mapping[str, Any]) -> str | None:
    """Eager, SDPA and flex build their mask from restarts of position_ids, with conditions."""
    if inputs.get("position_ids") is None:
        return "there are no position_ids; pass ones that restart at 0 in every sample"
    if inputs.get("attention_mask") is not None:
        return "an attention_mask overrides position_ids; leave it out of packed batches"
    if _uses_cache(model, inputs):
        return (
            "use_cache=True makes transformers overlook where samples begin; set use_cache=False "
            "(in TrainingArguments, or model.config.use_cache)"
        )
    return None


def _mixed_by_flash(inputs: Mapping[str, Any]) -> str | None:
    """Flash attention takes lengths where it gets them, and reads one flattened row otherwise."""
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        return "an attention_mask with padding overrides their lengths; leave it out"
    if all(inputs.get(name) is not None for name in _VARLEN):
        return None
    if inputs.get("position_ids") is None:
        return "there are no position_ids; pass ones that restart at 0 in every sample"
    if inputs["input_ids"].shape[0] != 1:
        return "it reads position_ids of a single row; flatten the batch (padding_free=True)"
    return None


def _uses_cache(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    # transformers switches the cache off itself under checkpointing (its older name comes second).
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")
    if next((getattr(model, name) for name in names if hasattr(type(model), name)), False):
        return False
    given = inputs.get("use_cache")
    return bool(getattr(_text_config(model), "use_cache", False) if given is None else given)


def _text_config(model: nn.Module) -> Any:
    config: Any = model.config
    return config.get_text_config()
