"""What a change of objective costs in time: seconds in which no step is computed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainerCallback

from hf_glm_curriculum.reporting import RunReporter, reporter_for


@dataclass
class Stopwatch:
    """Seconds that the parts of a run's start and end took.

    Attributes:
        seconds: Name → seconds, added up.
    """

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the time of a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())


class SwitchClock(TrainerCallback):
    """Measures the pause between two steps, at the switch and elsewhere.

    A pause runs from the end of one optimizer update to the beginning of the next forward pass,
    without logging, evaluation and saving, which have nothing to do with the objective: callbacks
    at the end of a step, the next batches, callbacks at the beginning of a step. It goes into the
    trainer right behind the callbacks whose time counts; `tail` goes last.

    Args:
        step: Optimizer steps done when the switch comes.
        on_switch: Called once with the figures of :meth:`figures`.
    """

    def __init__(self, step: int, on_switch: Callable[[dict[str, float]], None]) -> None:
        self.step, self.on_switch = step, on_switch
        self.tail = _Tail(self)
        self.started: float | None = None
        self._pauses: list[float] = []
        self._updated = self._head = self._free = 0.0
        self._reporter: RunReporter | None = None

    def figures(self, pause: float) -> dict[str, float]:
        """`seconds` of the pause at the switch and `usual_seconds`, the median of those before."""
        usual = statistics.median(self._pauses) if self._pauses else pause
        return {"seconds": pause, "usual_seconds": usual}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join the run's reporting; the first step ends no pause."""
        self._reporter = reporter_for(args.output_dir)
        self._reporter.begin(args, state, control)
        self._updated, self._pauses, self.started = 0.0, [], None

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The weights are updated: a pause begins."""
        self._updated = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The callbacks whose time counts have done their part."""
        self._head = time.perf_counter() - self._updated

    def freed(self) -> None:
        """Everything that does not count is done."""
        self._free = time.perf_counter()

    def resumed(self, args: Any, state: Any, control: Any) -> None:
        """A step begins: the pause is over."""
        now = time.perf_counter()
        self.started = self.started or now
        if not self._updated:
            return
        pause = self._head + now - self._free
        if state.global_step == self.step and state.is_world_process_zero:
            figures = self.figures(pause)
            metrics = {f"switch/{name}": value for name, value in figures.items()}
            if self._reporter is not None:
                self._reporter.report(metrics, args, state, control)
            self.on_switch(figures)
        self._pauses.append(pause)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the run's reporting."""
        if self._reporter is not None:
            self._reporter.end()
            self._reporter = None


class _Tail(TrainerCallback):
    """Tells a clock when the last callback has returned."""

    def __init__(self, clock: SwitchClock) -> None:
        self._clock = clock

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins."""
        self._clock.resumed(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All callbacks of the step's end have returned."""
        self._clock.freed()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What is logged is logged."""
        self._clock.freed()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """What is saved is saved."""
        self._clock.freed()
