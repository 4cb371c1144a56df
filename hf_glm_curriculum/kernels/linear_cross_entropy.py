"""Per-token log-probabilities of an LM head without the whole logits tensor.

Shape letters: N tokens, H hidden size, V vocabulary size, C chunk of tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import nll_loss

from hf_glm_curriculum.kernels.output_head import LogitTransform, compute_dtype

CHUNK_ELEMENTS = 2**24
"""Logits that exist at the same time where no chunk is asked for (64 MiB in float32)."""


class TokenScores(NamedTuple):
    """What the LM head says of each token; every field but the last has the labels' shape."""

    log_probs: Tensor
    """Natural log of the probability of the label; 0 where the label is ignored. Computed in
    float32 (float64 for float64 inputs), or in the precision an active autocast gives softmax
    (bfloat16 on CPUs)."""
    entropy: Tensor
    """Shannon entropy of the predicted distribution in nats; 0 where ignored."""
    is_top1: Tensor
    """1 where the label is the most probable token, else 0; no gradient."""
    logsumexp: Tensor
    """Log of the softmax's denominator (of the logits as they go into it); 0 where ignored."""
    summed_loss: Tensor
    """0-dim float32: the negative log-likelihood summed chunk by chunk in the precision of
    ``log_probs``, no gradient; what a host that sums inside autocast reports."""


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    chunk_tokens: int | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    temperature: float = 1.0,
    distribution: bool = True,
) -> TokenScores:
    """Score labels under ``softmax(hidden @ weight.T)`` in chunks of tokens.

    Only one chunk's logits are alive at a time, in the forward and in the backward pass, which
    makes them once more: a third more multiplications than with the logits kept. Tokens whose
    label is negative are moved behind the others and never multiplied, so the cost is that of the
    label tokens. Reading how many there are costs one device-to-host copy.

    Args:
        hidden: [..., H] hidden states before the LM head, any float dtype.
        weight: [V, H] weight of the LM head.
        labels: [...] int64, the token each position predicts (already shifted); negative = ignored.
        bias: [V] bias of the LM head.
        chunk_tokens: tokens a chunk; None takes as many as keep a chunk at 2²⁴ logits (at least
            16), so that peak memory does not grow with the vocabulary either.
        logit_scale: factor on the logits (Cohere, Granite).
        softcap: ``softcap * tanh(logits / softcap)`` after the scale (Gemma 2 and 3).
        temperature: divides the logits last; the model's own is 1.
        distribution: also look at the whole distribution, for ``entropy`` and ``is_top1``; without,
            both are 0 and passes over the logits are saved.

    Returns:
        :class:`TokenScores` with fields of ``labels.shape``. ``log_probs``, ``entropy`` and
        ``logsumexp`` carry gradients to ``hidden``, ``weight`` and ``bias`` (first order only).

    Raises:
        ValueError: if ``labels`` does not have the shape of ``hidden`` without its last dimension,
            or ``chunk_tokens`` or ``temperature`` is not positive.
    """
    _check(hidden, labels, chunk_tokens, temperature)
    flat_NH = hidden.reshape(-1, hidden.size(-1))
    flat_N = labels.reshape(-1)
    order = (flat_N >= 0).to(torch.int8).argsort(descending=True, stable=True)
    # One token always runs, so that a batch without labels still reaches every parameter.
    n_used = max(int((flat_N >= 0).sum()), 1)
    rows = order[:n_used]
    head = _HeadMaths(
        LogitTransform(logit_scale, softcap),
        temperature,
        chunk_tokens or max(16, CHUNK_ELEMENTS // weight.shape[0]),
        compute_dtype(hidden, weight),
        distribution,
    )
    found = _ScoreTokens.apply(flat_NH[rows], weight, bias, flat_N[rows], head)

    def scattered(values: Tensor) -> Tensor:
        whole = values.new_zeros(flat_N.shape).index_put((rows,), values)
        return whole.reshape(labels.shape)

    log_probs, entropy, top1, lse, summed = found  # type: ignore[misc]
    return TokenScores(
        scattered(log_probs), scattered(entropy), scattered(top1), scattered(lse), summed
    )


def summed_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    token_weights: Tensor | None = None,
    denominator: Tensor | float = 1.0,
    **options: Any,
) -> Tensor:
    """Weighted loss Σₜ wₜ·ℓₜ / N of the LM head, without the whole logits.

    Args:
        hidden: [..., H] hidden states before the LM head.
        weight: [V, H] weight of the LM head.
        labels: [...] int64, already shifted; negative = ignored.
        token_weights: [...] weights w; a token of weight 0 costs nothing. None = all 1.
        denominator: N.
        options: further arguments of :func:`linear_cross_entropy`.

    Returns:
        0-dim loss in nats.

    Raises:
        ValueError: as :func:`linear_cross_entropy`, or if ``token_weights`` has another shape
            than ``labels``.
    """
    options.setdefault("distribution", False)
    if token_weights is None:
        return (
            -linear_cross_entropy(hidden, weight, labels, **options).log_probs.sum() / denominator
        )
    if token_weights.shape != labels.shape:
        raise ValueError(
            f"token_weights: shape must be {tuple(labels.shape)} as labels', got "
            f"{tuple(token_weights.shape)}; give each label one weight."
        )
    weighted = torch.where(token_weights != 0, labels, -100)
    scores = linear_cross_entropy(hidden, weight, weighted, **options)
    return -(scores.log_probs * token_weights).sum() / denominator


