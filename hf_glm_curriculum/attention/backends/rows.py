"""Tensors of heads seen as a flat list of rows, so that any layout is gathered without a copy.

Letters: B batch rows, H heads, N slots, d head size, R rows of the flat list.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadRows:
    """A tensor [B, H, N, d] as rows [R, d].

    Attributes:
        flat: [R, d], sharing memory with the tensor where its strides allow it.
        strides: rows between neighbours in B, in H and in N.
        slots: N.
    """

    flat: Tensor
    strides: tuple[int, int, int]
    slots: int

    @staticmethod
    def of(tensor: Tensor) -> HeadRows:
        """View a tensor [B, H, N, d]; copies only where strides are no multiples of d."""
        size = tensor.shape[-1]
        strides = tensor.stride()
        if strides[-1] != 1 or any(step % size for step in strides[:3]) or _overlaps(tensor):
            tensor = tensor.contiguous()
            strides = tensor.stride()
        steps = (strides[0] // size, strides[1] // size, strides[2] // size)
        rows = 1 + sum(
            step * (count - 1) for step, count in zip(steps, tensor.shape[:3], strict=True)
        )
        flat = tensor.as_strided((rows, size), (size, 1))
        return HeadRows(flat, steps, tensor.shape[2])

    def base(self, slots: Tensor) -> Tensor:
        """Row numbers in head 0 of flat slots (row · N + column), none negative; same shape."""
        return (slots // self.slots) * self.strides[0] + (slots % self.slots) * self.strides[2]

    def head_offsets(self, heads: int) -> Tensor:
        """What to add to a row number of head 0 for each head: int64 [heads]."""
        return torch.arange(heads, device=self.flat.device) * self.strides[1]


def _overlaps(tensor: Tensor) -> bool:
    """Whether a dimension longer than 1 is expanded, so that rows would be shared."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(count > 1 and step == 0 for count, step in pairs)
