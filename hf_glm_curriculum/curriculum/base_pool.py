"""A second, quiet source of rows behind a laned data set, and when it is read instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hf_glm_curriculum.data.mixture_host import HostSteps
from hf_glm_curriculum.errors import ConfigError, StateError

COURSE_SOURCE, BASE_SOURCE = "course", "base"
_ROOM = 16_384


class BasePool:
    """Says which optimizer steps read the base rows; what ``CurriculumMixture`` is to streams.

    A whole step reads base rows or none. Changes are asked for after a step and act ``lag_steps``
    later, when no worker can have read the step yet; they lie in memory that workers share.
    """

    unit = "rows"

    def __init__(self) -> None:
        """Start on the course."""
        # Row 0 counts the entries; each is (first step, 1 where the base is read from there on).
        self._log = torch.zeros((_ROOM + 1, 2), dtype=torch.int64).share_memory_()
        self.lag_steps = 2

    @property
    def source_names(self) -> list[str]:
        """The course and the base."""
        return [COURSE_SOURCE, BASE_SOURCE]

    @property
    def entries(self) -> list[list[int]]:
        """The log: [first step, 0 or 1] each."""
        return self._log[1 : 1 + int(self._log[0, 0])].tolist()

    @property
    def ratios(self) -> dict[str, float]:
        """What was last asked for."""
        count = int(self._log[0, 0])
        return _named(bool(count and self._log[count, 1]))

    def ratios_at(self, step: int) -> dict[str, float]:
        """What step ``step`` + 1 of the run reads."""
        return _named(self.at_base(step))

    def at_base(self, step: int) -> bool:
        """Whether the step after ``step`` done steps reads base rows."""
        for entry in range(int(self._log[0, 0]), 0, -1):
            if int(self._log[entry, 0]) <= step:
                return bool(self._log[entry, 1])
        return False

    def connect(self, args: Any) -> None:
        """Learn from a trainer's arguments how far ahead its loader reads."""
        self.lag_steps = HostSteps.from_arguments(args).lag_steps

    def reset(self) -> None:
        """Forget every switch."""
        self._log.zero_()

    def hold(self, ratios: Mapping[str, float], step: int) -> None:
        """Read the base from step ``step + lag_steps`` on.

        Raises:
            ConfigError: if the ratios are not all of the base.
        """
        if ratios.get(BASE_SOURCE) != 1.0:
            raise ConfigError(f"ratios: a step reads the base whole or not at all, got {ratios}.")
        self._add(step + self.lag_steps, 1)

    def release(self, step: int) -> None:
        """Go back to the course from step ``step + lag_steps`` on."""
        self._add(step + self.lag_steps, 0)

    def _add(self, first: int, on: int) -> None:
        count = int(self._log[0, 0]) + 1
        if count > _ROOM:
            raise StateError(
                f"base pool: the log holds {_ROOM} switches at most; raise min_stay or the "
                "threshold."
            )
        self._log[count, 0], self._log[count, 1] = first, on
        self._log[0, 0] = count

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The log, in JSON types."""
        return {"entries": self.entries}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the log of :meth:`state_dict`."""
        self.reset()
        for first, on in state["entries"]:
            self._add(first, on)


def _named(base: bool) -> dict[str, float]:
    return {COURSE_SOURCE: 0.0 if base else 1.0, BASE_SOURCE: 1.0 if base else 0.0}