class _HeadMaths(NamedTuple):
    """Settings of one call."""

    transform: LogitTransform
    temperature: float
    chunk: int
    dtype: torch.dtype
    distribution: bool

    def logits(self, hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        raw = hidden_CH.to(self.dtype) @ weight_VH.to(self.dtype).t()
        return self.transform(raw if bias_V is None else raw + bias_V.to(self.dtype))

    def log_softmax(self, logits_CV: Tensor) -> Tensor:
        cooled = logits_CV if self.temperature == 1.0 else logits_CV / self.temperature
        return torch.log_softmax(cooled, dim=-1)

    def raw_gradient(self, gradient_CV: Tensor, logits_CV: Tensor) -> Tensor:
        """From the gradient of the softmax's inputs to that of ``hidden @ weight.T``."""
        if self.temperature != 1.0:
            gradient_CV /= self.temperature
        return self.transform.pull_back(gradient_CV, logits_CV)


class _ScoreTokens(torch.autograd.Function):
    """Chunk by chunk: scores forward, and in the backward the logits again and their gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        head: _HeadMaths,
    ) -> tuple[Tensor, ...]:
        parts = []
        for start in range(0, len(hidden_NH), head.chunk):
            rows = slice(start, start + head.chunk)
            logits_CV = head.logits(hidden_NH[rows], weight_VH, bias_V)
            parts.append(_scores(logits_CV, head.log_softmax(logits_CV), labels_N[rows], head))
        log_p, entropy, top1, lse, summed = (
            torch.cat(column) for column in zip(*parts, strict=True)
        )
        summed = summed.sum()
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, labels_N, entropy)
        device = hidden_NH.device.type
        ctx.head = head
        ctx.autocast = (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.mark_non_differentiable(top1, summed)
        ctx.set_materialize_grads(False)
        return log_p, entropy, top1, lse, summed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, labels_N, entropy_N = ctx.saved_tensors
        into_hidden, into_weight, into_bias = ctx.needs_input_grad[:3]
        head, (device, dtype, enabled) = ctx.head, ctx.autocast
        d_hidden = torch.zeros_like(hidden_NH) if into_hidden else None
        d_weight = torch.zeros_like(weight_VH, dtype=head.dtype) if into_weight else None
        d_bias = torch.zeros_like(bias_V, dtype=head.dtype) if into_bias else None
        with torch.autocast(device, dtype=dtype, enabled=enabled):
            for start in range(0, len(hidden_NH), head.chunk):
                rows = slice(start, start + head.chunk)
                hidden_CH = hidden_NH[rows].to(head.dtype)
                gradients = [None if g is None else g[rows] for g in upstream]
                d_raw = _raw_gradient(
                    head, hidden_CH, weight_VH, bias_V, labels_N[rows], entropy_N[rows], gradients
                )
                if d_hidden is not None:
                    d_hidden[rows] = (d_raw @ weight_VH.to(head.dtype)).to(d_hidden.dtype)
                if d_weight is not None:
                    _add_product(d_weight, d_raw, hidden_CH, enabled)
                if d_bias is not None:
                    d_bias += d_raw.sum(0)
        given = (d_weight, weight_VH), (d_bias, bias_V)
        found = (None if d is None else d.to(p.dtype) for d, p in given)
        return d_hidden, *found, None, None


def _scores(
    logits_CV: Tensor, log_p_CV: Tensor, labels_C: Tensor, head: _HeadMaths
) -> tuple[Tensor, ...]:
    used = labels_C >= 0
    target = labels_C.clamp(min=0).unsqueeze(-1)
    label_log_p = log_p_CV.gather(-1, target).squeeze(-1)
    entropy, top1 = torch.zeros_like(label_log_p), torch.zeros_like(label_log_p)
    if head.distribution:
        entropy = -(log_p_CV.exp() * log_p_CV).sum(-1) * used
        top1 = ((log_p_CV.argmax(-1) == target.squeeze(-1)) & used).float()
    summed = nll_loss(log_p_CV, labels_C.clamp(min=-1), ignore_index=-1, reduction="sum")
    label_logit = logits_CV.gather(-1, target).squeeze(-1) / head.temperature
    lse = (label_logit - label_log_p).masked_fill(~used, 0.0)
    return label_log_p.masked_fill(~used, 0.0), entropy, top1, lse, summed.float().view(1)


def _raw_gradient(
    head: _HeadMaths,
    hidden_CH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    labels_C: Tensor,
    entropy_C: Tensor,
    upstream: list[Tensor | None],
) -> Tensor:
    """[C, V] gradient of ``hidden @ weight.T + bias``."""
    d_log_p, d_entropy, _, d_lse, _ = upstream
    logits_CV = head.logits(hidden_CH, weight_VH, bias_V)
    log_p_CV = head.log_softmax(logits_CV)
    used = labels_C >= 0
    gradient_CV = torch.zeros_like(log_p_CV)
    if d_log_p is not None:
        picked = (d_log_p * used).to(log_p_CV.dtype).unsqueeze(-1)
        gradient_CV.scatter_(-1, labels_C.clamp(min=0).unsqueeze(-1), picked)
        # The very kernel of log_softmax's own backward: in bfloat16 its rounding matters.
        gradient_CV = torch.ops.aten._log_softmax_backward_data(
            gradient_CV, log_p_CV, -1, log_p_CV.dtype
        )
    if d_entropy is not None and head.distribution:
        # ∂H/∂zⱼ = −pⱼ (log pⱼ + H)
        surplus = (log_p_CV + entropy_C.unsqueeze(-1)).mul_(log_p_CV.exp())
        gradient_CV -= surplus.mul_((d_entropy * used).unsqueeze(-1))
    if d_lse is not None:
        gradient_CV += log_p_CV.exp().mul_((d_lse * used).unsqueeze(-1))
    return head.raw_gradient(gradient_CV, logits_CV)


def _add_product(total_VH: Tensor, d_raw_CV: Tensor, hidden_CH: Tensor, rounded: bool) -> None:
    """Add d_rawᵀ · hidden; under autocast each chunk's product is rounded, as the host's is."""
    if rounded:
        total_VH += d_raw_CV.t() @ hidden_CH
    else:
        total_VH.addmm_(d_raw_CV.t(), hidden_CH)


def _check(hidden: Tensor, labels: Tensor, chunk_tokens: int | None, temperature: float) -> None:
    if labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels: shape must be {tuple(hidden.shape[:-1])} as hidden's without the last "
            f"dimension, got {tuple(labels.shape)}; pass labels shifted to the positions."
        )
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens: must be at least 1, got {chunk_tokens}.")
    if not temperature > 0:
        raise ValueError(f"temperature: must be positive, got {temperature}.")
