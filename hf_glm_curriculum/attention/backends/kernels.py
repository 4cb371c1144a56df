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


def fused_serves(query: Tensor) -> bool:
    """Whether the fused CPU kernel can take these tiles, without dropout."""
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    return query.device.type == "cpu" and query.dtype in kinds


def tile_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: int = 0,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of tiles.

    Args:
        query: [R, K, g·t, d].
        key: [R, K, L, d].
        value: [R, K, L, d].
        mask: added to the scores, [R or 1, 1, g·t, L]; None for none.
        scaling: factor on the scores.
        causal: g where query i of the t sees keys 0 … i (then without a mask); 0 for no such rule.
        keep: what dropout multiplies the weights with, [R, K, g·t, L]; None for no dropout.

    Returns:
        Output [R, K, g·t, d] and log-sum-exp of the scores, float32 [R, K, g·t].
    """
    if keep is None and fused_serves(query):
        heads = [_unfolded(query, causal), *(_spread(x, causal) for x in (key, value))]
        found = _FUSED(*heads, 0.0, bool(causal), attn_mask=mask, scale=scaling)
        return found[0].reshape(query.shape), found[1].reshape(query.shape[:-1])
    scores = _scores(query, key, mask, scaling, causal)
    total = scores.logsumexp(dim=-1)
    weights = torch.exp(scores - total.unsqueeze(-1))
    weights = weights if keep is None else weights * keep
    return weights.to(value.dtype) @ value, total


def tile_gradients(
    grad: Tensor,
    output: Tensor,
    total: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    causal: int = 0,
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `tile_attention` with respect to query, key and value.

    Output and log-sum-exp may be those over more keys than these: the gradients are then these
    keys' part.
    """
    if keep is None and fused_serves(query):
        given = [_unfolded(x, causal) for x in (grad, query)]
        given += [_spread(x, causal) for x in (key, value)]
        given += [_unfolded(output, causal), _unfolded(total.unsqueeze(-1), causal).squeeze(-1)]
        found = _FUSED_BACKWARD(*given, 0.0, bool(causal), attn_mask=mask, scale=scaling)
        shared = (x.unflatten(1, (-1, causal)).sum(2) if causal else x for x in found[1:])
        return found[0].reshape(query.shape), *shared
    scores = _scores(query, key, mask, scaling, causal)
    weights = torch.exp(scores - total.unsqueeze(-1))
    inner = (grad.float() * output.float()).sum(-1, keepdim=True)
    reach = grad.float() @ value.float().transpose(-1, -2)
    reach = reach if keep is None else reach * keep
    slope = (weights * (reach - inner) * scaling).to(query.dtype)
    weights = weights if keep is None else weights * keep
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


def _unfolded(folded: Tensor, group: int) -> Tensor:
    """[R, K, g·t, d] → [R, K·g, t, d], for causal calls; as it is for group 0."""
    return folded.unflatten(2, (group, -1)).flatten(1, 2) if group else folded


def _spread(shared: Tensor, group: int) -> Tensor:
    """[R, K, L, d] → [R, K·g, L, d], each head repeated for the queries it serves."""
    return shared.repeat_interleave(group, dim=1) if group > 1 else shared


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, causal: int) -> Tensor:
    """Scores in float32, [R, K, g·t, L]; with ``causal`` g heads stand one after the other."""
    scores = (query @ key.transpose(-1, -2)).float() * scaling
    if mask is not None:
        scores = scores + mask
    if causal:
        queries, keys = scores.shape[-2] // causal, scores.shape[-1]
        future = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future.repeat(causal, 1), -torch.inf)
    return scores
