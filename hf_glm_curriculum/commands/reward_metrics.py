"""Metrics and progress of a `reward` run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.progress import ProgressBar, progress
from hf_glm_curriculum.reporting import METRICS_FILE, RunReporter, read_metrics, reporter_for


class EpochMetrics:
    """Sends the heads' epochs to `metrics.jsonl` and the trackers, and writes a line on some.

    Args:
        folder: the run's.
        report_to: trackers.
    """

    def __init__(self, folder: Path, report_to: Sequence[str]) -> None:
        self.folder = folder
        self.step = 0
        self._args = TrainingArguments(
            output_dir=str(folder), report_to=list(report_to) or "none", use_cpu=True
        )
        self._state = TrainerState()
        self._reporter: RunReporter | None = None

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Report an epoch; the first one after a resume drops what was logged beyond it."""
        if self._reporter is None:
            self._begin(epoch - 1)
        self.step = epoch
        self._report(metrics)
        if epoch % 5 == 0 or epoch == 1:
            shown = ", ".join(
                f"{name.removeprefix('eval_loss_')} {value:.3f}"
                for name, value in metrics.items()
                if name != "loss"
            )
            say(f"  epoch {epoch} · loss {metrics['loss']:.3f} · validation loss {shown}")

    def finish(self, figures: Mapping[str, float | None]) -> None:
        """Report the final figures, unless a run that went on finds them there, and close."""
        reporter = self._reporter
        if reporter is None:
            # Every epoch was trained before the run went on.
            self.step = max(self.step, self._last_step())
            reporter = self._begin(self.step)
        known = {name: value for name, value in figures.items() if value is not None}
        if not any(reporter.was_told(f"reward/{name}", self.step) for name in known):
            self._report(known)
        reporter.end()

    def _last_step(self) -> int:
        logged = read_metrics(self.folder) if (self.folder / METRICS_FILE).exists() else []
        return max((int(entry.get("step", 0)) for entry in logged), default=0)

    def _begin(self, step: int) -> RunReporter:
        self._state.global_step = step
        self._reporter = reporter_for(self.folder)
        self._reporter.begin(self._args, self._state)
        return self._reporter

    def _report(self, metrics: Mapping[str, float]) -> None:
        self._state.global_step = self.step
        self._state.epoch = float(self.step)
        if self._reporter is not None:
            named = {f"reward/{name}": value for name, value in metrics.items()}
            self._reporter.report(named, self._args, self._state)


class StepBar(TrainerCallback):
    """A bar over the optimizer steps, and a line after each validation."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar = ProgressBar()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar."""
        if state.is_world_process_zero:
            self._bar = self._stack.enter_context(progress(state.max_steps, "Training"))
            self._bar.advance(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move the bar."""
        self._bar.advance()

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """Write one line."""
        if state.is_world_process_zero:
            say(f"  epoch {state.epoch:g} · validation loss {metrics['eval_loss']:.3f}")

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._stack.close()
        self._bar = ProgressBar()
