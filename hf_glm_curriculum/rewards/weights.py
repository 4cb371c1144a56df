"""From D scores to one reward: a weighted mean in which closed dimensions say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.rewards.dimensions import (
    check_dimensions,
    check_scores,
    dimension_index,
    open_mask,
)
from hf_glm_curriculum.rewards.normalise import RunningMoments

_DEFAULTS = {"factual": 2.0, "logic": 1.0, "compliance": 0.5}


class DimensionWeights:
    """r = Σ_d w_d·(m_d·s_d + (1 − m_d)·b_d) / Σ_d w_d, with b the running mean of open scores.

    A closed dimension is worth its mean, so that being uncertain pays nothing. (Renormalising over
    the open dimensions would turn scores .35/.65/.95 from 0.52 into 0.75 by closing the first.)
    Source of the weights: article 1, §4.2 (factual 2.0, compliance 0.5).

    Args:
        prior: b of a dimension in which nothing has been open yet. 0.5 is where a trained reward
            model is anchored; 0 suits scores normalised by `RewardShaper`.
        window: rows after which old scores fade from the running means.
        **weights: weight of each dimension, in column order. Names among factual, logic and
            compliance change their defaults (2.0, 1.0, 0.5); with any other name, the given ones
            are all there are.

    Raises:
        ConfigError: if a weight is negative or not finite, or all are 0.
    """

    def __init__(self, *, prior: float = 0.5, window: int = 10_000, **weights: float) -> None:
        known = weights.keys() <= _DEFAULTS.keys()
        self.weights = _checked({**_DEFAULTS, **weights} if known else weights)
        self.prior = float(prior)
        self.window = int(window)
        self._moments = RunningMoments(len(self.weights), self.window)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self.weights)

    @property
    def baseline(self) -> Tensor:
        """The running means b, float64 [D]; the prior where nothing has been open yet."""
        return torch.where(self._moments.count > 0, self._moments.mean, self.prior)

    def vector(self, dimensions: Sequence[str] | None = None) -> Tensor:
        """The weights, float64 [D], in the order of `dimensions` (their own without).

        Raises:
            ConfigError: if a dimension has no weight; the message names the nearest that has.
        """
        names = self.dimensions if dimensions is None else check_dimensions(dimensions)
        for name in names:
            dimension_index(name, self.dimensions, "weights")
        return torch.tensor([self.weights[name] for name in names], dtype=torch.float64)

    def reordered(self, dimensions: Sequence[str]) -> DimensionWeights:
        """The same weights for another column order, or for some of the dimensions; no state.

        Raises:
            ConfigError: if a dimension has no weight.
        """
        values = dict(zip(dimensions, self.vector(dimensions).tolist(), strict=True))
        return self.of(values, prior=self.prior, window=self.window)

    @classmethod
    def of(
        cls, weights: Mapping[str, float], *, prior: float = 0.5, window: int = 10_000
    ) -> DimensionWeights:
        """Exactly these weights, without the default dimensions.

        Args:
            weights: of every dimension, in column order.
            prior: as the class takes it.
            window: as the class takes it.

        Raises:
            ConfigError: as the class does.
        """
        made = cls(prior=prior, window=window)
        made.weights = _checked(weights)
        made._moments = RunningMoments(len(made.weights), made.window)
        return made

    def combine(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        baseline: Tensor | Sequence[float] | None = None,
        *,
        unlocked: Tensor | None = None,
        update: bool = True,
    ) -> Tensor:
        """One reward a row.

        Args:
            scores: [B, D], finite; NaN is null and counts as closed.
            mask: [B, D], true where open; everything without it.
            baseline: b, [D]. Without it the running means, which take this batch in first.
            unlocked: bool [D]; dimensions that are locked for all rows leave both sums.
            update: whether the running means take this batch in (not in evaluation).

        Returns:
            [B] in the dtype of the scores. A row with nothing open is worth the weighted baseline.

        Raises:
            DataError: if shapes do not fit, a score is infinite, or nothing is unlocked.
        """
        check_scores(scores, self.dimensions, bounded=False)
        opened = open_mask(scores, mask)
        if baseline is None:
            if update:
                self.observe(scores, opened)
            baseline = self.baseline
        else:
            baseline = torch.as_tensor(baseline)
            if baseline.shape != (len(self.weights),):
                raise DataError(
                    f"baseline: must be [{len(self.weights)}], one value for each of "
                    f"{', '.join(self.dimensions)}; got {list(baseline.shape)}"
                )
        weights = self._in_use(unlocked).to(scores)
        filled = torch.where(opened, scores, baseline.to(scores).expand_as(scores))
        return filled @ (weights / weights.sum())

    def observe(self, scores: Tensor, mask: Tensor | None = None) -> None:
        """Take open scores into the running means.

        Raises:
            DataError: if the shapes do not fit.
        """
        self._moments.update(scores, open_mask(scores, mask))

    def state_dict(self) -> dict[str, Any]:
        """The running means, as plain values."""
        return {"dimensions": list(self.dimensions), "moments": self._moments.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`.

        Raises:
            StateError: if it is of other dimensions.
        """
        if list(state["dimensions"]) != list(self.dimensions):
            raise StateError(
                f"weights: state is of the dimensions {', '.join(state['dimensions'])}, these are "
                f"{', '.join(self.dimensions)}; resume with the dimensions the run began with"
            )
        self._moments.load_state_dict(state["moments"])

    def _in_use(self, unlocked: Tensor | None) -> Tensor:
        weights = self.vector()
        if unlocked is not None:
            weights = weights * unlocked.to(weights.device).double()
        if not bool(weights.sum() > 0):
            raise DataError(
                "unlocked: no dimension of positive weight is in use; unlock one of "
                f"{', '.join(n for n, w in self.weights.items() if w > 0)} first"
            )
        return weights


def _checked(weights: Mapping[str, float]) -> dict[str, float]:
    check_dimensions(tuple(weights))
    found = {name: float(value) for name, value in weights.items()}
    for name, value in found.items():
        if not 0.0 <= value < float("inf"):
            raise ConfigError(f"weights: {name} must be at least 0 and finite, got {value}")
    if not any(found.values()):
        raise ConfigError(f"weights: one of {', '.join(found)} must be above 0, all are 0")
    return found
