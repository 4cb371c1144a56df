"""Where a callback's state lies beside a trainer's checkpoint."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STATE_FOLDER = "hf_glm_curriculum"
"""Sub-folder of ``checkpoint-N`` that holds the state of every callback."""


def state_path(checkpoint: str | os.PathLike[str], name: str) -> Path:
    """The state file of the callback ``name`` in a checkpoint folder."""
    return Path(checkpoint) / STATE_FOLDER / f"{name}.safetensors"


def resume_folder(output_dir: str | os.PathLike[str], step: int) -> Path:
    """The checkpoint folder that the run under way was resumed from.

    A trainer hands its callbacks the step but not the folder. A folder named in
    ``train(resume_from_checkpoint=...)`` is read off the trainer's own frame; otherwise it is
    ``<output_dir>/checkpoint-<step>``, where the trainer looks itself.

    Args:
        output_dir: the trainer's output folder.
        step: ``state.global_step`` when training begins.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if "resume_from_checkpoint" in frame.f_code.co_varnames:
            given = frame.f_locals.get("resume_from_checkpoint")
            if isinstance(given, str | os.PathLike):
                return Path(given)
        frame = frame.f_back
    return Path(output_dir) / f"checkpoint-{step}"
