"""Keeps an online temperature field with a trainer's checkpoints, and logs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.curriculum.temperature import TemperatureField
from hf_glm_curriculum.reporting_callback import ReportingCallback
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class TemperatureFieldCallback(ReportingCallback):
    """Saves the statistics of a field that a loss term trains with, and restores them on resume.

    Logs ``<name>/mean``, the mean temperature over the readings that count, and
    ``<name>/reading``, their mean (nats or rarity).

    Args:
        field: the field of a ``TemperatureFieldLoss``.
        name: of its state file and metrics.
    """

    def __init__(self, field: TemperatureField, *, name: str = "temperature") -> None:
        """Remember the field."""
        self.field, self.name = field, name

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Restore the statistics of the checkpoint that is resumed, if it has any.

        Raises:
            StateError: if the file cannot be read.
        """
        self._begin_report(run_folder(args, state), args, state, control)
        if state.global_step == 0:
            return
        path = state_path(resume_folder(run_folder(args, state), state.global_step), self.name)
        if path.exists():
            self.field.ranks.load(TemperatureField.load(path).ranks.counts)
        else:
            self._say(
                f"{path.parent} holds no state of {self.name!r}: the field is as it was given"
            )

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Let the step's readings count, on all ranks alike."""
        if self.field.online:
            self.field.commit(sum_over_ranks if world_size() > 1 else None)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write the statistics beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if state.is_world_process_zero:
            folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
            self.field.save(state_path(folder, self.name))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Close the report."""
        self._end_report()

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        return self.field.summary()
