"""The rule of the alignment monitor: when to go to the base source and when to go back.

Notation: aᵢ score of sample i; v variance of the scores of one optimizer step; e smoothed
variance, e ← s·e + (1 − s)·v; m running median of v over steps of the course.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig
from hf_glm_curriculum.signals.microbatch import SampleSignals


def alignment_score(signals: SampleSignals) -> Tensor:
    """Alignment of each sample, aᵢ = exp(−ℓᵢ) with ℓᵢ its mean token loss in nats.

    The geometric mean of the probabilities that the model gives the answer's tokens, so between 0
    and 1 (article 1, §1, "alignment score").

    Args:
        signals: of S samples.

    Returns:
        [S] float; NaN for samples without a label token.
    """
    return torch.exp(-signals.loss)


def moments(scores: Sequence[Tensor], device: torch.device) -> Tensor:
    """Number, sum and sum of squares of the finite scores, [3] float64, to be added over ranks."""
    total = torch.zeros(3, dtype=torch.float64, device=device)
    for part in scores:
        values = part.detach().double()
        finite = torch.isfinite(values)
        values = torch.where(finite, values, 0.0)
        total += torch.stack([finite.double().sum(), values.sum(), values.square().sum()])
    return total


def pooled_variance(count: float, total: float, squares: float) -> float | None:
    """Sample variance (n − 1) of pooled scores; None for fewer than two."""
    if count < 2:
        return None
    return max(0.0, (squares - total * total / count) / (count - 1))


@dataclass(frozen=True)
class Switch:
    """A decision.

    Attributes:
        to_base: whether to the base source or away from it.
        reason: in words, with the numbers.
    """

    to_base: bool
    reason: str


class VarianceSwitch:
    """Follows the variance of the scores and says when to switch.

    Attributes:
        at_base: whether the base source has been asked for.
        acts_from: the step from which the last switch shows in the data.
        smoothed: e; None before the first observation.
        switches: how many there were.
    """

    def __init__(self, config: AlignmentConfig) -> None:
        self.config = config
        self.at_base = False
        self.acts_from = 0
        self.smoothed: float | None = None
        self.switches = 0
        self._history: deque[float] = deque(maxlen=config.median_steps)
        self._seen = 0

    @property
    def median(self) -> float | None:
        """m; None before the first step of the course."""
        return statistics.median(self._history) if self._history else None

    @property
    def levels(self) -> tuple[float, float] | None:
        """Threshold and release in the variance's own unit; None while there is no median."""
        config, scale = self.config, 1.0
        if config.relative:
            if self.median is None:
                return None
            scale = self.median
        # An infinite threshold stays infinite over a median of 0.
        threshold = config.threshold if config.threshold == float("inf") else None
        return (threshold or config.threshold * scale, config.release_at * scale)

    def step(self, variance: float | None, step: int, lag: int) -> Switch | None:
        """Take one optimizer step in and decide.

        Args:
            variance: v; None where the step had fewer than two samples, which changes nothing.
            step: optimizer steps done.
            lag: steps until a switch shows in the data.
        """
        if variance is None:
            return None
        keep = self.config.smoothing
        before = variance if self.smoothed is None else self.smoothed
        self.smoothed = keep * before + (1.0 - keep) * variance
        # Steps read before the last switch took effect are of the other source.
        if not self.at_base and step > self.acts_from:
            self._history.append(variance)
            self._seen += 1
        found = self._decision(step)
        if found is not None:
            self.at_base, self.acts_from = found.to_base, step + lag
            self.switches += 1
        return found

    def _decision(self, step: int) -> Switch | None:
        config, levels, e = self.config, self.levels, self.smoothed
        stayed = step - self.acts_from
        if levels is None or e is None or self._seen < config.warmup_steps:
            return None
        if stayed < config.min_stay and self.switches:
            return None
        threshold, release = levels
        if not self.at_base and e > threshold:
            return Switch(True, f"{self._told(e)} above the threshold {threshold:.4g}")
        if self.at_base and e < release:
            return Switch(False, f"{self._told(e)} below the release level {release:.4g}")
        if self.at_base and config.max_stay is not None and stayed >= config.max_stay:
            return Switch(False, f"{self._told(e)}, and {config.max_stay} steps at the base")
        return None

    def _told(self, e: float) -> str:
        of = f" (median {self.median:.4g})" if self.median is not None else ""
        return f"variance of the scores {e:.4g}{of}"

    def state_dict(self) -> dict[str, Any]:
        """Everything but the settings, in JSON types."""
        return {
            "at_base": self.at_base,
            "acts_from": self.acts_from,
            "smoothed": self.smoothed,
            "switches": self.switches,
            "history": list(self._history),
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.at_base, self.acts_from = state["at_base"], state["acts_from"]
        self.smoothed, self.switches = state["smoothed"], state["switches"]
        self._history.clear()
        self._history.extend(state["history"])
        self._seen = state["seen"]
