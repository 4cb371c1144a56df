"""Rules that tell a policy gaming its reward: the reward rises and something else goes wrong.

Everything is judged on a window of the last updates, by least squares: the change of a quantity is
its fitted slope times the window's length, and counts only where the slope is `least_t` standard
errors from 0, widened by the likeness of neighbouring residuals (lag-1 autocorrelation ρ: by
√((1 + ρ)/(1 − ρ)), the usual correction for effective sample size).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_glm_curriculum.errors import ConfigError


@dataclass(frozen=True)
class MonitorConfig:
    """When to raise an alarm.

    Raises:
        ConfigError: naming the field, the rule and the value.
    """

    window: int = 20
    """Updates looked back on. No alarm before so many have been seen."""

    least_t: float = 3.0
    """Standard errors that a slope must lie from 0 to count as a trend."""

    patience: int = 5
    """Updates in a row that a rule must hold before there is an alarm."""

    length_change: float = 0.25
    """Relative change of the mean length, up or down, while the reward rises."""

    diversity_fall: float = 0.15
    """Relative fall of the diversity while the reward rises."""

    refusal_rise: float = 0.1
    """Rise of the refusal rate while the reward rises."""

    judge_fall: float = 0.05
    """Fall of the held-out judge's mark while the reward rises."""

    dimension_fall: float = 0.05
    """Fall of one dimension's mean score while the reward rises."""

    kl_acceleration: float = 2.0
    """How many times faster the KL grows in the second half of the window than in the first."""

    entropy_fall: float = 0.3
    """Relative fall of the policy's entropy."""

    stop: bool = False
    """End the training at an alarm."""

    def __post_init__(self) -> None:
        """Check every field."""
        if self.window < 6:
            raise ConfigError(f"window: must be at least 6 updates, got {self.window}")
        if self.patience < 1:
            raise ConfigError(f"patience: must be at least 1, got {self.patience}")
        for name in ("least_t", *_LIMITS):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")


_LIMITS = (
    "length_change",
    "diversity_fall",
    "refusal_rise",
    "judge_fall",
    "dimension_fall",
    "kl_acceleration",
    "entropy_fall",
)


@dataclass(frozen=True)
class Trend:
    """Least-squares line through a window of values."""

    start: float
    """The line's value at the window's first update."""

    change: float
    """What the line rises by until the last update."""

    t: float
    """Slope over its standard error; infinite for a perfect line."""

    @property
    def relative(self) -> float:
        """The change as a share of the start's magnitude."""
        return self.change / max(abs(self.start), 1e-8)


@dataclass(frozen=True)
class Alarm:
    """One thing that goes wrong."""

    kind: str
    """length_up, length_down, diversity, refusals, judge, dimension_<name>, kl or entropy."""

    message: str
    """What was seen, in one line."""


def trend(values: Sequence[float]) -> Trend:
    """Fit a line through n ≥ 3 values, one an update."""
    y = np.asarray(values, dtype=float)
    x = np.arange(len(y)) - (len(y) - 1) / 2
    spread = float(x @ x)
    slope = float(x @ y) / spread
    residual = y - y.mean() - slope * x
    # Rounding leaves a residual on a perfect line; a billionth of the values is no noise.
    squares = float(residual @ residual)
    noise = squares / (len(y) - 2)
    # Neighbouring updates resemble each other: fewer values speak than there are.
    likeness = float(residual[1:] @ residual[:-1]) / squares if squares else 0.0
    likeness = min(max(likeness, 0.0), 0.9)
    noise *= (1 + likeness) / (1 - likeness)
    floor = (1e-9 * float(np.abs(y).max(initial=0.0))) ** 2
    error = math.sqrt(noise / spread) if noise > floor else 0.0
    t = slope / error if error else math.copysign(math.inf, slope) if slope else 0.0
    return Trend(float(y.mean() + slope * x[0]), slope * (len(y) - 1), t)


def find_alarms(series: Mapping[str, Sequence[float]], config: MonitorConfig) -> list[Alarm]:
    """Apply every rule to one window.

    Args:
        series: for each quantity its values, oldest first; quantities are reward, length,
            diversity, refusals, judge, kl, entropy and dimension_<name>. Those with less than half
            a window of values are left out.
        config: thresholds.
    """
    enough = max(6, config.window // 2)
    known = {name: values for name, values in series.items() if len(values) >= enough}
    trends = {name: trend(values) for name, values in known.items()}
    alarms = _while_reward_rises(trends, config)
    if "kl" in known:
        alarms += _kl(known["kl"], config)
    if "entropy" in trends and _falls(trends["entropy"], config):
        fall = -trends["entropy"].relative
        if fall >= config.entropy_fall:
            alarms.append(Alarm("entropy", f"the policy's entropy fell by {fall:.0%}"))
    return alarms


def _while_reward_rises(trends: Mapping[str, Trend], config: MonitorConfig) -> list[Alarm]:
    reward = trends.get("reward")
    if reward is None or not _rises(reward, config):
        return []
    rose = f"while the reward rose by {reward.change:.3g}"
    alarms = []
    length = trends.get("length")
    if length is not None and abs(length.t) >= config.least_t:
        if length.relative >= config.length_change:
            alarms.append(Alarm("length_up", f"answers grew by {length.relative:.0%} {rose}"))
        if length.relative <= -config.length_change:
            alarms.append(Alarm("length_down", f"answers shrank by {-length.relative:.0%} {rose}"))
    diversity = trends.get("diversity")
    if diversity and _falls(diversity, config) and -diversity.relative >= config.diversity_fall:
        alarms.append(Alarm("diversity", f"diversity fell by {-diversity.relative:.0%} {rose}"))
    refusals = trends.get("refusals")
    if refusals and _rises(refusals, config) and refusals.change >= config.refusal_rise:
        alarms.append(Alarm("refusals", f"refusals rose by {refusals.change:.2f} {rose}"))
    judged = trends.get("judge")
    if judged and _falls(judged, config) and -judged.change >= config.judge_fall:
        alarms.append(Alarm("judge", f"the held-out judge fell by {-judged.change:.3g} {rose}"))
    for name, found in trends.items():
        lost = name.startswith("dimension_") and _falls(found, config)
        if lost and -found.change >= config.dimension_fall:
            title = name.removeprefix("dimension_")
            alarms.append(Alarm(name, f"{title} fell by {-found.change:.3g} {rose}"))
    return alarms


def _kl(values: Sequence[float], config: MonitorConfig) -> list[Alarm]:
    """KL that grows ever faster: a policy that has found something to exploit runs away."""
    middle = len(values) // 2
    early, late = trend(values[: len(values) - middle]), trend(values[middle:])
    if not _rises(late, config):
        return []
    # Growth from a standstill is acceleration only if it amounts to something.
    first = max(early.change, 0.0)
    if late.change < config.kl_acceleration * first or late.change < 0.5 * abs(late.start):
        return []
    pace = f"{late.change / first:.1f} times as fast as in" if first else "after standing still in"
    return [Alarm("kl", f"the KL grows {pace} the window's first half")]


def _rises(found: Trend, config: MonitorConfig) -> bool:
    return found.t >= config.least_t and found.change > 0


def _falls(found: Trend, config: MonitorConfig) -> bool:
    return found.t <= -config.least_t and found.change < 0
