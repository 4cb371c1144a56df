"""What a plan holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hf_glm_curriculum.scaling.post_law import Estimate


@dataclass
class StagePlan:
    """One stage of a plan.

    Attributes:
        stage: Its name.
        units: Unit → how many, with the interval of the best number.
        flops: Part → FLOPs.
        share: Of the whole budget.
        hours: Device-hours; None without a device.
        money: What they cost; None without a device.
    """

    stage: str
    units: dict[str, Estimate]
    flops: dict[str, float]
    share: float = 0.0
    hours: float | None = None
    money: float | None = None


@dataclass
class Plan:
    """What a budget buys.

    Attributes:
        flops: The budget.
        parameters: N, with the interval of the best N.
        result: What the law predicts for this plan, with its interval.
        metric: What the result is.
        stages: In order.
        unspent: FLOPs left because every limit is reached.
        notes: What a reader should know.
    """

    flops: float
    parameters: Estimate
    result: Estimate
    metric: str
    stages: list[StagePlan]
    unspent: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def hours(self) -> float | None:
        """Device-hours of all stages."""
        return _total([stage.hours for stage in self.stages])

    @property
    def money(self) -> float | None:
        """Price of all stages."""
        return _total([stage.money for stage in self.stages])

    def stage(self, name: str) -> StagePlan:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.stage == name)


@dataclass
class SizeChoice:
    """One size of a comparison at equal compute.

    Attributes:
        parameters: N.
        result: The law's value with its interval.
        shares: Stage → share of the budget.
        units: Unit → how many.
        best: Share of the law's draws in which this size is the best of those compared.
    """

    parameters: float
    result: Estimate
    shares: dict[str, float]
    units: dict[str, float]
    best: float


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
