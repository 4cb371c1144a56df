"""Keeps the state of a mixture beside checkpoints and reports what it asked for and drew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.data.mixture import CurriculumMixture
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.reporting_callback import ReportingCallback
from hf_glm_curriculum.storage import atomic_write_json, read_json

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class MixtureCallback(ReportingCallback):
    """Makes runs on a :class:`CurriculumMixture` resume exactly, and logs asked and drawn shares.

    Needed where nothing else saves the mixture's state; the callback that changes its ratios may
    do so too, twice does no harm.

    Args:
        mixture: the trainer's data set, or what that was made of.
        name: of the state file and the metrics.
    """

    def __init__(self, mixture: CurriculumMixture, name: str = "mixture") -> None:
        """Remember the mixture; nothing is touched before training begins."""
        self.mixture, self.name = mixture, name
        self._counted: dict[str, int] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begin the log anew, or go on with the checkpoint's.

        Raises:
            StateError: if the checkpoint holds no state of the mixture, or one of another.
            IncompatibleError: if the trainer's batches contradict the mixture's settings.
        """
        self.mixture.connect(args)
        self._counted = dict.fromkeys(self.mixture.source_names, 0)
        if state.global_step:
            saved = read_json(self._saved(args, state))
            self.mixture.load_state_dict(saved)
            if saved["drawn"] is not None:
                counts = saved["drawn"][self.mixture.unit]
                self._counted = dict(zip(self.mixture.source_names, counts, strict=True))
        else:
            self.mixture.reset()
        self._begin_report(run_folder(args, state), args, state, control)

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        """The shares asked for and drawn since the last time."""
        return self._shares(state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write the mixture's state beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if not state.is_world_process_zero:
            return
        folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
        path = state_path(folder, self.name).with_suffix(".json")
        atomic_write_json(path, self.mixture.state_dict(state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the reporter."""
        self._end_report()

    def _saved(self, args: TrainingArguments, state: TrainerState) -> Path:
        folder = resume_folder(run_folder(args, state), state.global_step)
        path = state_path(folder, self.name).with_suffix(".json")
        if not path.exists():
            raise StateError(
                f"{folder} holds no state of {self.name!r}: it was written without this callback, "
                "and the mixture cannot know what was drawn; start a new run"
            )
        return path

    def _shares(self, step: int) -> dict[str, float]:
        """Shares asked for at the last step, and drawn since the last call."""
        asked = self.mixture.ratios_at(max(0, step - 1))
        counts = {name: n[self.mixture.unit] for name, n in self.mixture.drawn(step).items()}
        new = {name: count - self._counted[name] for name, count in counts.items()}
        self._counted, total = counts, max(1, sum(new.values()))
        return {
            **{f"{name}_asked": ratio for name, ratio in asked.items()},
            **{f"{name}_drawn": count / total for name, count in new.items()},
        }
