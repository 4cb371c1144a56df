"""The LM head's share where the host never runs the head as a module.

TRL's SFT losses multiply hidden states with ``lm_head.weight`` themselves, in chunks. The gradient
of a sample's summed loss with respect to the logits is softmax − one-hot, so the head's squared
norm follows from the hidden states once more, at the cost of one product with the head's weight
over the label tokens.

Shape letters: B rows, T positions, K samples, L label positions of a sample, P input positions of
a sample, V vocabulary size, C piece of the vocabulary, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_glm_curriculum.kernels.output_head import LogitTransform
from hf_glm_curriculum.signals.ghost_layout import Layout
from hf_glm_curriculum.signals.ghost_math import (
    accumulation,
    compute_dtype,
    direct_squares,
    gram,
    prefers_gram,
)

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.ghost_sums import ExactNorms

LOGIT_ELEMENTS = 2**24
"""Most logits that exist at the same time."""


@dataclass(frozen=True)
class Head:
    """An LM head and the label tokens of some samples."""

    weight: Tensor
    bias: Tensor | None
    transform: LogitTransform
    hidden: Tensor
    """[K, L, H] in the type products are taken in."""
    labels: Tensor
    """[K, L] int64."""
    used: Tensor
    """[K, L] bool."""

    def logits(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[K, L, C] for one piece of the head."""
        raw = accumulation(self.hidden @ weight.to(self.hidden.dtype).t())
        return self.transform(raw if bias is None else raw + bias)

    def pieces(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """The head in pieces whose logits fit: first token, weight and bias."""
        width = max(1, LOGIT_ELEMENTS // self.labels.numel())
        for start in range(0, self.weight.shape[0], width):
            end = start + width
            yield start, self.weight[start:end], None if self.bias is None else self.bias[start:end]

    def normaliser(self) -> tuple[Tensor, Tensor]:
        """Log-sum-exp of the logits, [K, L], and the first piece's logits, to be used again."""
        (_, weight, bias), *others = self.pieces()
        first = self.logits(weight, bias)
        lse = first.logsumexp(-1)
        for _, weight, bias in others:
            lse = torch.logaddexp(lse, self.logits(weight, bias).logsumexp(-1))
        return lse, first

    def gradients(self, lse: Tensor, first: Tensor) -> Iterator[Tensor]:
        """Logit gradients [K, L, C] of the summed loss, piece by piece."""
        for start, weight, bias in self.pieces():
            logits = first if start == 0 else self.logits(weight, bias)
            gradient = (logits - lse.unsqueeze(-1)).exp_()
            place = (self.labels - start).unsqueeze(-1)
            here = (place >= 0) & (place < weight.shape[0])
            place = place.clamp(0, weight.shape[0] - 1)
            gradient.scatter_add_(2, place, -here.to(gradient))
            gradient = self.transform.pull_back(gradient, logits)
            yield gradient.mul_(self.used.unsqueeze(-1))

    def token_rows(self, tokens: Tensor, lse: Tensor) -> Tensor:
        """[K, P, H] rows of the head's gradient at input tokens [K, P]; see ``head_rows``."""
        width = max(1, LOGIT_ELEMENTS // (self.labels.numel() + self.hidden.shape[-1]))
        rows = []
        for some in tokens.split(width, dim=1):
            columns = self.weight[some].to(self.hidden.dtype).transpose(1, 2)
            raw = accumulation(torch.bmm(self.hidden, columns))
            if self.bias is not None:
                raw = raw + self.bias[some].unsqueeze(1)
            logits = self.transform(raw)
            gradient = (logits - lse.unsqueeze(-1)).exp_()
            gradient -= (some.unsqueeze(1) == self.labels.unsqueeze(2)).to(gradient)
            gradient = self.transform.pull_back(gradient, logits) * self.used.unsqueeze(-1)
            rows.append(torch.bmm(gradient.to(self.hidden.dtype).transpose(1, 2), self.hidden))
        return accumulation(torch.cat(rows, dim=1))


def add_fused_head(
    norms: ExactNorms,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    transform: LogitTransform,
    *,
    trainable: tuple[str, ...],
    tied: bool,
) -> None:
    """Add the head's squared norms of every sample's summed, unweighted loss.

    Reading how many label tokens each sample has costs one copy to the host, as the host's own
    chunked loss does.

    Args:
        norms: where they are added; names the samples, labels and input tokens.
        hidden: [B, T, H] last hidden states.
        weight: [V, H] weight of the head.
        bias: [V] bias of the head, or None.
        transform: what happens to the raw logits.
        trainable: which of ``weight`` and ``bias`` are trained.
        tied: whether the weight is the token embedding's too.
    """
    maps = (norms.target, norms.segments) if tied else (norms.target,)
    label_layout, *token_layout = Layout.of(*maps, count=norms.count)
    most = max(1, LOGIT_ELEMENTS // weight.shape[0])
    dtype = compute_dtype(hidden, weight)
    for bucket in label_layout.buckets(most):
        head = Head(
            weight=weight.detach(),
            bias=None if bias is None else bias.detach(),
            transform=transform,
            hidden=bucket.take(hidden.detach()).to(dtype),
            labels=bucket.take(norms.labels),
            used=bucket.used,
        )
        lse, first = head.normaliser()
        norms.add_raw(bucket, _head_squares(head, head.gradients(lse, first), trainable))
        if tied:
            tokens = token_layout[0].bucket(bucket.members)
            rows = head.token_rows(tokens.take(norms.input_ids), lse)
            norms.keep_rows(tokens, rows, raw=True)


def _head_squares(head: Head, gradients: Iterator[Tensor], trainable: tuple[str, ...]) -> Tensor:
    """Squared norms [K] of the head's weight and bias, as far as they are trained."""
    x = head.hidden
    count, length, width = x.shape
    by_gram = prefers_gram(length, width, head.weight.shape[0])
    squares = torch.zeros(count, device=x.device)
    side = length if by_gram else 0
    total = torch.zeros(count, side, side, device=x.device)
    for gradient in gradients:
        if "bias" in trainable:
            squares += gradient.sum(1).square().sum(1)
        if "weight" in trainable and by_gram:
            total += gram(gradient.to(x.dtype))
        elif "weight" in trainable:
            squares += direct_squares(x, gradient.to(x.dtype))
    return squares + (total * accumulation(gram(x))).flatten(1).sum(1) if by_gram else squares
