"""Metrics to the trackers the user named, to `state.log_history` and to `metrics.jsonl`.

Our callbacks run after the trainer's reporters, so what they add to `logs` would arrive too late;
the reporters are called again with our metrics instead.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakValueDictionary, ref

from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.progress import ProgressBar, progress
from hf_glm_curriculum.storage import (
    append_line,
    atomic_write_bytes,
    atomic_write_json,
    atomic_write_text,
    ensure_folder,
    load_tensors,
    read_json,
    save_tensors,
    writing,
)

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler

__all__ = [
    "CsvDump",
    "ProgressBar",
    "RunReporter",
    "atomic_write_bytes",
    "atomic_write_json",
    "atomic_write_text",
    "load_tensors",
    "progress",
    "read_json",
    "read_metrics",
    "reporter_for",
    "save_tensors",
]

METRICS_FILE = "metrics.jsonl"
_PREVIOUS_FILE = "metrics.previous.jsonl"

logger = logging.getLogger(__name__)
# Weak, so that a run that died keeps neither its trainer nor its model alive from here.
_open_reporters: WeakValueDictionary[Path, RunReporter] = WeakValueDictionary()


def reporter_for(run_dir: str | os.PathLike[str]) -> RunReporter:
    """The reporter of a run folder, the same one for every callback while a run is under way."""
    key = Path(run_dir).resolve()
    reporter = _open_reporters.get(key)
    if reporter is None:
        reporter = _open_reporters[key] = RunReporter(key)
    return reporter


def read_metrics(run_dir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`, oldest first; a torn last line is left out.

    Raises:
        StateError: The file is missing or unreadable, or a line before the last is not JSON.
    """
    path = Path(run_dir) / METRICS_FILE
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise StateError(
            f"cannot read {path}: {error.strerror}; name the folder of a run of this package"
        ) from error
    return _parse_lines(path, lines)


