"""Asking a mixture for the share of instructions that the schedule wants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.migration.objectives import Mixture
from hf_glm_curriculum.migration.schedule import MigrationSchedule


def shares(base: Mapping[str, float], instruction: str, ratio: float) -> dict[str, float]:
    """The share of every source when instructions take ``ratio`` of the label tokens.

    The other sources keep their proportions: r_i = (1 − ratio)·b_i / Σ b over the others.

    Args:
        base: shares before the migration; that of ``instruction`` does not matter.
        instruction: the source that grows.
        ratio: its share, between 0 and 1.

    Raises:
        ConfigError: if no other source has a share.
    """
    others = {name: value for name, value in base.items() if name != instruction}
    total = sum(others.values())
    if total <= 0:
        raise ConfigError(
            f"ratios: some source beside {instruction!r} must have a share before the migration, "
            f"got {dict(base)}; give the mixture the ratios of pre-training."
        )
    scale = (1.0 - ratio) / total
    return {n: ratio if n == instruction else others[n] * scale for n in base}


class Injection:
    """Makes a mixture's ratios follow a schedule, and counts what was drawn."""

    def __init__(self, mixture: Mixture, instruction: str) -> None:
        """Take the mixture's ratios of now for those of pre-training.

        Raises:
            ConfigError: if no source but the instructions has a share.
        """
        self.mixture = mixture
        self._instruction = instruction
        self._base = dict(mixture.ratios)
        self._counted: dict[str, int] = {}
        shares(self._base, instruction, 0.0)

    def begin(self, schedule: MigrationSchedule, step: int) -> None:
        """Ask for the first steps of a run that has read nothing yet.

        A change takes the mixture some steps to come into effect; those until then are asked for
        here, so that every step holds what the schedule says of it.
        """
        self.mixture.reset()
        self._counted = {}
        for ahead in range(self.mixture.lag_steps + 1):
            self._ask(schedule.injected_ratio(step + ahead), step + ahead)

    def ask(self, schedule: MigrationSchedule, step: int) -> None:
        """Ask for the step on which a change asked for now, after ``step`` steps, first acts."""
        self._ask(schedule.injected_ratio(step + self.mixture.lag_steps), step)

    def _ask(self, ratio: float, step: int) -> None:
        self.mixture.set_ratios(shares(self._base, self._instruction, ratio), step=step)

    def report(self, step: int) -> dict[str, float]:
        """Instructions' share asked for at the last of ``step`` steps, and drawn since last time.

        Returns:
            ``ratio_asked`` and, where any row was drawn, ``ratio_drawn``; in the mixture's unit.
        """
        asked = self.mixture.ratios_at(max(0, step - 1))
        counts = {name: int(n[self.mixture.unit]) for name, n in self.mixture.drawn(step).items()}
        fresh = {name: n - self._counted.get(name, 0) for name, n in counts.items()}
        self._counted, total = counts, sum(fresh.values())
        found = {"ratio_asked": asked.get(self._instruction, 0.0)}
        if total:
            found["ratio_drawn"] = fresh.get(self._instruction, 0) / total
        return found

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a resumed run needs, in JSON types."""
        state = self.mixture.state_dict(step)
        return {"base": self._base, "counted": self._counted, "mixture": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the changes asked for ahead are in the mixture's log.

        Raises:
            StateError: if the state is of another mixture.
        """
        self._base, self._counted = state["base"], state["counted"]
        self.mixture.load_state_dict(state["mixture"])
