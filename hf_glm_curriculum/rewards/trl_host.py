"""What a trainer must do with rewards that may be None, checked before its first step."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from hf_glm_curriculum.checkpoints import STATE_FOLDER, resume_folder
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.storage import atomic_write_json, read_json

if TYPE_CHECKING:
    from transformers import TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

_NEEDED = "normalize_then_sum"


class GatedReward:
    """A reward function that says None where its dimension is closed."""

    shared: Any
    dimension: str


def host_of(fields: Mapping[str, Any]) -> Any | None:
    """The trainer that called a reward function, or None where nobody's trainer did.

    TRL hands its functions `log_metric`, a method of the trainer; that is the one way from a
    reward function to the trainer's settings.
    """
    owner = getattr(fields.get("log_metric"), "__self__", None)
    return owner if hasattr(owner, "reward_funcs") else None


def check_reward_host(trainer: Any) -> None:
    """Refuse a trainer in which a closed dimension would count as a reward of 0.

    The functions check themselves when they are first called, before the first step; calling this
    right after the trainer is made tells sooner. Where `structured_reward_functions` was given
    weights and the user set no `reward_weights`, the trainer takes the weights here.

    Args:
        trainer: a `GRPOTrainer`, `RLOOTrainer` or another with `reward_funcs`.

    Raises:
        IncompatibleError: if rewards are summed before they are normalised, or the trainer's
            `reward_weights` contradict the weights given.
    """
    functions = list(trainer.reward_funcs)
    ours = [f for f in functions if isinstance(f, GatedReward)]
    if not ours:
        return
    aggregation = getattr(trainer, "multi_objective_aggregation", None)
    _refuse_sums(len(functions), aggregation, type(trainer).__name__)
    shared = ours[0].shared
    if not shared.weighted:
        return
    names = [f.dimension if isinstance(f, GatedReward) else None for f in functions]
    values = shared.pipeline.weights.weights
    _weigh(trainer, [1.0 if name is None else values[name] for name in names])


def check_reward_args(functions: Sequence[Any], args: Any) -> None:
    """The same from a trainer's arguments, for callbacks, which do not see the trainer.

    Raises:
        IncompatibleError: if rewards are summed before they are normalised.
    """
    if any(isinstance(function, GatedReward) for function in functions):
        aggregation = getattr(args, "multi_objective_aggregation", None)
        _refuse_sums(len(functions), aggregation, type(args).__name__)


class RewardStateCallback(TrainerCallback):
    """Checks the trainer before anything is generated, and keeps the rewards' state in checkpoints.

    Args:
        functions: of `structured_reward_functions`, or one `combined_reward_function`.
        name: of the state file, where a trainer has several.
    """

    def __init__(self, functions: Any, name: str = "structured_rewards") -> None:
        self.functions = list(functions) if isinstance(functions, list | tuple) else [functions]
        self.name = name

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Check the host; a resumed run takes up the state of its checkpoint.

        Raises:
            IncompatibleError: if the trainer sums rewards before normalising.
            StateError: if the state does not fit.
        """
        check_reward_args(self.functions, args)
        if state.global_step == 0:
            return
        path = self._path(resume_folder(args.output_dir or "", state.global_step))
        if path.exists():
            self._pipeline.load_state_dict(read_json(path))
        else:
            logger.warning(
                "hf_glm_curriculum: %s holds no state of %r: running means, normalisation and "
                "unlocking start anew at step %d.",
                path.parent,
                self.name,
                state.global_step,
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        """Write the state beside the checkpoint.

        Raises:
            StateError: if the disk is full or the folder is not writable.
        """
        if state.is_world_process_zero:
            folder = Path(args.output_dir or "") / f"checkpoint-{state.global_step}"
            atomic_write_json(self._path(folder), self._pipeline.state_dict())

    @property
    def _pipeline(self) -> Any:
        return self.functions[0].shared.pipeline

    def _path(self, checkpoint: Path) -> Path:
        return checkpoint / STATE_FOLDER / f"{self.name}.json"


def _refuse_sums(number: int, aggregation: str | None, host: str) -> None:
    """One function alone is safe anywhere: TRL leaves its None rows out."""
    if number < 2 or aggregation == _NEEDED:
        return
    if aggregation is None:
        raise IncompatibleError(
            f"reward_funcs: {host} has no multi_objective_aggregation, so it sums {number} "
            "rewards and a closed dimension counts as 0; pass the single function of "
            "combined_reward_function(...)"
        )
    raise IncompatibleError(
        f"multi_objective_aggregation: must be {_NEEDED!r} with one reward function a dimension, "
        f"got {aggregation!r}, under which a closed dimension counts as a reward of 0; set "
        f"GRPOConfig(multi_objective_aggregation={_NEEDED!r}), or pass the single function of "
        "combined_reward_function(...)"
    )


def _weigh(trainer: Any, wanted: list[float]) -> None:
    given = getattr(trainer.args, "reward_weights", None)
    if given is not None and [float(value) for value in given] != wanted:
        raise IncompatibleError(
            f"reward_weights: the trainer's are {json.dumps(list(given))}, those of the weights "
            f"given to structured_reward_functions are {json.dumps(wanted)}; set only one of them"
        )
    trainer.reward_weights = torch.tensor(wanted, dtype=torch.float32)
