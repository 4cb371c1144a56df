"""What several processes of one run agree on before any of them touches its folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from hf_glm_curriculum.commands.run_state import CALLBACK, FolderPlan, plan_folder
from hf_glm_curriculum.commands.training_settings import TrainingSettings
from hf_glm_curriculum.errors import HfGlmCurriculumError

Decision = TypeVar("Decision")


def plan_together(config: TrainingSettings | Any, callback: str = CALLBACK) -> FolderPlan:
    """`plan_folder`, decided by the first process for all.

    A process that starts later would take the folder that the first one has begun for an older run.

    Args:
        config: With `output_dir`, `resume`, `overwrite` and `cpu`.
        callback: See `plan_folder`.

    Raises:
        StateError: As `plan_folder`, on every process.
    """
    return agreed(
        lambda: plan_folder(config.output_dir, config.resume, config.overwrite, callback),
        config.cpu,
    )


def agreed(decide: Callable[[], Decision], cpu: bool) -> Decision:
    """What the first process decides, on every process; its refusal too.

    Args:
        decide: Called on the first process alone.
        cpu: Whether the run stays on CPUs, which says how processes talk.
    """
    if int(os.environ.get("WORLD_SIZE", "1") or 1) < 2:
        return decide()
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    state = PartialState(cpu=cpu)
    found: list[Any] = [None, None]
    if state.is_main_process:
        try:
            found[0] = decide()
        except HfGlmCurriculumError as error:
            found[1] = error
    broadcast_object_list(found, from_process=0)
    if found[1] is not None:
        raise found[1]
    return found[0]
