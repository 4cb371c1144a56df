"""What each block of keys is worth to a query, estimated from a summary of the block.

The attention mass a query q puts on a block is Σ exp(q·k) over its keys. A summary keeps the keys
that lie farthest from the block's mean, the outliers, and the mean μ and variance σ² (by
coordinate) of the others. Their mass is estimated by log n + q·μ + ½ Σ q²σ², the second-order form
for keys spread normally about μ; that of an outlier is exact. Summing up the outliers keeps
what a mean washes out: the few keys of a block that draw nearly all of its mass.

Letters: K key-value heads, g query heads each serves, M blocks, b keys a block, r outliers, d head
size, T tiles, P probes (queries) a tile, W blocks of the sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SUMMARY_KEYS = 2**16
"""Keys summarised at a time, for a bound on memory."""

SCORE_NUMBERS = 2**23
"""Scores held at a time."""


@dataclass(frozen=True)
class BlockSummaries:
    """Summaries of full blocks, float32.

    Attributes:
        exact: [K, M, r + 1, d], the outliers, then the mean of the other keys.
        variance: [K, M, d] of the other keys by coordinate; None where only means are kept.
        rest: how many keys the mean stands for, b - r.
    """

    exact: Tensor
    variance: Tensor | None
    rest: int

    @property
    def blocks(self) -> int:
        """M."""
        return self.exact.shape[1]

    def join(self, more: BlockSummaries) -> BlockSummaries:
        """These blocks followed by ``more``."""
        variance = None
        if self.variance is not None and more.variance is not None:
            variance = torch.cat([self.variance, more.variance], dim=1)
        return BlockSummaries(torch.cat([self.exact, more.exact], dim=1), variance, self.rest)

    def first(self, blocks: int) -> BlockSummaries:
        """The first so many blocks."""
        variance = None if self.variance is None else self.variance[:, :blocks]
        return BlockSummaries(self.exact[:, :blocks], variance, self.rest)


def summarize_blocks(keys: Tensor, outliers: int, order: int) -> BlockSummaries:
    """Summarise full blocks.

    Args:
        keys: [K, M, b, d], any float dtype.
        outliers: r, fewer than b.
        order: 1 for means, 2 for means and variances.

    Returns:
        The summaries, M blocks.
    """
    size = keys.shape[2]
    step = max(1, SUMMARY_KEYS // size)
    parts = [_summarize(part.float(), outliers, order) for part in keys.split(step, dim=1)]
    if not parts:
        empty = keys.new_zeros(keys.shape[0], 0, outliers + 1, keys.shape[-1], dtype=torch.float32)
        return BlockSummaries(empty, empty[:, :, 0] if order == 2 else None, size - outliers)
    found = parts[0]
    for part in parts[1:]:
        found = found.join(part)
    return found


def _summarize(keys: Tensor, outliers: int, order: int) -> BlockSummaries:
    rest = keys.shape[2] - outliers
    mean = keys.mean(dim=2, keepdim=True)
    apart = (keys - mean).square().sum(dim=-1)
    far = apart.topk(outliers, dim=-1).indices if outliers else apart[..., :0].long()
    chosen = keys.gather(2, far.unsqueeze(-1).expand(-1, -1, -1, keys.shape[-1]))
    others = torch.ones_like(apart).scatter_(2, far, 0.0).unsqueeze(-1)
    middle = (keys * others).sum(dim=2, keepdim=True) / rest
    variance = None
    if order == 2:
        variance = ((keys - middle).square() * others).sum(dim=2) / rest
    return BlockSummaries(torch.cat([chosen, middle], dim=2), variance, rest)


def block_masses(
    probes: Tensor, weights: Tensor, summaries: BlockSummaries, before: Tensor, scaling: float
) -> Tensor:
    """Estimate how the attention of each tile's probes spreads over the blocks before it.

    Every probe spreads a mass of 1 over the full blocks before its tile's own; the masses of a
    tile's probes and of the query heads that share a key-value head are averaged.

    Args:
        probes: [K, g, T, P, d] queries, as the scores use them.
        weights: [T, P], 1 for a probe that is there, 0 for none.
        summaries: of the sequence's blocks, W of them.
        before: int64 [T], blocks before each tile's own, at most W.
        scaling: factor on the scores.

    Returns:
        float32 [K, T, W], 0 for blocks not before the tile.
    """
    heads, group, tiles, count, _ = probes.shape
    blocks = summaries.blocks
    masses = probes.new_zeros(heads, tiles, blocks, dtype=torch.float32)
    rows = heads * group * count * max(1, blocks) * summaries.exact.shape[2]
    step = max(1, SCORE_NUMBERS // rows)
    place = torch.arange(blocks, device=probes.device)
    for start in range(0, tiles, step):
        part = slice(start, start + step)
        logs = _log_parts(probes[:, :, part].float() * scaling, summaries)
        hidden = place >= before[part, None]
        logs = logs.masked_fill(hidden[:, None, :, None], -torch.inf)
        share = torch.softmax(logs.flatten(-2), dim=-1).view(logs.shape).sum(-1)
        share = share.nan_to_num(0.0) * weights[part, :, None]
        total = weights[part].sum(-1).clamp(min=1.0) * group
        masses[:, part] = share.sum(dim=(1, 3)) / total[:, None]
    return masses


def _log_parts(probes: Tensor, summaries: BlockSummaries) -> Tensor:
    """Logarithms of the masses of outliers and of the rest, [K, g, T, P, W, r + 1].

    Args:
        probes: [K, g, T, P, d], scaled.
        summaries: of W blocks.
    """
    heads, group, tiles, count, size = probes.shape
    flat = probes.reshape(heads, -1, size)
    exact = summaries.exact
    scores = (flat @ exact.flatten(1, 2).transpose(1, 2)).unflatten(2, exact.shape[1:3])
    scores[..., -1] += math.log(summaries.rest)
    if summaries.variance is not None:
        scores[..., -1] += 0.5 * (flat.square() @ summaries.variance.transpose(1, 2))
    return scores.view(heads, group, tiles, count, *exact.shape[1:3])


def spread(masses: Tensor, before: Tensor) -> Tensor:
    """Entropy of the masses as a share of the largest possible, float32 [T].

    Args:
        masses: [K, T, W] from `block_masses`.
        before: int64 [T], blocks before each tile's own; the entropy is over those.

    Returns:
        The mean over heads; 1 where a tile has at most one block before it.
    """
    share = masses / masses.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    entropy = -torch.xlogy(share, share).sum(dim=-1).mean(dim=0)
    largest = before.clamp(min=2).float().log()
    return torch.where(before > 1, entropy / largest, 1.0)
