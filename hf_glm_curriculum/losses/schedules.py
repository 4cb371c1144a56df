"""Weights that change with the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from hf_glm_curriculum.config_types import coerce, nearest
from hf_glm_curriculum.errors import ConfigError


@dataclass(frozen=True)
class Ramp:
    """From one weight to another between two steps: linearly, or along half a cosine.

    Before ``start`` the weight is ``begin``; from ``end`` on it is ``to``.
    """

    start: int
    end: int
    begin: float
    to: float
    kind: str = "linear"

    def __post_init__(self) -> None:
        """Check order and weights."""
        if not 0 <= self.start < self.end:
            raise ConfigError(
                f"schedule: must have 0 <= start < end, got start {self.start}, end {self.end}."
            )
        for name in ("begin", "to"):
            checked_weight(getattr(self, name), f"schedule {name}")

    def __call__(self, step: int) -> float:
        """Weight at an optimizer step."""
        p = min(max((step - self.start) / (self.end - self.start), 0.0), 1.0)
        if self.kind == "cosine":
            p = 0.5 - 0.5 * math.cos(math.pi * p)
        return self.begin + (self.to - self.begin) * p

    def to_dict(self) -> dict[str, Any]:
        """What :func:`parse_schedule` reads."""
        ends = {"start": self.start, "end": self.end, "from": self.begin, "to": self.to}
        return {"kind": self.kind, **ends}

    @property
    def largest(self) -> float:
        """Largest weight it will give."""
        return max(self.begin, self.to)

    @property
    def first_step(self) -> int:
        """Step at which it begins to act."""
        return self.start


@dataclass(frozen=True)
class Steps:
    """A weight that jumps at given steps; ``begin`` before the first."""

    at: Mapping[int, float] = field(default_factory=dict)
    begin: float = 0.0

    def __post_init__(self) -> None:
        """Check steps and weights."""
        if not self.at:
            raise ConfigError("schedule at: needs at least one step, got none.")
        if min(self.at) < 0:
            raise ConfigError(f"schedule at: steps must be 0 or more, got {min(self.at)}.")
        for weight in (*self.at.values(), self.begin):
            checked_weight(weight, "schedule at")

    def __call__(self, step: int) -> float:
        """Weight at an optimizer step."""
        reached = [s for s in self.at if s <= step]
        return self.at[max(reached)] if reached else self.begin

    def to_dict(self) -> dict[str, Any]:
        """What :func:`parse_schedule` reads."""
        return {"kind": "step", "at": dict(self.at), "from": self.begin}

    @property
    def largest(self) -> float:
        """Largest weight it will give."""
        return max(self.begin, *self.at.values())

    @property
    def first_step(self) -> int:
        """Step at which it begins to act."""
        return min(self.at)


Schedule = Ramp | Steps | Callable[[int], float]
"""Optimizer step → weight."""

_FIELDS = {
    "linear": {"start": int, "end": int, "from": float, "to": float},
    "cosine": {"start": int, "end": int, "from": float, "to": float},
    "step": {"at": dict[int, float], "from": float},
}
_NEEDED = {"linear": ("end", "to"), "cosine": ("end", "to"), "step": ("at",)}


def linear(start: int, end: int, begin: float, to: float) -> Ramp:
    """A linear :class:`Ramp`."""
    return Ramp(start, end, begin, to)


def cosine(start: int, end: int, begin: float, to: float) -> Ramp:
    """A :class:`Ramp` along half a cosine."""
    return Ramp(start, end, begin, to, "cosine")


def parse_schedule(value: Any, weight: float = 0.0, step: int = 0) -> Schedule:
    """Make a schedule of a mapping, or check that one is callable.

    Args:
        value: a callable of the step, or ``{kind: linear | cosine, start, end, from, to}`` or
            ``{kind: step, at: {step: weight}, from}``. ``start`` defaults to ``step`` and ``from``
            to ``weight``.
        weight: the term's present weight.
        step: the present step.

    Raises:
        ConfigError: naming the field, the rule and what was given.
    """
    if not isinstance(value, Mapping):
        if callable(value):
            return cast(Callable[[int], float], value)
        raise ConfigError(
            f"schedule: must be a mapping or a callable of the step, got {value!r}; write "
            "{kind: linear, start: 0, end: 100, from: 0, to: 1}."
        )
    kind = value.get("kind")
    if kind not in _FIELDS:
        raise ConfigError(f"schedule kind: got {kind!r}; {nearest(str(kind), _FIELDS)}")
    types = _FIELDS[kind]
    for name in value:
        if name != "kind" and name not in types:
            raise ConfigError(f"schedule: no field {name!r} in {kind}; {nearest(str(name), types)}")
    missing = [name for name in _NEEDED[kind] if name not in value]
    if missing:
        raise ConfigError(f"schedule: {kind} needs {', '.join(missing)}, got {dict(value)}.")
    found = {n: coerce(v, types[n], f"schedule {n}") for n, v in value.items() if n != "kind"}
    begin = found.get("from", weight)
    if kind == "step":
        return Steps(found["at"], begin)
    return Ramp(found.get("start", step), found["end"], begin, found["to"], kind)


def describe_schedule(schedule: Schedule | None) -> Any:
    """A mapping that :func:`parse_schedule` reads, or "callable", or None."""
    if schedule is None or isinstance(schedule, Ramp | Steps):
        return None if schedule is None else schedule.to_dict()
    return "callable"


def checked_weight(value: Any, name: str) -> float:
    """A weight as a float.

    Raises:
        ConfigError: if it is no finite number of 0 or more.
    """
    weight = coerce(value, float, name)
    if not math.isfinite(weight) or weight < 0:
        raise ConfigError(f"{name}: must be a finite number of 0 or more, got {value!r}.")
    return weight
