"""The terms of a composite loss: names, weights, schedules, who has joined."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.losses.schedules import (
    Ramp,
    Schedule,
    Steps,
    checked_weight,
    describe_schedule,
    parse_schedule,
)
from hf_glm_curriculum.losses.terms import FunctionTerm

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


@dataclass
class TermEntry:
    """One term and how it counts."""

    term: FunctionTerm
    weight: float = 1.0
    active: bool = True
    schedule: Schedule | None = None
    joined: bool = True
    """False for a term that is known, and may be added while training runs."""

    def weight_at(self, step: int, name: str = "term") -> float:
        """Weight at an optimizer step; 0 where it is not active."""
        if not (self.joined and self.active):
            return 0.0
        if self.schedule is None:
            return self.weight
        return checked_weight(self.schedule(step), f"schedule of {name!r} at step {step}")

    @property
    def largest_weight(self) -> float:
        """Largest weight that is known to come."""
        scheduled = self.schedule.largest if isinstance(self.schedule, Ramp | Steps) else 0.0
        return scheduled if self.schedule is not None and scheduled else self.weight

    def describe(self) -> dict[str, Any]:
        """Settings as a state file or a control file holds them."""
        return {
            "weight": self.weight,
            "active": self.active,
            "joined": self.joined,
            "schedule": describe_schedule(self.schedule),
        }


class TermTable:
    """Named terms in the order they were added.

    Attributes:
        step: optimizer steps done; schedules read it.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.step = 0
        self._entries: dict[str, TermEntry] = {}

    # -- reading -----------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """Names of all terms, joined or not."""
        return list(self._entries)

    @property
    def weights(self) -> dict[str, float]:
        """Name → weight at the present step; 0 for inactive terms, nothing for unjoined ones."""
        return {n: e.weight_at(self.step, n) for n, e in self._entries.items() if e.joined}

    def entry(self, name: str) -> TermEntry:
        """A term with its settings.

        Raises:
            ConfigError: if there is none of that name; the nearest is named.
        """
        if name not in self._entries:
            known = nearest(name, self._entries) if self._entries else "there is none yet"
            raise ConfigError(f"term: no term {name!r}; {known}")
        return self._entries[name]

    def acting(self) -> Iterator[tuple[str, TermEntry, float]]:
        """Terms whose weight is not 0 at the present step: name, entry, weight."""
        for name, entry in self._entries.items():
            weight = entry.weight_at(self.step, name)
            if weight > 0:
                yield name, entry, weight

    # -- changing ----------------------------------------------------------------------------

    def register(self, name: str, term: Any) -> None:
        """Make a term known without adding it: a control file may add it while training runs.

        Raises:
            ConfigError: if the name is taken or unusable, or the term is not callable.
        """
        self._put(name, TermEntry(self._wrapped(name, term), joined=False))

    def remove_term(self, name: str) -> None:
        """Take a term out; it stays known by its name.

        Raises:
            ConfigError: if there is none of that name.
        """
        self.entry(name).joined = False

    def set_weight(self, name: str, weight: float) -> None:
        """Set a term's weight from the next forward on; a schedule of it ends.

        Raises:
            ConfigError: if there is no such term, or the weight is not finite and ≥ 0.
        """
        entry = self.entry(name)
        entry.weight, entry.schedule = checked_weight(weight, f"weight of {name!r}"), None

    def set_active(self, name: str, active: bool) -> None:
        """Let a term count, or keep its weight and leave it out.

        Raises:
            ConfigError: if there is no such term, or ``active`` is not a bool.
        """
        if not isinstance(active, bool):
            raise ConfigError(f"active of {name!r}: must be true or false, got {active!r}.")
        self.entry(name).active = active

    def schedule(self, name: str, schedule: Any) -> None:
        """Let a term's weight follow the optimizer step.

        Args:
            name: of the term.
            schedule: ``linear(...)``, ``cosine(...)``, ``Steps(...)``, a mapping that
                ``parse_schedule`` reads, any callable of the step, or None for no schedule.

        Raises:
            ConfigError: if there is no such term, or the schedule cannot be read.
        """
        entry = self.entry(name)
        if schedule is None:
            entry.weight, entry.schedule = entry.weight_at(self.step, name) or entry.weight, None
            return
        try:
            entry.schedule = parse_schedule(schedule, entry.weight, self.step)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def check_run(self, max_steps: int) -> None:
        """Refuse schedules that would never act in a run of ``max_steps`` optimizer steps.

        Raises:
            ConfigError: naming the term and both steps.
        """
        for name, entry in self._entries.items():
            if isinstance(entry.schedule, Ramp | Steps) and entry.schedule.first_step >= max_steps:
                raise ConfigError(
                    f"schedule of {name!r}: begins at step {entry.schedule.first_step}, and the "
                    f"run ends after {max_steps}; let it begin earlier."
                )

    # -- state -------------------------------------------------------------------------------

    def describe(self) -> dict[str, dict[str, Any]]:
        """Name → settings, as plain values."""
        return {name: entry.describe() for name, entry in self._entries.items()}

    def restore(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Take settings of :meth:`describe` over; terms themselves are code and must be here.

        Raises:
            StateError: if a joined term of the state is not known here.
        """
        lost = [n for n, s in settings.items() if s["joined"] and n not in self._entries]
        if lost:
            raise StateError(
                f"terms: the checkpoint's run had {', '.join(lost)}, which this composite does not "
                "know; add or register them before training."
            )
        for name, saved in settings.items():
            if name not in self._entries:
                continue
            entry = self._entries[name]
            entry.weight, entry.active = float(saved["weight"]), bool(saved["active"])
            entry.joined = bool(saved["joined"])
            schedule = saved["schedule"]
            if schedule == "callable":
                continue  # code cannot be saved: the one given in the program goes on
            if isinstance(schedule, Mapping) and "at" in schedule:
                # JSON has no integer keys.
                schedule = {**schedule, "at": {int(k): v for k, v in schedule["at"].items()}}
            entry.schedule = None if schedule is None else parse_schedule(schedule)

    # -- helpers -----------------------------------------------------------------------------

    def _put(self, name: str, entry: TermEntry) -> None:
        known = self._entries.get(name)
        if known is not None and known.joined:
            raise ConfigError(
                f"term: {name!r} is there already; remove_term it first, or choose another name."
            )
        self._entries[name] = entry

    @staticmethod
    def _wrapped(name: str, term: Any) -> FunctionTerm:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"term name: must be letters, digits, '_' and '-', got {name!r}; control files "
                "and metrics are written with it."
            )
        return term if isinstance(term, FunctionTerm) else FunctionTerm(term, name)
