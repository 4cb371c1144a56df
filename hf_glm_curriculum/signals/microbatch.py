"""One forward pass of training, seen sample by sample.

Shape letters: B rows, T positions, S samples (segments of packed rows counted apart), H hidden
size, E embedding size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_glm_curriculum.data.content_id import segment_ids
from hf_glm_curriculum.segments import SegmentMap, segment_map

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.ghost_sums import ExactNorms

ONSET_TOKENS = 8
"""Label tokens at the start of an answer that the onset loss averages over."""

OPENING_TOKENS = 4
"""Label tokens at the start of an answer that the opening loss averages over."""

CLOSING_TOKENS = 2
"""Label tokens at the end of an answer (its last one and the end of turn, in most data)."""

EMBEDDING_SIZE = 64
"""Dimensions the mean hidden state is projected to."""

TOKEN_MEANS = ("onset_loss", "opening_loss", "first_loss", "closing_loss")
"""Names of the per-sample means over parts of the answer."""


@dataclass
class SampleSignals:
    """What one micro-batch says of its samples; every tensor stays on the training device."""

    ids: Tensor
    """[S] int64 content ids."""
    n_tokens: Tensor
    """[S] int64 label tokens of the sample in this micro-batch."""
    loss: Tensor
    """[S] float32 mean cross-entropy over the sample's label tokens, nats; NaN without labels."""
    onset_loss: Tensor
    """[S] float32 mean of loss less unigram surprisal over the first 8 label tokens, nats."""
    opening_loss: Tensor
    """[S] float32 mean loss of the first 4 label tokens, nats."""
    first_loss: Tensor
    """[S] float32 loss of the first label token, nats."""
    closing_loss: Tensor
    """[S] float32 mean loss of the last 2 label tokens, nats."""
    grad_norm: Tensor
    """[S] float32 norm of the gradient of the sample's own mean loss; NaN where unobserved."""
    weight: Tensor
    """[S] float32 weight the sample's token losses were multiplied with."""
    embedding: Tensor | None = None
    """[S, E] float32 unit-norm projection of the mean last hidden state, if asked for."""
    notes: dict[str, Tensor] = field(default_factory=dict)
    """[S] tensors that a weigher left on the micro-batch, by its own names."""

    def at(self, keep: Tensor) -> SampleSignals:
        """The signals at some positions, [S] → [len(keep)]."""
        return self._each(lambda values: values[keep])

    def to(self, device: torch.device) -> SampleSignals:
        """The signals on another device; themselves where they are there already."""
        return self if self.ids.device == device else self._each(lambda values: values.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> SampleSignals:
        names = (f.name for f in fields(self) if f.name not in ("embedding", "notes"))
        changed = {name: change(getattr(self, name)) for name in names}
        embedding = None if self.embedding is None else change(self.embedding)
        notes = {name: change(value) for name, value in self.notes.items()}
        return SampleSignals(**changed, embedding=embedding, notes=notes)


def target_segments(segments: Tensor, labels: Tensor) -> Tensor:
    """Say which sample each position's prediction belongs to.

    Position t predicts token t + 1, so its loss belongs to the sample of the *label*: the last
    position of one packed sample never speaks for the next one's first token unless the labels
    ask for it.

    Args:
        segments: [B, T] int64 sample number of each token, -1 on padding.
        labels: [B, T] int64 labels as the collator made them (unshifted), negative = ignored.

    Returns:
        [B, T] int64 sample number of the label that position t predicts, -1 where there is none.
    """
    target = torch.full_like(segments, -1)
    shifted = torch.where(labels[:, 1:] >= 0, segments[:, 1:], target[:, 1:])
    target[:, :-1] = shifted
    return target


def segment_sum(values: Tensor, segments: Tensor, count: int) -> Tensor:
    """Sum ``values`` by sample.

    Args:
        values: [B, T] or [B, T, E] tensor.
        segments: [B, T] int64 sample of each position, -1 to leave a position out.
        count: number of samples S.

    Returns:
        [S] or [S, E] float32 sums (float64 stays float64).
    """
    dtype = torch.promote_types(values.dtype, torch.float32)
    tail = values.shape[2:]
    # Positions without a sample fall into an extra last slot, so that no mask leaves the device.
    slot = torch.where(segments >= 0, segments, count).reshape(-1)
    out = torch.zeros((count + 1, *tail), dtype=dtype, device=values.device)
    out.index_add_(0, slot, values.reshape(-1, *tail).to(dtype))
    return out[:count]


def spread(per_sample: Tensor, segments: Tensor, fill: float = 0.0) -> Tensor:
    """Give each position its sample's value: [S] → [B, T], ``fill`` where there is no sample."""
    table = torch.cat([per_sample, per_sample.new_full((1,), fill)])
    return table[torch.where(segments >= 0, segments, per_sample.numel())]


def label_rank(target: Tensor, n_tokens: Tensor) -> Tensor:
    """Number the label tokens of every sample.

    Args:
        target: [B, T] int64 from :func:`target_segments`; samples are numbered in row-major order.
        n_tokens: [S] label tokens of each sample.

    Returns:
        [B, T] int64: 0 for a sample's first label token, 1 for its next, …; -1 elsewhere.
    """
    used = target >= 0
    before = n_tokens.cumsum(0) - n_tokens
    rank = used.reshape(-1).long().cumsum(0).reshape(target.shape) - 1
    return torch.where(used, rank - spread(before, target, 0), -1)


@dataclass
class Microbatch:
    """Book-keeping of one training forward, filled in by hooks as the pass goes on."""

    ids: Tensor
    segments: SegmentMap
    target: Tensor
    labels: Tensor
    n_tokens: Tensor
    loss: Tensor | None = None
    onset_loss: Tensor | None = None
    opening_loss: Tensor | None = None
    first_loss: Tensor | None = None
    closing_loss: Tensor | None = None
    weight: Tensor | None = None
    grad_norm: Tensor | None = None
    exact: ExactNorms | None = field(default=None, repr=False)
    """Norms over all trainable parameters, while a listener asks for them."""

    embedding: Tensor | None = None
    coefficient: Tensor | None = field(default=None, repr=False)
    """[S] or scalar: d(backpropagated scalar) / d(one unweighted token loss), weight left out."""

    notes: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def from_inputs(
        cls,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cu_seq_lens: Tensor | None = None,
    ) -> Microbatch:
        """Identify the samples of a forward pass from its inputs, all [B, T] int64."""
        segments = segment_map(input_ids, attention_mask, position_ids, cu_seq_lens)
        ids = segment_ids(input_ids, segments)
        target = target_segments(segments.index, labels)
        n_tokens = segment_sum((target >= 0).float(), target, segments.count).long()
        return cls(ids=ids, segments=segments, target=target, labels=labels, n_tokens=n_tokens)

    @property
    def count(self) -> int:
        """Number of samples S."""
        return self.segments.count

    def next_labels(self) -> Tensor:
        """[B, T] int64 label that each position predicts, 0 where there is none."""
        shifted = torch.zeros_like(self.labels)
        shifted[:, :-1] = self.labels[:, 1:].clamp(min=0)
        return shifted * (self.target >= 0)

    def record_losses(self, token_loss: Tensor, surprisal: Tensor) -> None:
        """Reduce token losses to per-sample ones.

        Args:
            token_loss: [B, T] float32 cross-entropy of the label each position predicts, nats.
            surprisal: [B, T] float32 unigram surprisal of that label, nats.
        """
        token_loss = token_loss.detach()
        rank = label_rank(self.target, self.n_tokens)
        from_end = spread(self.n_tokens, self.target, 0) - 1 - rank
        used = rank >= 0
        self.loss = self._mean(token_loss, used, None)
        self.onset_loss = self._mean(token_loss - surprisal, rank < ONSET_TOKENS, ONSET_TOKENS)
        self.opening_loss = self._mean(token_loss, rank < OPENING_TOKENS, OPENING_TOKENS)
        self.first_loss = self._mean(token_loss, rank < 1, 1)
        self.closing_loss = self._mean(token_loss, from_end < CLOSING_TOKENS, CLOSING_TOKENS)

    def _mean(self, values: Tensor, keep: Tensor, most: int | None) -> Tensor:
        """Mean of ``values`` over the label positions to keep, at most ``most`` a sample."""
        total = segment_sum(values * keep, self.target, self.count)
        number = self.n_tokens if most is None else self.n_tokens.clamp(max=most)
        return torch.where(number > 0, total / number.clamp(min=1), torch.nan)

    def record_hidden_gradient(self, gradient: Tensor) -> None:
        """Turn d(scalar)/d(last hidden states), [B, T, H], into per-sample norms.

        The gradient is divided by the coefficient it came in with (weight, denominator,
        accumulation, world size and loss scale) and by the sample's label tokens, so that the
        result is the norm of the gradient of the sample's own mean loss. A sample of weight 0
        sends no gradient and has no observation.
        """
        if self.coefficient is None or self.weight is None:
            return
        squares = gradient.detach().float().square().sum(-1)
        norm = segment_sum(squares, self.target, self.count).sqrt()
        scale = (self.coefficient * self.weight * self.n_tokens).abs()
        seen = (scale > 0) & torch.isfinite(norm)
        self.grad_norm = torch.where(seen, norm / scale.clamp(min=1e-38), torch.nan)

    def signals(self, exact: bool = False) -> SampleSignals | None:
        """Collect what was seen, or None if the pass never reached a loss.

        Args:
            exact: give the norms over all trainable parameters instead of the hidden ones.
        """
        if self.loss is None or self.weight is None:
            return None
        norm = self.exact.norms(self) if exact and self.exact is not None else self.grad_norm
        missing = torch.full_like(self.loss, torch.nan)
        found = {
            name: missing if getattr(self, name) is None else getattr(self, name)
            for name in TOKEN_MEANS
        }
        return SampleSignals(
            ids=self.ids,
            n_tokens=self.n_tokens,
            loss=self.loss,
            grad_norm=missing if norm is None else norm,
            weight=self.weight,
            embedding=self.embedding,
            notes=self.notes,
            **found,
        )


def concatenate(parts: list[SampleSignals]) -> SampleSignals:
    """Join the signals of several micro-batches, in order.

    Raises:
        ValueError: if ``parts`` is empty.
    """
    if not parts:
        raise ValueError("parts: needs at least one micro-batch, got none.")
    names = [f.name for f in fields(SampleSignals) if f.name not in ("embedding", "notes")]
    joined = {name: torch.cat([getattr(p, name) for p in parts]) for name in names}
    embeddings = [p.embedding for p in parts if p.embedding is not None]
    whole = torch.cat(embeddings) if len(embeddings) == len(parts) else None
    common = set.intersection(*(set(p.notes) for p in parts))
    notes = {name: torch.cat([p.notes[name] for p in parts]) for name in sorted(common)}
    return SampleSignals(**joined, embedding=whole, notes=notes)
