"""Attention of a few tiles over gathered keys, with the log-sum-exp its backward needs.

Two ways: torch's fused CPU kernel, and plain matrix products for every other device and for
dropout. Both are exact.

Letters: R tiles, K key-value heads, g query heads each serves, t queries a tile, L gathered keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def fused_serves(query: Tensor, dropout: float) -> bool:
    """Whether the fused CPU kernel can take these tiles."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    return query.device.type == "cpu" and query.dtype in kinds and dropout == 0.0


def tile_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: int = 0,
) -> tuple[Tensor, Tensor]:
    """Attention of tiles without dropout.

    Args:
        query: [R, K, g·t, d].
        key: [R, K, L, d].
        value: [R, K, L, d].
        mask: added to the scores, [R or 1, 1, g·t, L]; None for none.
        scaling: factor on the scores.
        causal: g where query i of the t sees keys 0 … i (then without a mask); 0 for no such rule.

    Returns:
        Output [R, K, g·t, d] and log-sum-exp of the scores, float32 [R, K, g·t].
    """
    if causal:
        heads = (unfold(query, causal), spread(key, causal), spread(value, causal))
        output, total = _attention(*heads, None, scaling, True)
        return output.reshape(query.shape), total.reshape(query.shape[:-1])
    return _attention(query, key, value, mask, scaling, False)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, causal: bool
) -> tuple[Tensor, Tensor]:
    if fused_serves(query, 0.0):
        return _FUSED(query, key, value, 0.0, causal, attn_mask=mask, scale=scaling)
    scores = _scores(query, key, mask, scaling, causal)
    total = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - total.unsqueeze(-1))
    return (weights.to(value.dtype) @ value), total


def tile_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `tile_attention` with respect to query, key and value."""
    if not causal:
        return _gradients(grad, query, key, value, output, total, mask, scaling, False)
    slopes = _gradients(
        unfold(grad, causal),
        unfold(query, causal),
        spread(key, causal),
        spread(value, causal),
        unfold(output, causal),
        unfold(total.unsqueeze(-1), causal).squeeze(-1),
        None,
        scaling,
        True,
    )
    return (
        slopes[0].reshape(query.shape),
        slopes[1].unflatten(1, (-1, causal)).sum(2),
        slopes[2].unflatten(1, (-1, causal)).sum(2),
    )


def unfold(folded: Tensor, group: int) -> Tensor:
    """[R, K, g·t, d] → [R, K·g, t, d]."""
    return folded.unflatten(2, (group, -1)).flatten(1, 2)


def spread(shared: Tensor, group: int) -> Tensor:
    """[R, K, L, d] → [R, K·g, L, d], each head repeated for the queries it serves."""
    return shared.repeat_interleave(group, dim=1)


def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if fused_serves(query, 0.0):
        return _FUSED_BACKWARD(
            grad, query, key, value, output, total, 0.0, causal, attn_mask=mask, scale=scaling
        )
    weights = torch.exp(_scores(query, key, mask, scaling, causal) - total.unsqueeze(-1))
    inner = (grad.float() * output.float()).sum(-1, keepdim=True)
    slope = weights * (grad.float() @ value.float().transpose(-1, -2) - inner) * scaling
    slope = slope.to(query.dtype)
    return (
        slope @ key,
        slope.transpose(-1, -2) @ query,
        weights.to(grad.dtype).transpose(-1, -2) @ grad,
    )


def merge(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from that over each: outputs and log-sum-exps."""
    total = torch.logaddexp(first[1], second[1])
    output = first[0] * torch.exp(first[1] - total).unsqueeze(-1).to(first[0].dtype)
    share = torch.exp(second[1] - total).unsqueeze(-1).to(first[0].dtype)
    return output.addcmul_(second[0], share), total


def dropout_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    keep: Tensor,
    causal: int = 0,
) -> tuple[Tensor, Tensor]:
    """`tile_attention` whose weights are multiplied by ``keep`` [R, K, g·t, L] (0 or 1/(1-p))."""
    scores = _scores(query, key, mask, scaling, bool(causal), causal)
    total = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - total.unsqueeze(-1)) * keep
    return weights.to(value.dtype) @ value, total


def dropout_gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    mask: Tensor | None,
    scaling: float,
    keep: Tensor,
    causal: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `dropout_attention`, given the same ``keep``."""
    scores = _scores(query, key, mask, scaling, bool(causal), causal)
    weights = torch.exp(scores - total.unsqueeze(-1))
    inner = (grad.float() * output.float()).sum(-1, keepdim=True)
    reach = (grad.float() @ value.float().transpose(-1, -2)) * keep
    slope = (weights * (reach - inner) * scaling).to(query.dtype)
    dropped = (weights * keep).to(grad.dtype)
    return slope @ key, slope.transpose(-1, -2) @ query, dropped.transpose(-1, -2) @ grad


def _scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: bool,
    folded: int = 1,
) -> Tensor:
    """Scores in float32, [R, K, g·t, L]; ``folded`` heads stand one after the other if causal."""
    scores = (query @ key.transpose(-1, -2)).float() * scaling
    if mask is not None:
        scores = scores + mask
    if causal:
        queries, keys = scores.shape[-2] // folded, scores.shape[-1]
        future = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future.repeat(folded, 1), -torch.inf)
    return scores
