"""What a backend is asked for and what it must offer.

Letters: B rows, H query heads, K key-value heads, Q queries, N key slots, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hf_glm_curriculum.attention.layout import BlockLayout
from hf_glm_curriculum.attention.rotary import KeyShift
from hf_glm_curriculum.attention.selection import BlockSelection


@dataclass(frozen=True)
class AttentionProblem:
    """One attention call: who sees what, and how scores are scaled.

    Attributes:
        layout: blocks and tiles of the batch.
        selection: the blocks before its own that each tile sees.
        scaling: factor on the scores.
        dropout: share of attention weights dropped, 0 outside training.
        shift: re-rotates selected keys towards the query (compact positions); None leaves them.
    """

    layout: BlockLayout
    selection: BlockSelection
    scaling: float
    dropout: float = 0.0
    shift: KeyShift | None = None


@dataclass(frozen=True)
class Call:
    """What a backend must know of a call to say whether it can serve it."""

    device: torch.device
    dtype: torch.dtype
    head_size: int
    value_size: int
    block_size: int
    gradients: bool
    tokens: int = 1
    dropout: bool = False
    compact: bool = False


class Backend(Protocol):
    """One way to compute attention over selected blocks."""

    name: str

    def supports(self, call: Call) -> str | None:
        """None if the backend can serve the call, else the reason why not, as a clause."""
        ...

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem
    ) -> Tensor:
        """Attention output [B, Q, H, d] from query [B, H, Q, d], key and value [B, K, N, d].

        A query that sees no key (padding) gets zeros.
        """
        ...


def call_of(query: Tensor, key: Tensor, value: Tensor, problem: AttentionProblem) -> Call:
    """Describe a call to `Backend.supports`."""
    inputs = (query, key, value)
    return Call(
        device=query.device,
        dtype=query.dtype,
        head_size=query.shape[-1],
        value_size=value.shape[-1],
        block_size=problem.layout.block_size,
        gradients=torch.is_grad_enabled() and any(x.requires_grad for x in inputs),
        tokens=max(problem.layout.queries, problem.layout.keys) * problem.layout.rows,
        dropout=problem.dropout > 0,
        compact=problem.shift is not None,
    )
