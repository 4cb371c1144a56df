"""The adapter between a trainer, its sources and the rule of the alignment monitor."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig
from hf_glm_curriculum.curriculum.alignment_events import monitor_png, write_event
from hf_glm_curriculum.curriculum.alignment_sources import sources_of
from hf_glm_curriculum.curriculum.alignment_switch import (
    Switch,
    VarianceSwitch,
    alignment_score,
    moments,
    pooled_variance,
)
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.reporting import METRICS_FILE, read_metrics
from hf_glm_curriculum.reporting_callback import SteppingCallback, as_json
from hf_glm_curriculum.run_scope import RunScope
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size
from hf_glm_curriculum.signals.hosts import refuse_host
from hf_glm_curriculum.signals.microbatch import SampleSignals
from hf_glm_curriculum.signals.probe import Subscription, probe_for
from hf_glm_curriculum.storage import (
    atomic_write_json,
    read_json,
    read_whole_lines,
    rewind_lines,
)

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

Score = Callable[[SampleSignals], Tensor]
"""Gives the S samples of a micro-batch their scores, [S] float; NaN leaves a sample out."""


class AlignmentMonitorCallback(SteppingCallback):
    """Goes back to a base source while the model's hold on the samples of a step scatters.

    Works on ``transformers.Trainer`` and TRL's ``SFTTrainer``. Switches come into effect
    ``lag_steps`` after the step that caused them, since loaders read ahead. They are metrics,
    lines of ``<output_dir>/<name>/events.jsonl`` and marks in ``monitor.png`` there.

    While the monitor holds the base source, what other callbacks (``ObjectiveMigrationCallback``)
    ask of the same mixture is remembered and holds from the way back on: the monitor wins.

    Args:
        mixture: the ``CurriculumMixture`` that the trainer reads, or what ``build_lanes`` made with
            a base; None to watch only.
        base_source: name of its base source.
        config: settings; defaults otherwise.
        score: gives samples their scores; :func:`alignment_score` otherwise.
        name: distinguishes several instances on one trainer (folder, state file and metrics).
        debug_dir: where to dump every sample's loss and score at every step as CSV.

    Raises:
        ConfigError: if there is nothing to switch, or no such source.
    """

    def __init__(
        self,
        mixture: Any = None,
        base_source: str = "base",
        config: AlignmentConfig | None = None,
        *,
        score: Score = alignment_score,
        name: str = "monitor",
        debug_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Remember the settings; nothing is touched before training begins."""
        self.config = config or AlignmentConfig()
        self.sources = sources_of(mixture, base_source, self.config.observe_only)
        self.base_source = base_source
        self.score, self.name, self.debug_dir = score, name, debug_dir
        self.switch = VarianceSwitch(self.config)
        self._clear()

    def _clear(self) -> None:
        self._subscription: Subscription | None = None
        self._reporter = None
        self._dump: CsvDump | None = None
        self._events = Path()
        self._last: dict[str, float] = {}

    def detach(self) -> None:
        """Take every hook off the model; needed only after a run that died of an exception."""
        if self._subscription is not None:
            self._subscription.close()
        self._close_scope()
        self._clear()

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        """Check the host, restore or begin the state, and put the hooks on.

        Raises:
            IncompatibleError: for hosts whose losses cannot be told apart by sample.
            StateError: if the checkpoint's state does not fit.
        """
        self.detach()
        refuse_host(args, purpose="score samples")
        self.switch = VarianceSwitch(self.config)
        if self.sources is not None:
            self.sources.connect(args)
        if not (state.global_step and self._restore(args, state)) and self.sources is not None:
            self.sources.reset()
        folder = run_folder(args, state)
        self._begin_report(folder, args, state, control)
        self._events = folder / self.name / "events.jsonl"
        if state.is_world_process_zero:
            rewind_lines(self._events, state.global_step)
            if self.debug_dir is not None:
                path = Path(self.debug_dir) / f"{self.name}_samples.csv"
                self._dump = CsvDump(path, ["step", "id", "loss", "score"])
                self._dump.rewind(state.global_step)
        self._scope = RunScope()
        probe = probe_for(model)
        probe.compiled |= bool(getattr(args, "torch_compile", False))
        self._subscription = probe.subscribe(is_live=self._is_live, is_over=self._scope.over)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """From here to the end of the step, training forwards of the model are observed."""
        self._stepping = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Pool the step's scores over its batches and all ranks, and decide."""
        self._stepping = False
        if self._subscription is None:
            return
        parts = self._subscription.drain()
        scores = [self.score(part) for part in parts]
        pooled = moments(scores, args.device)
        if world_size() > 1:
            sum_over_ranks(pooled)
        # One transfer a step: every rank has to decide before it reads on.
        count, total, squares = pooled.tolist()
        variance = pooled_variance(count, total, squares)
        lag = 0 if self.sources is None else self.sources.lag_steps
        found = self.switch.step(variance, state.global_step, lag)
        self._note(count, total, variance)
        if self._dump is not None:
            self._write_dump(parts, scores, state)
        if found is not None:
            self._act(found, args, state, control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write what a resumed run needs beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if self._subscription is None or not state.is_world_process_zero:
            return
        saved: dict[str, Any] = {
            "config": as_json(self.config),
            "switch": self.switch.state_dict(),
            "last": self._last,
        }
        if self.sources is not None:
            saved["sources"] = self.sources.state_dict(state.global_step)
        folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
        atomic_write_json(state_path(folder, self.name).with_suffix(".json"), saved)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Take the hooks off and draw the run."""
        reporter, events = self._reporter, self._events
        self.detach()
        if reporter is None:
            return
        if state.is_world_process_zero:
            folder = run_folder(args, state)
            metrics = read_metrics(folder) if (folder / METRICS_FILE).exists() else []
            found = read_whole_lines(events)
            monitor_png(metrics, found, f"{self.name}/", folder / self.name / "monitor.png")
        reporter.end()

    # -- helpers -----------------------------------------------------------------------------

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """The variance, its levels, where the run is and what its sources give."""
        found = dict(self._last)
        found["at_base"] = float(self.switch.at_base)
        found["switches"] = float(self.switch.switches)
        if self.sources is not None:
            shares = self.sources.ratios_at(max(0, state.global_step - 1))
            found |= {f"ratio_{name}": share for name, share in shares.items()}
        return found

    def _note(self, count: float, total: float, variance: float | None) -> None:
        found: dict[str, float | None] = {"variance": variance, "samples": count}
        found["score_mean"] = total / count if count else None
        found["variance_smoothed"] = self.switch.smoothed
        threshold, release = self.switch.levels or (None, None)
        found |= {"threshold": threshold, "release": release}
        self._last = {name: value for name, value in found.items() if value is not None}

    def _act(self, found: Switch, args: Any, state: TrainerState, control: Any) -> None:
        """Switch, and say why."""
        before, sources = {}, self.sources
        acts = sources is not None and not self.config.observe_only
        if sources is not None:
            before = sources.ratios
            if acts and found.to_base:
                sources.hold({self.base_source: 1.0}, state.global_step)
            elif acts:
                sources.release(state.global_step)
        kind = "to_base" if found.to_base else "back"
        logger.info("%s: step %d, %s: %s", self.name, state.global_step, kind, found.reason)
        self._report({"switch": 1.0 if found.to_base else -1.0}, args, state, control)
        if not state.is_world_process_zero:
            return
        event = {
            "step": state.global_step,
            "event": kind,
            "reason": found.reason,
            "acts_from": self.switch.acts_from,
            "acted": acts,
            "ratios_before": before,
            "ratios_after": {} if sources is None else sources.ratios,
        }
        write_event(self._events, event)

    def _restore(self, args: TrainingArguments, state: TrainerState) -> bool:
        folder = resume_folder(run_folder(args, state), state.global_step)
        path = state_path(folder, self.name).with_suffix(".json")
        if not path.exists():
            if self.sources is not None:
                raise StateError(
                    f"{folder} holds no state of {self.name!r}: it was written without this "
                    "callback, and nobody knows what its sources gave; start a new run."
                )
            self._say(f"{folder} holds no state of {self.name!r}: it starts anew")
            return False
        saved = read_json(path)
        self._say_changed(saved.get("config"), self.config)
        self.switch.load_state_dict(saved["switch"])
        self._last = saved["last"]
        if self.sources is not None:
            self.sources.load_state_dict(saved["sources"])
        return True

    def _write_dump(
        self, parts: list[SampleSignals], scores: list[Tensor], state: TrainerState
    ) -> None:
        for part, score in zip(parts, scores, strict=True):
            columns = (part.ids.tolist(), part.loss.tolist(), score.tolist())
            if self._dump is not None:
                rows = zip(*columns, strict=True)
                self._dump.write([[state.global_step, *row] for row in rows])
