"""Changing a composite loss while training runs, by editing a file."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.checkpoints import run_folder
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.losses.control_files import CONTROL_FILE, status_path
from hf_glm_curriculum.losses.edits import (
    Wishes,
    apply_changes,
    as_metrics,
    checked_wishes,
    planned,
    read_control,
)
from hf_glm_curriculum.losses.run_state import restore_state, save_state, will_log
from hf_glm_curriculum.reporting_callback import ReportingCallback
from hf_glm_curriculum.signals.distributed import from_first_rank, world_size
from hf_glm_curriculum.storage import atomic_write_json

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

POLL_EVERY_DISTRIBUTED = 10
"""Optimizer steps between two looks at the file where several processes must agree on it."""


class LossSwapCallback(ReportingCallback):
    """Applies edits of a control file between two optimizer steps.

    The file (see ``losses.edits``) may be written by hand or by ``hf-glm-curriculum control``.
    Rank 0 reads it; every rank applies the same edit before the same step. A file that is broken,
    names an unknown term or field, or would leave nothing to train on changes nothing: it is
    reported once, with the nearest valid name, and training goes on. The settings and the list of
    edits are saved beside the checkpoints; a resumed run goes on with them and applies the file
    again only if it has changed since.

    Args:
        composite: the loss, trained through ``CompositeLossCallback`` or ``compute_loss_func``.
        control_file: the YAML file; ``<output_dir>/control.yaml`` by default. It need not exist.
        poll_every: optimizer steps between two looks; by default 1 on one process and 10 on
            several, where a look is a collective.
        settle_seconds: a file that was touched more recently than this is left for the next look,
            since an editor may still be writing it.
        name: distinguishes several instances (metrics, state file).
    """

    def __init__(
        self,
        composite: CompositeLoss,
        control_file: str | os.PathLike[str] | None = None,
        *,
        poll_every: int | None = None,
        settle_seconds: float = 0.2,
        name: str = "loss_swap",
    ) -> None:
        """Remember the settings.

        Raises:
            ConfigError: if ``poll_every`` is below 1.
        """
        if poll_every is not None and poll_every < 1:
            raise ConfigError(f"poll_every: must be at least 1, got {poll_every}.")
        self.composite = composite
        self.control_file = None if control_file is None else Path(control_file)
        self.poll_every = poll_every
        self.settle_seconds = settle_seconds
        self.name = name
        self._path = self.control_file or Path(CONTROL_FILE)
        self._status = Path(CONTROL_FILE)
        self._digest = ""
        self._stamp: tuple[int, ...] = ()
        self._refusal = ""

    # -- events ------------------------------------------------------------------------------

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Restore the settings of a resumed run, and tell the command which terms there are.

        Raises:
            StateError: if the checkpoint's terms are not known here, or the folder is not
                writable.
        """
        folder = run_folder(args, state)
        self._path = self.control_file or folder / CONTROL_FILE
        self._status = status_path(folder)
        self._digest, self._stamp, self._refusal = "", (), ""
        self.composite.step = state.global_step
        if state.global_step > 0:
            found = restore_state(self.composite, args, state, self.name)
            self._digest = found.get("control_digest", "")
        self._begin_report(folder, args, state, control)
        self._write_status(state)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Look at the file, and apply what is new."""
        self.composite.step = state.global_step
        if not self.composite.attached:
            self.composite.measure_shares = will_log(args, state)
        every = self.poll_every or (POLL_EVERY_DISTRIBUTED if world_size() > 1 else 1)
        if self._reporter is None or state.global_step % every:
            return
        digest, section, problem = from_first_rank(self._look)
        if digest == self._digest:
            return
        self._digest = digest
        try:
            if problem:
                raise ConfigError(problem)
            wishes = checked_wishes(section, self.composite.names)
            changes = planned(self.composite, wishes, state.max_steps)
            apply_changes(self.composite, changes)
        except ConfigError as error:
            self._refuse(str(error), args, state, control)
        else:
            self._applied(changes, args, state, control)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the status file fresh; tell the terms' losses where no other callback does."""
        if self._reporter is None:
            return
        self._reporter.trainer_log(args, state, logs)
        self._write_status(state)
        if logs is not None and "loss" in logs and not self.composite.attached:
            named = {f"losses/{key}": v for key, v in self.composite.metrics().items()}
            self._reporter.report(named, args, state, control)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write settings and edits beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        save_state(self.composite, args, state, self.name, control_digest=self._digest)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Leave the run."""
        self._write_status(state)
        self._end_report()

    # -- helpers -----------------------------------------------------------------------------

    def _look(self) -> tuple[str, Any, str]:
        """Rank 0: the file's digest, its ``loss`` section, and what is wrong with it."""
        unchanged = (self._digest, None, "")
        try:
            found = os.stat(self._path)
        except OSError:
            return unchanged  # no file, no wish
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp == self._stamp or time.time() - found.st_mtime < self.settle_seconds:
            return unchanged
        self._stamp = stamp
        try:
            digest = hashlib.sha256(self._path.read_bytes()).hexdigest()[:16]
            return (digest, read_control(self._path), "") if digest != self._digest else unchanged
        except (ConfigError, OSError) as error:
            digest = f"broken {stamp}" if isinstance(error, OSError) else digest
            return digest, None, str(error)

    def _applied(self, changes: Wishes, args: Any, state: Any, control: Any) -> None:
        self._refusal = ""
        if changes:
            logger.info("%s: applied at step %d: %s", self._path, state.global_step, changes)
            self.composite.edits.append({"step": state.global_step, "changes": changes})
            self._report(as_metrics(changes), args, state, control)
        self._write_status(state)

    def _refuse(self, reason: str, args: Any, state: Any, control: Any) -> None:
        self._refusal = reason
        logger.warning("%s: refused at step %d: %s", self._path, state.global_step, reason)
        self.composite.edits.append({"step": state.global_step, "refused": reason})
        self._report({"refused": 1.0}, args, state, control)
        self._write_status(state)

    def _write_status(self, state: TrainerState) -> None:
        if not state.is_world_process_zero:
            return
        weights = self.composite.weights
        terms = {n: {**s, "now": weights.get(n)} for n, s in self.composite.describe().items()}
        status = {
            "control_file": str(self._path.resolve()),
            "step": state.global_step,
            "max_steps": state.max_steps,
            "terms": terms,
            "preflight": sorted(self.composite.candidates),
            "refused": self._refusal,
            "edits": self.composite.edits[-50:],
        }
        try:
            atomic_write_json(self._status, status)
        except StateError as error:
            # The status is a courtesy: a full disk must not end a run here.
            logger.warning("%s", error)