class RunReporter:
    """Sends metrics of one run folder everywhere; does nothing but on world process zero.

    Each callback calls `begin` in `on_train_begin`, `trainer_log` in `on_log`, `report` whenever
    it has metrics, and `end` in `on_train_end`.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        self.run_dir = Path(run_dir)
        self._state: TrainerState | None = None
        self._handler: ReferenceType[CallbackHandler] | None = None
        self._own: list[TrainerCallback] = []
        self._users = 0
        self._last_logs: dict[str, float] | None = None

    @property
    def metrics_path(self) -> Path:
        """The run's `metrics.jsonl`."""
        return self.run_dir / METRICS_FILE

    def begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl | None = None
    ) -> None:
        """Start or join the reporting of a run; call it from `on_train_begin`.

        A resumed run loses the lines of `metrics.jsonl` after `state.global_step`; a run from
        step 0 moves an earlier run's file to `metrics.previous.jsonl`.

        Raises:
            StateError: The run folder cannot be written.
        """
        if state is self._state:
            self._users += 1
            return
        self._state, self._users, self._last_logs, self._own = state, 1, None, []
        _open_reporters[self.run_dir.resolve()] = self
        if not state.is_world_process_zero:
            return
        ensure_folder(self.run_dir)
        self._rewind(state.global_step)
        handler = _find_handler()
        self._handler = None if handler is None else ref(handler)
        if self._handler is None:
            self._own = _new_reporters(args)
            self._call_reporters("on_train_begin", args, state, control, {})

    def trainer_log(self, args: TrainingArguments, state: TrainerState, logs: Any) -> None:
        """Write the trainer's own log to `metrics.jsonl`, once however many callbacks call.

        Raises:
            StateError: The file cannot be written.
        """
        if not state.is_world_process_zero or logs is None or logs is self._last_logs:
            return
        self._last_logs = logs
        self._append({**logs, "step": state.global_step})

    def report(
        self,
        metrics: Mapping[str, Any],
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl | None = None,
        model: Any = None,
    ) -> None:
        """Send metrics to the trackers of `report_to`, `state.log_history` and `metrics.jsonl`.

        Args:
            metrics: Name → number (a 0-d tensor will do), named like `lifespan/weight_mean`.
            args: The trainer's arguments.
            state: The trainer's state; its step and epoch go with the metrics.
            control: The trainer's control, handed on to the trackers.
            model: The model, handed on to the trackers.

        Raises:
            StateError: `metrics.jsonl` cannot be written.
        """
        if not state.is_world_process_zero or not metrics:
            return
        logs = {name: float(value) for name, value in metrics.items()}
        if state.epoch is not None:
            logs["epoch"] = state.epoch
        entry = {**logs, "step": state.global_step}
        state.log_history.append(entry)
        self._append(entry)
        self._call_reporters("on_log", args, state, control, {"model": model, "logs": logs})

    def was_told(self, name: str, step: int) -> bool:
        """Whether `metrics.jsonl` holds a metric for a step, as a run that goes on may find it.

        Raises:
            StateError: The file cannot be read.
        """
        entries = read_metrics(self.run_dir) if self.metrics_path.exists() else []
        return any(entry.get("step") == step and name in entry for entry in reversed(entries))

    def end(self) -> None:
        """Leave the run; the last callback to leave closes it. Call it from `on_train_end`."""
        self._users -= 1
        if self._users > 0:
            return
        if self._own and self._state is not None:
            self._call_reporters("on_train_end", None, self._state, None, {})
        self._state, self._handler, self._own, self._users = None, None, [], 0
        _open_reporters.pop(self.run_dir.resolve(), None)

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Add one line to `metrics.jsonl`."""
        append_line(self.metrics_path, json.dumps(_finite(entry), ensure_ascii=False))

    def _rewind(self, step: int) -> None:
        """Take the lines after `step` out of `metrics.jsonl`; see `begin`."""
        if not self.metrics_path.exists():
            return
        if step == 0:
            with writing(self.metrics_path):
                os.replace(self.metrics_path, self.run_dir / _PREVIOUS_FILE)
            return
        # A run that ended and goes on writes its summary again.
        entries = [
            entry
            for entry in read_metrics(self.run_dir)
            if entry.get("step", 0) <= step and "train_runtime" not in entry
        ]
        lines = [json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries]
        atomic_write_text(self.metrics_path, "".join(lines))

    def _call_reporters(
        self, event: str, args: Any, state: TrainerState, control: Any, fields: dict[str, Any]
    ) -> None:
        """Call one event of every tracker: the trainer's own, or ours where it was not found."""
        from transformers import TrainerControl

        control = TrainerControl() if control is None else control
        callbacks = self._own if self._handler is None else _trackers_of(self._handler())
        for callback in callbacks:
            copies = {k: dict(v) if isinstance(v, dict) else v for k, v in fields.items()}
            getattr(callback, event)(args, state, control, **copies)


def _find_handler() -> CallbackHandler | None:
    """The trainer's callback handler, found among the callers of the event under way."""
    from transformers.trainer_callback import CallbackHandler

    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, CallbackHandler):
            return owner
        frame = frame.f_back
    return None


def _trackers_of(handler: CallbackHandler | None) -> list[TrainerCallback]:
    """The callbacks of a trainer that send logs to a tracker; none once the trainer is gone."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    kinds = tuple(INTEGRATION_TO_CALLBACK.values())
    callbacks = [] if handler is None else handler.callbacks
    return [callback for callback in callbacks if isinstance(callback, kinds)]


def _new_reporters(args: TrainingArguments) -> list[TrainerCallback]:
    """Trackers of our own for `report_to`, where the trainer's cannot be reached."""
    from transformers.integrations.integration_utils import get_reporting_integration_callbacks

    if args.report_to:
        logger.warning("the trainer's trackers were not found; opening new ones for report_to")
    return [kind() for kind in get_reporting_integration_callbacks(args.report_to)]


def _finite(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with NaN and infinities as null, which JSON cannot say."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in entry.items()
    }


def _parse_lines(path: Path, lines: list[str]) -> list[dict[str, Any]]:
    """Parse JSON lines; only the last, which a kill may have torn, may be broken."""
    entries = []
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for position, (number, line) in enumerate(filled, 1):
        try:
            entries.append(json.loads(line))
        except ValueError as error:
            if position == len(filled):
                break
            raise StateError(
                f"{path} line {number} is not JSON ({error}); delete the line or the file"
            ) from error
    return entries
