"""Short runs on laned data, and what they were seen to train on."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback

from hf_glm_curriculum.curriculum.lane_build import build_lanes
from hf_glm_curriculum.curriculum.lane_callback import LaneCallback
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.curriculum.lane_data import LaneDataset
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Collator, arguments, random_rows

SEQUENTIAL = {"train_sampling_strategy": "sequential"}
SAME_NUMBERS = {"refine_autocast": False}
"""Settings under which a lane's numbers do not depend on its effort."""


class Steps(TrainerCallback):
    """Records the rows, the learning rates and the effort of every optimizer step."""

    def __init__(self, rows: list[dict[str, Any]], fail_at: int = 0) -> None:
        self.known = {tuple(row["input_ids"]): i for i, row in enumerate(rows)}
        self.fail_at = fail_at
        self.rows: list[list[list[int]]] = []
        """Rows of each micro-batch of each step."""
        self.used: list[float] = []
        self.after: list[float] = []
        self.checkpointed: list[bool] = []
        self.dtypes: list[torch.dtype] = []

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs) -> None:
        self._optimizer = optimizer
        step = optimizer.optimizer.step

        def watched(*positional, **named):
            self.used.append(float(optimizer.param_groups[0]["lr"]))
            return step(*positional, **named)

        optimizer.optimizer.step = watched
        self._hooks = [
            model.register_forward_pre_hook(self._look, with_kwargs=True),
            model.get_submodule("model.layers.1.mlp.down_proj").register_forward_hook(self._type),
        ]
        self._model = model

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.rows.append([])

    def _look(self, module, positional, batch) -> None:
        if not module.training:
            return
        tokens, mask = batch["input_ids"], batch["attention_mask"]
        pairs = zip(tokens, mask, strict=True)
        self.rows[-1].append([self.known[tuple(t[m == 1].tolist())] for t, m in pairs])
        self.checkpointed.append(self._model.is_activation_checkpointing)

    def _type(self, module, positional, output) -> None:
        if torch.is_grad_enabled() and module.training:
            self.dtypes.append(output.dtype)

    def on_step_end(self, args, state, control, optimizer=None, **kwargs) -> None:
        if state.global_step == self.fail_at:
            raise RuntimeError("killed")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "learning_rate" in (logs or {}):
            self.after.append(logs["learning_rate"])

    def on_train_end(self, args, state, control, **kwargs) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def flat(self) -> list[list[int]]:
        """Rows of each step."""
        return [[row for batch in step for row in batch] for step in self.rows]


def laned(rows: list[dict[str, Any]], config: LaneConfig | None = None, **more: Any) -> LaneDataset:
    """The rows in lanes: those in the first half are the easy ones, unless scores say otherwise."""
    more.setdefault("scores", [float(i) for i in range(len(rows))])
    return build_lanes(Dataset.from_list(rows), config=config, **more)


def train(
    folder: Any,
    data: Any,
    rows: list[dict[str, Any]],
    callbacks: list[TrainerCallback],
    *,
    sft: bool = False,
    fail_at: int = 0,
    resume: bool = False,
    model: torch.nn.Module | None = None,
    **settings: Any,
) -> tuple[Steps, Any]:
    """Train a tiny model; a laned data set brings its callback with it."""
    seen = Steps(rows, fail_at)
    settings = {**SEQUENTIAL, "max_steps": -1, "num_train_epochs": 2, **settings}
    ours = [LaneCallback(data)] if isinstance(data, LaneDataset) and not callbacks else callbacks
    common = {
        "model": model or build_model(),
        "train_dataset": data,
        "callbacks": [*ours, seen],
    }
    if sft:
        from trl import SFTConfig, SFTTrainer

        args = arguments(folder, SFTConfig, max_length=64, **settings)
        trainer = SFTTrainer(
            args=args, processing_class=build_tokenizer(), data_collator=Collator(), **common
        )
    else:
        trainer = Trainer(args=arguments(folder, **settings), data_collator=Collator(), **common)
    trainer.train(resume_from_checkpoint=resume or None)
    return seen, trainer


def parameters(trainer: Any) -> torch.Tensor:
    """All weights as one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


__all__ = ["build_model", "laned", "parameters", "random_rows", "train"]
