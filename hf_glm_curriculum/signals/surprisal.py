"""Unigram surprisal of label tokens, counted while training runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class UnigramSurprisal:
    """Add-one unigram model of label tokens, kept on the training device.

    Surprisal of token v = log(total + V) − log(count_v + 1), in nats. With no counts it is log V
    for every token, so that a young model only shifts the onset loss by a constant.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        """Start with no counts for ``vocab_size`` tokens."""
        self.counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._pending = torch.zeros_like(self.counts)

    def update(self, labels: Tensor, used: Tensor) -> None:
        """Count the labels [B, T] where ``used`` [B, T] is true, from the next commit on."""
        weight = used.reshape(-1).to(self._pending.dtype)
        self._pending.index_add_(0, labels.reshape(-1), weight)

    def commit(self, reduce: Callable[[Tensor], None] | None = None) -> None:
        """Make what was counted since the last commit part of the model.

        Args:
            reduce: sums a [V] tensor over all ranks in place, so that every rank holds the same
                counts; None on one process.
        """
        if reduce is not None:
            reduce(self._pending)
        self.counts += self._pending
        self._pending.zero_()

    def load(self, counts: Tensor) -> None:
        """Continue from saved counts [V]."""
        self.counts.copy_(counts)
        self._pending.zero_()

    def __call__(self, labels: Tensor) -> Tensor:
        """Return the surprisal, in nats, of each label: int64 [...] → float32 [...]."""
        total = self.counts.sum() + self.counts.numel()
        return total.log() - (self.counts[labels] + 1).log()
