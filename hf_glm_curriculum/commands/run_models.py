"""Models by the folder of the run that made them."""

from __future__ import annotations

from pathlib import Path

from hf_glm_curriculum.errors import ModelError
from hf_glm_curriculum.evaluation.run_folder import RUN_FILE

MODEL = "model"
"""Where a run keeps what it trained."""


def model_of(name: str) -> str:
    """The model in a run's folder; any other name as it is.

    Raises:
        ModelError: The run has not saved its model yet.
    """
    folder = Path(name).expanduser()
    if not (folder / RUN_FILE).is_file() or (folder / "config.json").is_file():
        return name
    if not (folder / MODEL).is_dir():
        raise ModelError(
            f"{name}: is the folder of a run that has not saved its model; finish it with "
            "--resume, or name a checkpoint in it"
        )
    return str(folder / MODEL)
