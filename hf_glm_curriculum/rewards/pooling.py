"""From a padded batch to one vector a row, whatever side was padded.

Shapes: B rows, T tokens, H width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_the_left(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Move every row's real tokens to its start, in their order.

    A backbone then sees the same rows and positions for either padding side, with any model's own
    way of counting positions. What is padding is told by the mask alone, never by token ids.

    Args:
        mask: [B, T], nonzero on real tokens.
        tensors: [B, T] each, rearranged as the mask is.

    Returns:
        The mask as int64 and the tensors, rearranged.
    """
    real = (mask != 0).long()
    order = torch.argsort(real, dim=1, descending=True, stable=True)
    return tuple(tensor.gather(1, order) for tensor in (real, *tensors))


def pool(hidden: Tensor, mask: Tensor, how: str) -> Tensor:
    """One vector a row of hidden states whose real tokens come first.

    Args:
        hidden: [B, T, H].
        mask: [B, T], ones on the first tokens of a row and zeros after them.
        how: "last" real token, "cls" (the first token) or "mean" of the real tokens.

    Returns:
        [B, H] float32.
    """
    if how == "cls":
        return hidden[:, 0].float()
    counts = mask.sum(1)
    if how == "mean":
        total = (hidden.float() * mask.unsqueeze(2)).sum(1)
        return total / counts.clamp(min=1).unsqueeze(1)
    last = (counts - 1).clamp(min=0)
    return hidden[torch.arange(len(hidden), device=hidden.device), last].float()
