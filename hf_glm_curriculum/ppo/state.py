"""What a PPO checkpoint holds beside the policy, the optimizer and the random states."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.checkpoints import last_checkpoint, state_path
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.distributed import rank
from hf_glm_curriculum.storage import load_tensors, save_tensors

NAME = "ppo"
_VALUE = "value_model."
_STREAM = "stream."

logger = logging.getLogger(__name__)

# What a checkpoint cannot be taken up under when it has changed.
_FIXED = ("dimensions", "critics", "advantage_mode", "rows", "world_size", "value_model", "prompts")
# What a run may change on the way, if the user means it.
_SAID = (
    "temperature",
    "response_length",
    "num_mini_batches",
    "num_ppo_epochs",
    "learning_rate",
    "seed",
)


def settings_of(trainer: Any) -> dict[str, Any]:
    """What a resumed run has to share with its checkpoint, and what it should."""
    args, source = trainer.args, trainer.judge.source
    fixed = {
        "dimensions": list(source.dimensions),
        "critics": trainer.judge.critics,
        "advantage_mode": args.advantage_mode,
        "rows": args.rows_per_device,
        "world_size": args.world_size,
        "value_model": type(trainer.value_model).__name__,
        "prompts": len(trainer.train_dataset),
    }
    return fixed | {name: getattr(args, name) for name in _SAID}


def save_state(trainer: Any, folder: Path) -> None:
    """Write this rank's part of a checkpoint; the first rank's holds the value model too.

    Raises:
        StateError: if the disk is full or the folder not writable.
    """
    tensors = {f"{_STREAM}{k}": v for k, v in trainer.prompts.state_dict().items()}
    about = {"settings": settings_of(trainer), "judge": trainer.judge.state_dict()}
    about |= {"episode": trainer.state.episode, "since_log": trainer.since_log}
    if rank() == 0 and not trainer.is_sharded:
        weights = trainer.bare_model.value_model.state_dict()
        tensors |= {f"{_VALUE}{k}": v for k, v in weights.items()}
    save_tensors(_path(folder), tensors, {"ppo": json.dumps(about)})


def load_state(trainer: Any, folder: Path) -> dict[str, Tensor]:
    """Take up a checkpoint's value model, reward state, episode and figures not yet logged.

    Returns:
        The state of the prompt stream, to be dealt once everything else is in place.

    Raises:
        StateError: if the file is missing or broken, or of a run with other settings.
    """
    tensors, metadata = load_tensors(_path(folder))
    about = json.loads(metadata["ppo"])
    _check_settings(folder, about["settings"], settings_of(trainer))
    trainer.judge.load_state_dict(about["judge"])
    trainer.state.episode = int(about["episode"])
    trainer.since_log = about.get("since_log", [])
    if not trainer.is_sharded:
        first = tensors if rank() == 0 else load_tensors(state_path(folder, NAME))[0]
        weights = _under(first, _VALUE)
        try:
            trainer.bare_model.value_model.load_state_dict(weights)
        except RuntimeError as error:
            raise StateError(
                f"{folder}: its value model does not fit ({str(error).splitlines()[0]}); pass the "
                "value_model the run began with"
            ) from error
    return _under(tensors, _STREAM)


def checkpoint_to_resume(given: Any, output_dir: str) -> Path | None:
    """The checkpoint folder that ``train(resume_from_checkpoint=...)`` names.

    Args:
        given: None or False for none, True for the newest whole one in `output_dir`, or a folder.
        output_dir: of the run.

    Raises:
        StateError: if there is no whole checkpoint.
    """
    if given is None or given is False:
        return None
    if given is True:
        found = last_checkpoint(Path(output_dir), NAME)
        if found is None:
            raise StateError(
                f"resume_from_checkpoint: {output_dir} holds no whole PPO checkpoint; start anew, "
                "or name the folder of one"
            )
        return found
    folder = Path(given)
    if not (folder / "trainer_state.json").exists() or not state_path(folder, NAME).exists():
        raise StateError(
            f"resume_from_checkpoint: {folder} is no whole PPO checkpoint of this package (a kill "
            "while saving leaves a part); name another, or pass True for the newest whole one"
        )
    return folder


def _path(folder: Path) -> Path:
    return state_path(folder, NAME if rank() == 0 else f"{NAME}-rank{rank()}")


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _check_settings(folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in _FIXED:
        if saved.get(name) != now[name]:
            raise StateError(
                f"{folder}: was written with {name} {saved.get(name)}, this run has {now[name]}; "
                "resume with the settings and data the run began with, or start anew"
            )
    for name in _SAID:
        if saved.get(name) != now[name]:
            logger.warning(
                "%s: %s was %s and is %s from here on", folder, name, saved.get(name), now[name]
            )
