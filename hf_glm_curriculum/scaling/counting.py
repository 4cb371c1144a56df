"""Parameters and FLOPs of a model as each convention counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a causal language model.

    Attributes:
        total: All weights, tied ones once.
        matmul: All weights but tables that are only looked up; a tied head counts once.
        non_embedding: All weights but token embeddings and output head.
    """

    total: int
    matmul: int
    non_embedding: int

    def by(self, convention: str) -> int:
        """The count of a convention; "unspecified" counts all."""
        return int(getattr(self, convention, self.total))


def count_parameters(model: nn.Module) -> ParameterCount:
    """Count the parameters of a model with input and output embeddings, as transformers' have."""
    inputs = _weight(model, "get_input_embeddings")
    output = _weight(model, "get_output_embeddings")
    total = sum(parameter.numel() for parameter in model.parameters())
    tied = inputs is not None and inputs is output
    table = 0 if inputs is None else inputs.numel()
    head = 0 if output is None or tied else output.numel()
    return ParameterCount(total, total if tied else total - table, total - table - head)


def _weight(model: nn.Module, getter: str) -> nn.Parameter | None:
    module = getattr(model, getter, lambda: None)()
    return getattr(module, "weight", None)


def attention_flops_per_token(layers: int, width: int, length: int) -> float:
    """Training FLOPs of attention scores and their sums for one token: 6·layers·width·length.

    Causal attention reads half of `length` keys on average; a score and a weighted sum cost
    2·width each, three times over for forward and backward (Kaplan et al. 2020, §2.1, halved for
    causality). C = 6·N·D leaves this out.
    """
    return 6.0 * layers * width * length
