"""What the trainer that reads a mixture tells about its steps.

A mixture only knows rows. Rows of an optimizer step, and how far ahead the loader reads, come from
the trainer's arguments, which are found on the stack while one of its callbacks runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_glm_curriculum.errors import ConfigError, IncompatibleError

UNREAD_EVENTS = ("on_init_end", "on_train_begin")
"""Events before which the run under way has read no row."""


@dataclass(frozen=True)
class HostEvent:
    """The trainer's event under way.

    Attributes:
        name: of the callback method, such as "on_step_begin".
        args: the trainer's arguments.
        state: the trainer's state.
    """

    name: str
    args: Any
    state: Any


def event_under_way() -> HostEvent | None:
    """The event of a trainer's callback handler that called us; None outside of any."""
    frame = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == "call_event"
            and frame.f_globals.get("__name__") == "transformers.trainer_callback"
        ):
            known = frame.f_locals
            return HostEvent(known["event"], known["args"], known["state"])
        frame = frame.f_back
    return None


class EarlyAsks:
    """What callbacks of the run under way have asked for before it read a row.

    Several callbacks may begin a mixture's log anew, or load it, in one ``on_train_begin``. What
    others asked for before them in the same event has to outlive that, whichever stands first.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._asks: list[tuple[dict[str, float], int | None]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave everything behind: copies are for workers, and runs begin without them."""
        return {"_run": None, "_asks": []}

    def note(self, event: HostEvent, ratios: Mapping[str, float], step: int | None) -> None:
        """Keep one ask."""
        if event.state is not self._run:  # a trainer makes its state anew for every run
            self._run, self._asks = event.state, []
        self._asks.append((dict(ratios), step))

    def of(self, event: HostEvent | None) -> list[tuple[dict[str, float], int | None]]:
        """(ratios, step) asked for so far in an event, in order."""
        if event is None or event.name not in UNREAD_EVENTS:
            return []
        return list(self._asks) if event.state is self._run else []


@dataclass(frozen=True)
class HostSteps:
    """How a trainer turns rows into optimizer steps.

    Attributes:
        rows_per_step: rows in one optimizer step, over all ranks and accumulated batches.
        lag_steps: steps from the call of ``set_ratios`` to the first step it acts on.
        skips: whether a resumed trainer reads past the rows it has trained on already.
        dispatches: whether rank 0 reads for all ranks, where there are several.
    """

    rows_per_step: int
    lag_steps: int
    skips: bool = True
    dispatches: bool = False

    @classmethod
    def from_arguments(cls, args: Any) -> HostSteps:
        """Read the arguments of a ``transformers.Trainer`` or TRL trainer.

        The lag covers what a loader may have read when a callback runs: the batches of the step
        under way, one that accelerate holds back, and those in the queues of its workers; in whole
        steps, 1 + ⌈(1 + workers · prefetch_factor) / gradient_accumulation⌉.

        Raises:
            IncompatibleError: if the batch size may change under way.
        """
        if getattr(args, "auto_find_batch_size", False):
            raise IncompatibleError(
                "auto_find_batch_size: the rows of a step change with it, and with them every "
                "place in the mixture; set it to False and give a batch size that fits."
            )
        accelerator = getattr(args, "accelerator_config", None)
        split = bool(getattr(accelerator, "split_batches", False))
        world = int(getattr(args, "world_size", 1) or 1)
        accumulation = int(args.gradient_accumulation_steps)
        batch = int(args.train_batch_size) * (1 if split else world)
        workers = int(args.dataloader_num_workers)
        queued = workers * (args.dataloader_prefetch_factor or 2)
        return cls(
            rows_per_step=batch * accumulation,
            lag_steps=1 + math.ceil((1 + queued) / accumulation),
            skips=not args.ignore_data_skip,
            dispatches=world > 1 and getattr(accelerator, "dispatch_batches", None) is not False,
        )


DEFAULT_LAG = 2
"""Steps of lag where no trainer tells how far ahead its loader reads."""


class StepClock:
    """Turns optimizer steps into rows, from what the user gave and what the trainer tells.

    Attributes:
        origin: (step, row) from which steps are counted.
    """

    def __init__(
        self, rows_per_step: int | None, stratify: int | None, lag_steps: int | None
    ) -> None:
        self._given = {"rows_per_step": rows_per_step, "stratify": stratify}
        self._lag_given = lag_steps
        self.host: HostSteps | None = None
        self.origin: tuple[int, int] = (0, 0)

    @property
    def rows_per_step(self) -> int | None:
        """Rows of one optimizer step over all ranks; None where nobody has told."""
        if self.host is not None:
            return self.host.rows_per_step
        return self._given["rows_per_step"] or self._given["stratify"]

    @property
    def lag_steps(self) -> int:
        """Steps from a change to the first step it acts on."""
        needed = DEFAULT_LAG if self.host is None else self.host.lag_steps
        return max(self._lag_given or 0, needed) if self.host else self._lag_given or needed

    def row_of(self, step: int) -> int:
        """The first row of an optimizer step.

        Raises:
            ConfigError: if nobody has told the rows of a step.
        """
        if self.rows_per_step is None:
            raise ConfigError(
                "rows_per_step: not known, so steps cannot be turned into rows; build the mixture "
                "with rows_per_step=, or call connect(args) with the trainer's arguments"
            )
        first_step, first_row = self.origin
        return first_row + (step - first_step) * self.rows_per_step

    def connect(self, args: Any, streams: bool, window: int) -> None:
        """Learn from a trainer's arguments.

        Args:
            args: the arguments.
            streams: whether there are sources without row numbers.
            window: rows for which states are kept.

        Raises:
            IncompatibleError: if the arguments contradict what the user gave.
            ConfigError: if more rows may be under way than the window holds.
        """
        host = HostSteps.from_arguments(args)
        rows = host.rows_per_step
        for name, given in self._given.items():
            if given and (rows % given if name == "stratify" else rows != given):
                raise IncompatibleError(
                    f"{name}: is {given}, and the trainer's optimizer step holds {rows} rows over "
                    f"all ranks; set {name}={rows}"
                )
        if host.dispatches and streams:
            raise IncompatibleError(
                "dispatch_batches: rank 0 would read for all ranks, and the others could not tell "
                'which stream a sample is from; set accelerator_config={"dispatch_batches": False}'
            )
        self.host = host
        if (self.lag_steps + 2) * rows > window:
            raise ConfigError(
                f"window: must hold the {(self.lag_steps + 2) * rows} rows that may be under way, "
                f"is {window}; raise it"
            )
