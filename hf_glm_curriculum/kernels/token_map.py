"""Any per-token function of logits, without all logits at once.

Shape letters: N tokens, C chunk of tokens, V vocabulary size, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hf_glm_curriculum.kernels.output_head import OutputHead, compute_dtype

MAP_ELEMENTS = 2**24
"""Logits a chunk holds (64 MiB in float32)."""

TokenFunction = Callable[..., Tensor]
"""Takes logits [C, V] and whatever is aligned with them [C, ...]; returns [C]."""


def map_logits(
    function: TokenFunction,
    logits: Tensor,
    aligned: Sequence[Tensor] = (),
    *,
    heads: Sequence[OutputHead | None] = (),
    chunk_tokens: int | None = None,
) -> Tensor:
    """Apply a per-token function to logits, chunk by chunk; each chunk is remade backward.

    Args:
        function: called with logits [C, V] (float32 or better) and the chunk's rows of
            ``aligned``; returns [C].
        logits: [N, V] logits, or [N, H] hidden states where the first of ``heads`` is a head.
        aligned: tensors [N, ...] handed on by chunks.
        heads: the head that turns ``logits`` into logits, then one for each of ``aligned``; None
            or none hands the rows on as they are.
        chunk_tokens: tokens a chunk; by default as many as keep it at 2²⁴ logits.

    Returns:
        [N] values of the function, with gradients to ``logits`` or to hidden states and head.

    Raises:
        ValueError: if the function returns another shape than [C].
    """
    rows = (logits, *aligned)
    makers = [*heads, *[None] * (len(rows) - len(heads))]
    widest = max([h.weight.shape[0] for h in makers if h is not None] + [logits.shape[-1]])
    size = chunk_tokens or max(16, MAP_ELEMENTS // widest)
    # Parameters go in as arguments, so that a chunk made anew sends them its gradient.
    parameters = [p for h in makers if h is not None for p in (h.weight, h.bias)]
    parts = []
    for start in range(0, max(len(logits), 1), size):
        chunk = [tensor[start : start + size] for tensor in rows]
        part = checkpoint(
            _apply,
            function,
            makers,
            len(chunk),
            *chunk,
            *parameters,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        if part.shape != chunk[0].shape[:1]:
            raise ValueError(
                f"function: must return one value a token, shape {tuple(chunk[0].shape[:1])}, got "
                f"{tuple(part.shape)}; reduce over the vocabulary only."
            )
        parts.append(part)
    return torch.cat(parts)


def _apply(
    function: TokenFunction, makers: list[OutputHead | None], n_rows: int, *tensors: Tensor
) -> Tensor:
    parameters = iter(tensors[n_rows:])
    values = []
    for place, (rows, maker) in enumerate(zip(tensors[:n_rows], makers, strict=True)):
        if maker is not None:
            head = OutputHead(next(parameters), next(parameters), maker.transform)
            values.append(head.logits(rows))
        else:
            values.append(rows.to(compute_dtype(rows)) if place == 0 else rows)
    return function(*values)
