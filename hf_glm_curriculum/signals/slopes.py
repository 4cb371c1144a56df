"""Trends of short histories with gaps: pure functions over [M, K] tensors, oldest visit first."""

from __future__ import annotations

import torch
from torch import Tensor


def slope(values: Tensor) -> Tensor:
    """Least-squares slope of each row over its visit numbers.

    b = Σ (x − x̄)(y − ȳ) / Σ (x − x̄)² with x = 0, 1, … over the row's finite entries.

    Args:
        values: [M, K] float; NaN entries are left out and do not count as visits.

    Returns:
        [M] change per visit; NaN with fewer than two finite entries.
    """
    valid = torch.isfinite(values)
    x = torch.where(valid, valid.to(values).cumsum(1) - 1, 0)
    y = torch.where(valid, values, 0)
    n = valid.sum(1).to(values)
    x_mean = x.sum(1) / n.clamp(min=1)
    y_mean = y.sum(1) / n.clamp(min=1)
    dx = torch.where(valid, x - x_mean.unsqueeze(1), 0)
    dy = torch.where(valid, y - y_mean.unsqueeze(1), 0)
    spread = dx.square().sum(1)
    return torch.where(n >= 2, (dx * dy).sum(1) / spread.clamp(min=1e-12), torch.nan)


def mean_valid(values: Tensor) -> Tensor:
    """[M, K] → [M] mean of the finite entries of each row; NaN where there is none."""
    valid = torch.isfinite(values)
    n = valid.sum(1)
    total = torch.where(valid, values, 0).sum(1)
    return torch.where(n > 0, total / n.clamp(min=1), torch.nan)


def std_valid(values: Tensor) -> Tensor:
    """[M, K] → [M] population standard deviation of the finite entries; NaN with fewer than two."""
    valid = torch.isfinite(values)
    n = valid.sum(1)
    deviation = torch.where(valid, values - mean_valid(values).unsqueeze(1), 0)
    variance = deviation.square().sum(1) / n.clamp(min=1)
    return torch.where(n >= 2, variance.sqrt(), torch.nan)


def last_valid(values: Tensor) -> Tensor:
    """[M, K] → [M] last finite entry of each row; NaN where there is none."""
    valid = torch.isfinite(values)
    k = values.shape[1]
    places = torch.arange(1, k + 1, device=values.device)
    last = torch.where(valid, places, 0).amax(1)
    picked = values.gather(1, (last - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(last > 0, picked, torch.nan)


def append(values: Tensor, new: Tensor) -> Tensor:
    """Drop the oldest entry where a row is full and put ``new`` behind its last one.

    Args:
        values: [M, K] histories, finite entries first (oldest first), NaN behind them.
        new: [M] the newest value.

    Returns:
        [M, K] histories after the visit, in the same form.
    """
    k = values.shape[1]
    n = torch.isfinite(values).sum(1)
    full = n >= k
    moved = torch.where(full.unsqueeze(1), values.roll(-1, 1), values)
    place = torch.where(full, k - 1, n)
    return moved.scatter(1, place.unsqueeze(1), new.unsqueeze(1))


def robust_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Median and 1.48 × median absolute deviation of the finite entries of [R], both scalars.

    NaN where nothing is finite. 1.48 makes the second the standard deviation of a normal sample.
    """
    median = torch.nanmedian(torch.where(torch.isfinite(values), values, torch.nan))
    return median, 1.48 * torch.nanmedian((values - median).abs())
