"""What the package's callbacks have in common: where their metrics go, and when hooks are live."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from hf_glm_curriculum.reporting import RunReporter, reporter_for
from hf_glm_curriculum.run_scope import RunScope

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class ReportingCallback(TrainerCallback):
    """A callback with a name, whose metrics go where the trainer's own go.

    Attributes:
        name: distinguishes several instances on one trainer (state file and metrics).
    """

    name: str
    _reporter: RunReporter | None = None

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """What to log beside a training step's loss, without the callback's name.

        Args:
            state: the trainer's.
        """
        return {}

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send the metrics to the user's trackers and to ``metrics.jsonl``."""
        if self._reporter is None:
            return
        self._reporter.trainer_log(args, state, logs)
        if logs is not None and "loss" in logs:
            self._report(self._metrics(state), args, state, control, model)

    def _begin_report(self, folder: Path, args: Any, state: Any, control: Any) -> None:
        self._reporter = reporter_for(folder)
        self._reporter.begin(args, state, control)

    def _end_report(self) -> None:
        reporter, self._reporter = self._reporter, None
        if reporter is not None:
            reporter.end()

    def _report(
        self, metrics: dict[str, float], args: Any, state: Any, control: Any, model: Any = None
    ) -> None:
        if self._reporter is not None and metrics:
            named = {f"{self.name}/{key}": value for key, value in metrics.items()}
            self._reporter.report(named, args, state, control, model)

    def _say(self, message: str) -> None:
        """Warn, once each."""
        said = self.__dict__.setdefault("_said", set())
        if message not in said:
            said.add(message)
            logging.getLogger(type(self).__module__).warning("hf_glm_curriculum: %s.", message)

    def _say_changed(self, saved: str | None, config: Any) -> None:
        """Say which settings differ from those of the run that is resumed.

        Args:
            saved: :func:`as_json` of its config.
            config: the dataclass of this run.
        """
        before, now = json.loads(saved or "{}"), json.loads(as_json(config))
        changed = sorted(key for key in now if key in before and before[key] != now[key])
        if changed:
            self._say(f"resumed with other settings than the run began with: {', '.join(changed)}")


class SteppingCallback(ReportingCallback):
    """One whose hooks look at the forwards of training steps, and at no others."""

    _scope: RunScope | None = None
    _stepping: bool = False

    def _is_live(self) -> bool:
        """Whether a forward pass now is one of a training step."""
        return self._stepping and self._scope is not None and self._scope.active()

    def _close_scope(self) -> None:
        if self._scope is not None:
            self._scope.close()
        self._scope, self._stepping = None, False


class ResumedEpoch:
    """Finds the end of an epoch that a resumed run will not be told of.

    A checkpoint of an epoch's last step is written before the epoch ends. The run that goes on from
    it begins with the next epoch, or is over at once.

    Attributes:
        step: the step that the run goes on from; 0 for one from the beginning.
    """

    def __init__(self) -> None:
        self.step = 0
        self._waiting = False

    def begin(self, state: TrainerState) -> None:
        """To be called in ``on_train_begin``."""
        self.step = state.global_step
        self._waiting = self.step > 0

    def ended_unseen(self, state: TrainerState) -> bool:
        """In ``on_epoch_begin``: whether the epoch before this one ended unseen."""
        waiting, self._waiting = self._waiting, False
        return waiting and at_epoch_end(state)

    def over_at_once(self) -> bool:
        """In ``on_train_end``: whether no epoch has begun since the run went on."""
        return self._waiting


def at_epoch_end(state: TrainerState) -> bool:
    """Whether the last step was the last of its epoch."""
    epoch = float(state.epoch or 0)
    return abs(epoch - round(epoch)) <= 1e-6


def as_json(config: Any) -> str:
    """A config dataclass as a state file keeps it."""
    return json.dumps(dataclasses.asdict(config))
