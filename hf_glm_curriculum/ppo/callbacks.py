"""Callbacks that every PPO run has."""

from __future__ import annotations

from typing import Any

from hf_glm_curriculum.checkpoints import run_folder
from hf_glm_curriculum.reporting_callback import ReportingCallback


class MetricsFile(ReportingCallback):
    """Writes what the trainer logs to `metrics.jsonl`."""

    name = "ppo"

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the file; a resumed run drops the lines after its checkpoint."""
        self._begin_report(run_folder(args, state), args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the file."""
        self._end_report()
