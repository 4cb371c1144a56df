"""Per-sample squared gradient norms from activations and output gradients.

The gradient of a linear layer for sample s is Gₛᵀ Xₛ; its squared norm is also ⟨Xₛ Xₛᵀ, Gₛ Gₛᵀ⟩
("ghost norm": Goodfellow, arXiv:1510.01799; sequences: Li et al., arXiv:2110.05679, §4). Both
forms give the same number; the cheaper one is taken.

Shape letters: K samples, L positions of a sample (rows padded with zero gradient), I inputs, O
outputs, N positions, H width.
"""

from __future__ import annotations

import torch
from torch import Tensor

DIRECT_ELEMENTS = 2**24
"""Most elements of explicit per-sample gradients that exist at the same time."""


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """The type products are taken in: bfloat16 where a GPU has units for it, else float32.

    float16 is never used: squares of scaled gradients leave its range.
    """
    low = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors)
    if low and tensors[0].is_cuda and torch.cuda.get_device_capability(tensors[0].device)[0] >= 8:
        return torch.bfloat16
    if any(t.dtype == torch.float64 for t in tensors):
        return torch.float64
    return torch.float32


def accumulation(tensor: Tensor) -> Tensor:
    """``tensor`` in float32, or as it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def gram(x: Tensor) -> Tensor:
    """[K, L, I] → [K, L, L] inner products of a sample's positions."""
    return torch.bmm(x, x.transpose(1, 2))


def prefers_gram(length: int, inputs: int, outputs: int, input_gram_known: bool = False) -> bool:
    """Whether ⟨XXᵀ, GGᵀ⟩ takes fewer multiplications than GᵀX for one sample.

    When it does, the Gram matrices are also no larger than the activations they come from.
    """
    sides = outputs if input_gram_known else inputs + outputs
    return length * sides < inputs * outputs


def gram_squares(input_gram: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms [K] of GᵀX from XXᵀ [K, L, L] and G [K, L, O]."""
    return _dot(input_gram, gram(gradient))


def direct_squares(x: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms [K] of GᵀX from X [K, L, I] and G [K, L, O], a bounded piece at a time."""
    count, _, inputs = x.shape
    outputs = gradient.shape[-1]
    samples = max(1, DIRECT_ELEMENTS // (inputs * outputs))
    width = max(1, min(outputs, DIRECT_ELEMENTS // inputs))
    found = []
    for start in range(0, count, samples):
        some = slice(start, start + samples)
        parts = [
            _square(torch.bmm(piece.transpose(1, 2), x[some]))
            for piece in gradient[some].split(width, dim=-1)
        ]
        found.append(torch.stack(parts).sum(0))
    return torch.cat(found)


def linear_squares(x: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms [K] of GᵀX by whichever form is cheaper."""
    if prefers_gram(x.shape[1], x.shape[2], gradient.shape[2]):
        return gram_squares(gram(x), gradient)
    return direct_squares(x, gradient)


def lookup_squares(tokens: Tensor, gradient: Tensor) -> Tensor:
    """Squared norms [K] of an embedding's gradient: equal tokens of a sample share a row.

    Args:
        tokens: [K, L] int64 indices that were looked up.
        gradient: [K, L, H] gradient of the output; zero where a position does not count.
    """
    count, length = tokens.shape
    ordered, order = tokens.sort(dim=1)
    fresh = torch.ones_like(ordered)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    slot = torch.empty_like(order).scatter_(1, order, fresh.cumsum(1) - 1)
    slot = slot + torch.arange(count, device=slot.device).unsqueeze(1) * length
    rows = gradient.new_zeros(count * length, gradient.shape[-1])
    rows.index_add_(0, slot.reshape(-1), gradient.reshape(count * length, -1))
    return _square(rows.view(count, length, -1))


def head_rows(x: Tensor, gradient: Tensor, tokens: Tensor) -> Tensor:
    """Rows of an LM head's gradient that belong to a sample's own input tokens.

    They are what a tied embedding shares with the head: ‖E + H‖² = ‖E‖² + 2⟨E, H⟩ + ‖H‖², and
    E has no other rows.

    Args:
        x: [K, L, H] input of the head.
        gradient: [K, L, V] gradient of the logits.
        tokens: [K, L] int64 input tokens.

    Returns:
        [K, L, H]: row ``tokens[k, t]`` of Σ gₗ ⊗ xₗ, for every t.
    """
    count, length, _ = x.shape
    width = max(1, DIRECT_ELEMENTS // (count * length))
    rows = []
    for some in tokens.split(width, dim=1):
        columns = some.unsqueeze(1).expand(-1, length, -1)
        rows.append(torch.bmm(gradient.gather(2, columns).transpose(1, 2), x))
    return accumulation(torch.cat(rows, dim=1))


def normalised(x: Tensor, epsilon: float, centred: bool) -> Tensor:
    """What a norm layer multiplies its weight with, in float32 (float64 stays).

    Args:
        x: [..., H] input of the layer.
        epsilon: added to the mean square.
        centred: subtract the mean first (LayerNorm), or not (RMSNorm).
    """
    x = accumulation(x)
    if centred:
        x = x - x.mean(-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def _square(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(flat, dim=1, dtype=wide).square()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(accumulation(a).flatten(1), accumulation(b).flatten(1))
