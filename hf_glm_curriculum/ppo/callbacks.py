"""Callbacks that every PPO run has."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hf_glm_curriculum.reporting import RunReporter, reporter_for
from hf_glm_curriculum.signals.checkpoints import run_folder


class MetricsFile(TrainerCallback):
    """Writes what the trainer logs to `metrics.jsonl`."""

    def __init__(self) -> None:
        self._reporter: RunReporter | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the file; a resumed run drops the lines after its checkpoint."""
        self._reporter = reporter_for(run_folder(args, state))
        self._reporter.begin(args, state, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add a line."""
        if self._reporter is not None:
            self._reporter.trainer_log(args, state, logs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the file."""
        if self._reporter is not None:
            self._reporter.end()
            self._reporter = None
