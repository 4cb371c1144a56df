"""Where a reading stands among those seen before: a running histogram, and rarity of tokens.

Shape letters: V vocabulary size, n bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError

BINS = 512
_STEEPEST = 64.0


class RunningRanks:
    """Ranks in [0, 1] of readings among earlier ones, in bounded memory and without copies to host.

    A histogram of (x / top)^power; a rank is the share of counted readings below, linear within a
    bin. What is added counts from the next :meth:`commit` on, so that one pass over a batch sees
    one histogram.

    Args:
        top: the largest reading; larger ones count as it.
        power: below 1 spends more bins on small readings.
        prior: how many readings a default rank weighs as.
    """

    def __init__(self, top: float, power: float = 1.0, prior: float = 0.0) -> None:
        """Start with nothing counted."""
        self.top, self.power, self.prior = top, power, prior
        self.counts = torch.zeros(BINS, dtype=torch.float32)
        self._pending = torch.zeros_like(self.counts)

    def add(self, readings: Tensor, weights: Tensor | None = None) -> None:
        """Count readings [...] with weights [...] (1 by default) from the next commit on."""
        self.to(readings.device)
        place, _ = self._place(readings.detach().reshape(-1))
        given = torch.ones_like(place) if weights is None else weights.reshape(-1)
        self._pending.index_add_(0, place.long(), given.to(self._pending.dtype))

    def commit(
        self, half_life: float | None = None, reduce: Callable[[Tensor], None] | None = None
    ) -> None:
        """Make what was added since the last commit part of the histogram.

        Args:
            half_life: readings after which an older one counts half; None forgets nothing.
            reduce: sums a tensor over all ranks in place; None on one process.
        """
        if reduce is not None:
            reduce(self._pending)
        if half_life is not None:
            self.counts *= torch.pow(0.5, self._pending.sum() / half_life)
        self.counts += self._pending
        self._pending.zero_()

    def load(self, counts: Tensor) -> None:
        """Go on from saved counts [n]."""
        self.counts = counts.to(torch.float32).clone()
        self._pending = torch.zeros_like(self.counts)

    def rank(self, readings: Tensor, default: Tensor) -> Tensor:
        """Ranks of readings [...], or ``default`` [...] where nothing is counted yet."""
        self.to(readings.device)
        counts = self.counts.to(readings.dtype)
        total = counts.sum()
        place, inside = self._place(readings)
        below = (counts.cumsum(0) - counts)[place.long()]
        rank = (below + inside * counts[place.long()]) / total.clamp(min=1e-30)
        known = total / (total + self.prior).clamp(min=1e-30)
        return (default + known * (rank - default)).clamp(0.0, 1.0)

    def to(self, device: torch.device) -> None:
        """Move the histogram, where it is not there already."""
        if self.counts.device == device:
            return
        # Made in inference mode they could not be added to in training.
        with torch.inference_mode(False):
            self.counts, self._pending = self.counts.to(device), self._pending.to(device)

    def centres(self) -> Tensor:
        """[n] readings in the middle of each bin."""
        along = (torch.arange(BINS, device=self.counts.device) + 0.5) / BINS
        return along.pow(1 / self.power) * self.top

    def _place(self, readings: Tensor) -> tuple[Tensor, Tensor]:
        """Bin of each reading, as a float, and how far into it."""
        along = (readings / self.top).clamp(0.0, 1.0).pow(self.power) * BINS
        place = along.floor().clamp(max=BINS - 1)
        return place, along - place


def rarity(counts: Tensor) -> Tensor:
    """Share of a corpus that consists of more frequent tokens: 0 the most frequent, 1 never seen.

    Args:
        counts: [V] how often each token occurs; at least one above 0.

    Returns:
        [V] float64; tokens of equal count share a value.
    """
    exact = counts.to(torch.float64)
    levels, place = torch.unique(exact, return_inverse=True)
    mass = torch.zeros_like(levels).index_add_(0, place, exact)
    above = mass.sum() - mass.cumsum(0)
    return (above / mass.sum())[place]


def exponent_for(mean: float, low: float, high: float, ranks: Tensor, weights: Tensor) -> float:
    """γ with which low + (high − low)·rank^γ has a wanted weighted mean.

    Args:
        mean: the wanted mean temperature.
        low: temperature at rank 0.
        high: temperature at rank 1.
        ranks: [n] in [0, 1].
        weights: [n] ≥ 0.

    Raises:
        ConfigError: if no γ from 1/64 to 64 gives it.
    """
    exact, share = ranks.to(torch.float64), weights.to(torch.float64)
    share = share / share.sum()
    wanted = (mean - low) / (high - low)

    def found(exponent: float) -> float:
        return float((share * exact.pow(exponent)).sum())

    least, most = 1 / _STEEPEST, _STEEPEST
    if not found(most) <= wanted <= found(least):
        ends = sorted(low + (high - low) * found(e) for e in (least, most))
        raise ConfigError(
            f"mean: must lie from {ends[0]:.3f} to {ends[1]:.3f} for these token statistics, got "
            f"{mean}; move low or high."
        )
    for _ in range(60):
        middle = math.sqrt(least * most)
        if found(middle) > wanted:
            least = middle
        else:
            most = middle
    return math.sqrt(least * most)
