"""A model's output head: what turns last hidden states into logits.

Shape letters: N tokens, H hidden size, V vocabulary size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.models import causal_lm


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to its raw logits: a factor, then ``cap · tanh(z / cap)``."""

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, config: Any) -> LogitTransform:
        """Read it off a model's config, under the names that model families give it."""
        text = config.get_text_config()
        factors = [
            value
            for name in ("logit_scale", "output_multiplier", "lm_head_multiplier")
            if (value := getattr(text, name, None)) is not None
        ]
        divisor = getattr(text, "logits_scaling", None)
        if not factors and divisor is not None:
            # HyperCLOVA X multiplies with what Granite and MiniCPM3 divide by.
            factors = [divisor if text.model_type == "hyperclovax" else 1 / divisor]
        return cls(factors[0] if factors else 1.0, getattr(text, "final_logit_softcapping", None))

    def __call__(self, raw: Tensor) -> Tensor:
        """Logits that go into the softmax."""
        scaled = raw if self.scale == 1.0 else raw * self.scale
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)

    def pull_back(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn the gradient of the softmax's logits into that of the raw ones, in place."""
        if self.cap is not None:
            gradient *= 1 - (logits / self.cap).square()
        return gradient if self.scale == 1.0 else gradient.mul_(self.scale)


@dataclass(frozen=True)
class OutputHead:
    """Weight, bias and transform of an output head."""

    weight: Tensor
    """[V, H]."""
    bias: Tensor | None = None
    """[V], or None."""
    transform: LogitTransform = LogitTransform()

    @classmethod
    def of(cls, model: nn.Module) -> OutputHead:
        """The head of a causal LM, plain or wrapped; a sharded weight (FSDP2) is gathered.

        Raises:
            ModelError: if the model has no language-model head.
            IncompatibleError: if the head is more than one weight and bias, or its weight is kept
                elsewhere.
        """
        inner = causal_lm(model)
        head: Any = inner.get_output_embeddings()
        if hasattr(head, "base_layer"):
            raise IncompatibleError(
                "lm_head: an adapter wraps it, so its weight alone gives other logits; take the "
                "head out of the adapter's target_modules (modules_to_save trains it whole)."
            )
        weight, bias = _whole(head.weight), _whole(getattr(head, "bias", None))
        if weight.numel() == 0:
            raise IncompatibleError(
                "lm_head: its weight is partitioned (DeepSpeed ZeRO-3), so logits cannot be made "
                "from hidden states; use ZeRO-2 or a host that computes logits."
            )
        return cls(weight, bias, LogitTransform.of(inner.config))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of hidden states [..., H], in float32 or better."""
        dtype = compute_dtype(hidden, self.weight)
        raw = hidden.to(dtype) @ self.weight.to(dtype).t()
        return self.transform(raw if self.bias is None else raw + self.bias.to(dtype))


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """float32, or float64 where an input is float64."""
    doubles = any(t.dtype == torch.float64 for t in tensors)
    return torch.float64 if doubles else torch.float32


def _whole(parameter: Any) -> Any:
    gather = getattr(parameter, "full_tensor", None)
    return parameter if gather is None else gather()
