"""RewardHackingMonitor: watches a run's own metrics for a reward that is gamed."""

from __future__ import annotations

import difflib
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.checkpoints import STATE_FOLDER, resume_folder, run_folder
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.reporting_callback import ReportingCallback
from hf_glm_curriculum.rewards.hacking import Alarm, MonitorConfig, find_alarms
from hf_glm_curriculum.signals.distributed import from_first_rank
from hf_glm_curriculum.storage import atomic_write_json, read_json

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

SOURCES: dict[str, tuple[str, ...]] = {
    "reward": ("structured/plain_reward", "reward", "objective/scores", "objective/rlhf_reward"),
    "length": ("structured/length", "completions/mean_length"),
    "diversity": ("structured/distinct_2",),
    "refusals": ("structured/refusal_rate",),
    "judge": ("judge",),
    "kl": ("objective/kl", "kl"),
    "entropy": ("objective/entropy", "entropy", "policy/entropy_avg"),
}
"""For each quantity the names it is looked for under in a trainer's log, the first one winning."""

_DIMENSION = re.compile(r"^structured/score_(.+)$")


class RewardHackingMonitor(ReportingCallback):
    """Raises an alarm where the reward rises and the answers do not get better.

    Alone: `update(reward=..., length=..., ...)` after each batch returns the alarms. As a callback
    of any trainer it reads the trainer's log, writes `<name>/alarm_<kind>` to the run's trackers,
    and warns in the Python log when an alarm begins.

    Args:
        config: thresholds; defaults otherwise.
        judge: called with the model at each log; a mark of held-out prompts by something that the
            policy is not trained on (a checker of answers, another reward model). Every rank calls
            it; the first rank's mark counts.
        sources: names to look for in the log, for quantities that go by others.
        name: of the state file and of the metrics.
        **settings: single settings in place of the config's.

    Raises:
        ConfigError: if a setting or a quantity is unknown, or out of range.
    """

    def __init__(
        self,
        config: MonitorConfig | None = None,
        *,
        judge: Callable[[Any], float] | None = None,
        sources: Mapping[str, Sequence[str]] | None = None,
        name: str = "reward_monitor",
        **settings: Any,
    ) -> None:
        self.config = _overridden(config or MonitorConfig(), settings)
        self.judge = judge
        self.name = name
        self.sources = dict(SOURCES)
        for quantity, names in (sources or {}).items():
            if quantity not in SOURCES:
                raise ConfigError(
                    f"sources: unknown quantity {quantity!r}; choose from {', '.join(SOURCES)}"
                )
            self.sources[quantity] = (names,) if isinstance(names, str) else tuple(names)
        self._series: dict[str, deque[float]] = {}
        self._held: dict[str, int] = {}
        self._seen = 0
        self._ever: set[str] = set()
        self.alarms: list[Alarm] = []

    @property
    def should_stop(self) -> bool:
        """Whether there is an alarm and alarms are to end the training."""
        return self.config.stop and bool(self.alarms)

    def update(
        self,
        *,
        reward: float | None = None,
        length: float | None = None,
        diversity: float | None = None,
        refusals: float | None = None,
        judge: float | None = None,
        kl: float | None = None,
        entropy: float | None = None,
        dimensions: Mapping[str, float] | None = None,
    ) -> list[Alarm]:
        """Take one update's figures in; what is None or not finite is not known.

        Args:
            reward: mean reward, before normalisation (normalised ones cannot rise).
            length: mean length of the answers.
            diversity: such as distinct-2 over the batch.
            refusals: share of answers that refuse.
            judge: mark of a held-out judge.
            kl: divergence from the reference.
            entropy: of the policy.
            dimensions: mean score of each dimension.

        Returns:
            The alarms that hold now.
        """
        self._seen += 1
        given = {"reward": reward, "length": length, "diversity": diversity, "refusals": refusals}
        given |= {"judge": judge, "kl": kl, "entropy": entropy}
        given |= {f"dimension_{name}": value for name, value in (dimensions or {}).items()}
        for name, value in given.items():
            if value is not None and math.isfinite(value):
                points = self._series.setdefault(name, deque(maxlen=self.config.window))
                points.append(float(value))
        self.alarms = self._holding(self._found())
        return self.alarms

    def metrics(self) -> dict[str, float]:
        """1 for each alarm that holds, 0 for each that has held before, and their number."""
        now = {alarm.kind for alarm in self.alarms}
        found = {f"{self.name}/alarm_{kind}": float(kind in now) for kind in sorted(self._ever)}
        return {f"{self.name}/alarms": float(len(now)), **found}

    def state_dict(self) -> dict[str, Any]:
        """The windows and what held when, as plain values."""
        return {
            "series": {name: list(points) for name, points in self._series.items()},
            "held": dict(self._held),
            "seen": self._seen,
            "ever": sorted(self._ever),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self._series = {
            name: deque(points, maxlen=self.config.window)
            for name, points in state["series"].items()
        }
        self._held, self._seen = dict(state["held"]), int(state["seen"])
        self._ever = set(state["ever"])

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start the windows anew, or take up those of the checkpoint.

        Raises:
            StateError: if the run folder cannot be written or the state not be read.
        """
        self.load_state_dict({"series": {}, "held": {}, "seen": 0, "ever": []})
        self.alarms = []
        if state.global_step > 0:
            path = self._path(resume_folder(run_folder(args, state), state.global_step))
            if path.exists():
                self.load_state_dict(read_json(path))
        self._begin_report(run_folder(args, state), args, state, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Read the log of a training step, report the alarms and stop where that is wanted."""
        if self._reporter is None:
            return
        self._reporter.trainer_log(args, state, logs)
        figures = self._figures(logs or {})
        if "reward" not in figures:
            return
        if self.judge is not None:
            mark = float(self.judge(model))
            figures["judge"] = from_first_rank(lambda: mark)
        self.update(**figures)
        self._reporter.report(self.metrics(), args, state, control, model)
        if self.should_stop:
            control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write the state beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if state.is_world_process_zero and self._reporter is not None:
            folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
            atomic_write_json(self._path(folder), self.state_dict())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Leave the run's reporting."""
        self._end_report()

    # -- helpers -----------------------------------------------------------------------------

    def _path(self, checkpoint: Path) -> Path:
        return checkpoint / STATE_FOLDER / f"{self.name}.json"

    def _figures(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        """What a log says of each quantity."""
        found: dict[str, Any] = {}
        for quantity, names in self.sources.items():
            given = next((logs[name] for name in names if logs.get(name) is not None), None)
            if given is not None:
                found[quantity] = float(given)
        matches = {name: _DIMENSION.match(name) for name in logs}
        found["dimensions"] = {m[1]: float(logs[name]) for name, m in matches.items() if m}
        return found

    def _found(self) -> list[Alarm]:
        if self._seen < self.config.window:
            return []
        return find_alarms({n: list(points) for n, points in self._series.items()}, self.config)

    def _holding(self, found: list[Alarm]) -> list[Alarm]:
        """The alarms that have held for the patience; warns of those that begin."""
        self._held = {alarm.kind: self._held.get(alarm.kind, 0) + 1 for alarm in found}
        lasting = [alarm for alarm in found if self._held[alarm.kind] >= self.config.patience]
        for alarm in lasting:
            self._ever.add(alarm.kind)
            if self._held[alarm.kind] == self.config.patience:
                logger.warning(
                    "hf_glm_curriculum: %s: %s; look at samples before trusting the reward.",
                    self.name,
                    alarm.message,
                )
        return lasting


def _overridden(config: MonitorConfig, settings: Mapping[str, Any]) -> MonitorConfig:
    known = [field.name for field in fields(config)]
    for name in settings.keys() - set(known):
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}"
        raise ConfigError(f"{name}: no such setting of RewardHackingMonitor; {hint}")
    return replace(config, **settings)
