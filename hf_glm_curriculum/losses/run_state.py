"""A composite's state beside a trainer's checkpoints."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hf_glm_curriculum.checkpoints import resume_folder, run_folder, state_path
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.storage import atomic_write_json, read_json

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments

logger = logging.getLogger(__name__)


def save_state(
    composite: CompositeLoss,
    args: TrainingArguments,
    state: TrainerState,
    name: str,
    **extra: object,
) -> None:
    """Write the composite's state (and ``extra``) beside the checkpoint of the present step.

    Raises:
        StateError: if the disk is full or the folder is not writable.
    """
    if not state.is_world_process_zero:
        return
    folder = run_folder(args, state) / f"checkpoint-{state.global_step}"
    path = state_path(folder, name).with_suffix(".json")
    atomic_write_json(path, {**composite.state_dict(), **extra})


def restore_state(
    composite: CompositeLoss, args: TrainingArguments, state: TrainerState, name: str
) -> dict:
    """Read the state of the checkpoint that the run is resumed from into the composite.

    Returns:
        The whole file's content; empty where the checkpoint has none, which is said.

    Raises:
        StateError: if it cannot be read, or names terms that the composite does not know.
    """
    folder = resume_folder(run_folder(args, state), state.global_step)
    path = state_path(folder, name).with_suffix(".json")
    if not path.exists():
        logger.warning(
            "hf_glm_curriculum: %s holds no state of %r: the terms start as the program sets them",
            folder,
            name,
        )
        return {}
    found = read_json(path)
    composite.load_state_dict(found)
    composite.step = state.global_step
    return found


def will_log(args: TrainingArguments, state: TrainerState) -> bool:
    """Whether the step about to begin is one whose metrics are logged."""
    step = state.global_step + 1
    if getattr(args.logging_strategy, "value", args.logging_strategy) == "epoch":
        length = max(1, round(state.max_steps / max(state.num_train_epochs or 1, 1)))
        return step % length == 0
    first = args.logging_first_step and step == 1
    return first or (state.logging_steps > 0 and step % state.logging_steps == 0)
