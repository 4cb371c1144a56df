"""Which positions of a batch belong to which sample, cut into equal lengths.

Shape letters: B rows, T positions, S samples, K samples of a bucket, L positions of a bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Bucket:
    """Samples of similar length."""

    members: list[int]
    """Sample numbers on the host."""
    samples: Tensor
    """[K] int64 sample numbers."""
    positions: Tensor
    """[K, L] int64 places in the flattened batch; any valid place where ``used`` is false."""
    used: Tensor
    """[K, L] bool, false behind a sample's last position."""

    def take(self, values: Tensor) -> Tensor:
        """[B, T, ...] → [K, L, ...]; holds other positions' values where ``used`` is false."""
        return values.flatten(0, 1)[self.positions]

    def take_gradient(self, values: Tensor) -> Tensor:
        """[B, T, O] → [K, L, O] with zeros where ``used`` is false."""
        return torch.where(self.used.unsqueeze(-1), self.take(values), 0)


@dataclass(frozen=True)
class Layout:
    """Positions sorted by sample. Lengths are known on the host, which costs one copy to it."""

    order: Tensor
    """[B·T] int64 places in the flattened batch, sample by sample."""
    start: Tensor
    """[S] int64 where each sample begins in ``order``."""
    length: Tensor
    """[S] int64 positions of each sample."""
    host_length: list[int]
    """``length`` on the host."""

    @classmethod
    def of(cls, *indices: Tensor, count: int) -> list[Layout]:
        """Sort positions by sample, for several maps at once.

        Args:
            indices: [B, T] int64 sample of each position, -1 for none.
            count: number of samples S.

        Returns:
            A layout for each index, for one copy to the host.
        """
        slots = [torch.where(index >= 0, index, count).reshape(-1) for index in indices]
        lengths = torch.stack([slot.bincount(minlength=count + 1)[:count] for slot in slots])
        host = lengths.tolist()
        return [
            cls(slot.argsort(stable=True), pad(length.cumsum(0)[:-1], (1, 0)), length, known)
            for slot, length, known in zip(slots, lengths, host, strict=True)
        ]

    def buckets(self, elements: int | None = None) -> Iterator[Bucket]:
        """Every sample with at least one position, beside others of its own power of two.

        Args:
            elements: most positions in a bucket of several samples; None for no bound.
        """
        groups: dict[int, list[int]] = {}
        for sample, length in enumerate(self.host_length):
            if length:
                groups.setdefault(length.bit_length(), []).append(sample)
        for bits, members in groups.items():
            size = len(members) if elements is None else max(1, elements >> bits)
            for start in range(0, len(members), size):
                yield self.bucket(members[start : start + size])

    def bucket(self, members: list[int]) -> Bucket:
        """The positions of some samples, as long as the longest of them."""
        longest = max(1, *(self.host_length[sample] for sample in members))
        samples = torch.tensor(members, device=self.order.device)
        offset = torch.arange(longest, device=self.order.device)
        used = offset < self.length[samples].unsqueeze(1)
        place = torch.where(used, self.start[samples].unsqueeze(1) + offset, 0)
        return Bucket(members, samples, self.order[place], used)
