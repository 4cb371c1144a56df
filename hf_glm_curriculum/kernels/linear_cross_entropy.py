"""Per-token log-probabilities of an LM head without the whole logits tensor.

Shape letters: N tokens, H hidden size, V vocabulary size, C chunk of tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import nll_loss
from torch.utils.checkpoint import checkpoint

CHUNK_TOKENS = 256
"""Default number of tokens whose logits exist at the same time."""


class TokenScores(NamedTuple):
    """What the LM head says of each token; every field but the last has the labels' shape."""

    log_probs: Tensor
    """Natural log of the probability of the label; 0 where the label is ignored. Computed in
    float32, or in the precision an active autocast gives softmax (bfloat16 on CPUs)."""
    entropy: Tensor
    """Shannon entropy of the predicted distribution in nats, detached; 0 where ignored."""
    is_top1: Tensor
    """1 where the label is the most probable token, else 0; detached."""
    summed_loss: Tensor
    """0-dim float32: the negative log-likelihood summed chunk by chunk in the precision of
    ``log_probs``, detached; what a host that sums inside autocast reports."""


def _score_chunk(
    hidden_CH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    labels_C: Tensor,
    logit_scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits_CV = hidden_CH.float() @ weight_VH.float().t()
    if bias_V is not None:
        logits_CV = logits_CV + bias_V.float()
    if logit_scale != 1.0:
        logits_CV = logits_CV * logit_scale
    if softcap is not None:
        logits_CV = softcap * torch.tanh(logits_CV / softcap)
    log_p_CV = torch.log_softmax(logits_CV, dim=-1)
    used = labels_C >= 0
    target = labels_C.clamp(min=0)
    label_log_p = log_p_CV.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = -(log_p_CV.exp() * log_p_CV).sum(-1) * used
        top1 = ((log_p_CV.argmax(-1) == target) & used).float()
        summed = nll_loss(log_p_CV, labels_C.clamp(min=-1), ignore_index=-1, reduction="sum")
    return label_log_p.masked_fill(~used, 0.0), entropy, top1, summed.float()


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> TokenScores:
    """Score labels under ``softmax(hidden @ weight.T)`` in chunks of tokens.

    Only ``chunk_tokens × V`` logits are alive at once: each chunk is recomputed in the backward
    pass. Tokens whose label is negative are moved behind the others and never multiplied, so the
    cost is that of the label tokens. Reading how many there are costs one device-to-host copy.

    Args:
        hidden: [..., H] hidden states before the LM head, any float dtype.
        weight: [V, H] weight of the LM head.
        labels: [...] int64, the token each position predicts (already shifted); negative = ignored.
        bias: [V] bias of the LM head.
        chunk_tokens: tokens a chunk; peak memory grows with it.
        logit_scale: factor on the logits (Cohere-style models).
        softcap: ``softcap * tanh(logits / softcap)`` after the scale (Gemma-style models).

    Returns:
        :class:`TokenScores` with fields of ``labels.shape``. ``log_probs`` carries gradients to
        ``hidden``, ``weight`` and ``bias``; the other two are detached.

    Raises:
        ValueError: if ``labels`` does not have the shape of ``hidden`` without its last dimension,
            or ``chunk_tokens`` is not positive.
    """
    if labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels: shape must be {tuple(hidden.shape[:-1])} as hidden's without the last "
            f"dimension, got {tuple(labels.shape)}; pass labels shifted to the positions."
        )
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens: must be at least 1, got {chunk_tokens}.")
    flat_NH = hidden.reshape(-1, hidden.size(-1))
    flat_N = labels.reshape(-1)
    used = flat_N >= 0
    order = used.to(torch.int8).argsort(descending=True, stable=True)
    # One chunk always runs, so that a batch without labels still reaches every parameter.
    n_used = max(int(used.sum()), 1)
    parts = []
    for start in range(0, n_used, chunk_tokens):
        rows = order[start : min(start + chunk_tokens, n_used)]
        parts.append(
            checkpoint(
                _score_chunk,
                flat_NH[rows],
                weight,
                bias,
                flat_N[rows],
                logit_scale,
                softcap,
                use_reentrant=False,
            )
        )
    rows = order[:n_used]

    def scattered(column: int) -> Tensor:
        values = torch.cat([part[column] for part in parts])
        return values.new_zeros(flat_N.shape).index_put((rows,), values).reshape(labels.shape)

    summed_loss = torch.stack([part[3] for part in parts]).sum()
    return TokenScores(scattered(0), scattered(1), scattered(2), summed_loss)
