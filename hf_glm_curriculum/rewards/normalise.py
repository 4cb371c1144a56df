"""Running mean and variance of each dimension, over open rows only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError, StateError


class RunningMoments:
    """Mean and (population) variance of D columns, updated batch by batch.

    Batches are merged with what is known by Chan et al. 1979; what is known counts for at most
    `window` rows, so that the moments follow a policy that moves. Up to `window` rows they are
    exact.

    Args:
        size: D.
        window: rows after which old ones fade.

    Raises:
        ConfigError: if a number is below 1.
    """

    def __init__(self, size: int, window: int = 10_000) -> None:
        if size < 1 or window < 1:
            raise ConfigError(f"size, window: must be at least 1, got {size} and {window}")
        self.window = int(window)
        self.count = torch.zeros(size, dtype=torch.float64)
        self.mean = torch.zeros(size, dtype=torch.float64)
        self.variance = torch.zeros(size, dtype=torch.float64)

    def update(self, values: Tensor, mask: Tensor) -> None:
        """Take a batch in.

        Args:
            values: floats [B, D].
            mask: bool [B, D]; false rows do not count, whatever their value.

        Raises:
            DataError: if the shapes do not fit.
        """
        if values.shape != mask.shape or values.shape[1:] != self.count.shape:
            raise DataError(
                f"values, mask: must both be [rows, {len(self.count)}], got {list(values.shape)} "
                f"and {list(mask.shape)}"
            )
        kept = torch.where(mask, values, 0.0).detach().double().cpu()
        chosen = mask.cpu()
        number = chosen.sum(dim=0).double()
        mean = kept.sum(dim=0) / number.clamp_min(1)
        squares = torch.where(chosen, (kept - mean) ** 2, 0.0).sum(dim=0)
        self._merge(number, mean, squares)

    def _merge(self, number: Tensor, mean: Tensor, squares: Tensor) -> None:
        """Chan's rule: the batch has `number` rows, a mean, and squares about that mean."""
        before = self.count.clamp_max(self.window)
        total = (before + number).clamp_min(1)
        step = mean - self.mean
        spread = self.variance * before + squares + step**2 * before * number / total
        seen = number > 0
        self.mean = torch.where(seen, self.mean + step * number / total, self.mean)
        self.variance = torch.where(seen, spread / total, self.variance)
        self.count += number

    def standardise(self, values: Tensor, least_std: float) -> Tensor:
        """(value − mean) / max(std, `least_std`), [B, D]; columns never seen stay as they are.

        Until a column has two rows, it has no spread, and only its mean is taken off.
        """
        std = self.variance.sqrt().clamp_min(least_std)
        std = torch.where(self.count < 2, 1.0, std)
        return (values - self.mean.to(values)) / std.to(values)

    def state_dict(self) -> dict[str, list[float]]:
        """Count, mean and variance, as plain lists."""
        return {name: getattr(self, name).tolist() for name in ("count", "mean", "variance")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`.

        Raises:
            StateError: if it has another number of columns.
        """
        loaded = {name: torch.tensor(state[name], dtype=torch.float64) for name in state}
        if any(column.shape != self.count.shape for column in loaded.values()):
            raise StateError(
                f"moments: state has {len(state['count'])} columns, these have "
                f"{len(self.count)}; resume with the dimensions the run began with"
            )
        self.count, self.mean = loaded["count"], loaded["mean"]
        self.variance = loaded["variance"]
