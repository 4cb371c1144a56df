"""Where a callback's state lies beside a trainer's checkpoint."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

STATE_FOLDER = "hf_glm_curriculum"
"""Sub-folder of ``checkpoint-N`` that holds the state of every callback."""


def state_path(checkpoint: str | os.PathLike[str], name: str) -> Path:
    """The state file of the callback ``name`` in a checkpoint folder."""
    return Path(checkpoint) / STATE_FOLDER / f"{name}.safetensors"


def run_folder(args: Any, state: Any = None) -> Path:
    """The folder that the run under way writes its checkpoints into.

    That is ``output_dir``; each trial of ``hyperparameter_search`` has a sub-folder of it, which a
    trainer does not tell its callbacks: it is asked of the trainer on whose behalf we are called.

    Args:
        args: the trainer's arguments.
        state: the trainer's state, which knows whether this is a trial; not one if None.
    """
    # transformers fills in a default where the user names none.
    folder = Path(args.output_dir or "trainer_output")
    if not getattr(state, "is_hyper_param_search", False):
        return folder
    frame = sys._getframe(1)
    while frame is not None:
        trainer = frame.f_locals.get("self")
        trial = getattr(trainer, "_trial", None) or frame.f_locals.get("trial")
        if trial is not None and hasattr(trainer, "_get_output_dir"):
            return Path(trainer._get_output_dir(trial))  # pyright: ignore[reportOptionalMemberAccess]
        frame = frame.f_back
    return folder


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


def last_checkpoint(folder: Path, name: str) -> Path | None:
    """The newest checkpoint that is whole: a kill while saving leaves one that is not.

    Args:
        folder: the run's.
        name: of the callback without whose state a checkpoint is not whole.
    """
    found = {
        int(step): path
        for path in folder.glob("checkpoint-*")
        if (step := path.name.removeprefix("checkpoint-")).isdigit()
    }
    for _, path in sorted(found.items(), reverse=True):
        if _is_json(path / "trainer_state.json") and state_path(path, name).exists():
            return path
    return None


def _is_json(path: Path) -> bool:
    """Whether a file is there and written to its end."""
    try:
        json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return True
