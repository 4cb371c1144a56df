"""A hyperparameter search through the trainer's own code, without a search library."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import Trainer
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import BestRun, HPSearchBackend

from tests.conftest import build_model
from tests.lifespan.runs import Collator, arguments, random_rows


class InTurn:
    """A search backend that tries the trials 0, 1, … as Optuna's does, without Optuna."""

    name = "optuna"

    def ensure_available(self) -> None:
        """Nothing is needed."""

    def run(self, trainer: Any, n_trials: int, direction: str, **kwargs: Any) -> BestRun:
        for number in range(n_trials):
            trial = SimpleNamespace(number=number, params={})
            trainer.train(resume_from_checkpoint=kwargs.get("checkpoint"), trial=trial)
        return BestRun("0", 0.0, {})


def search_trials(
    patch: pytest.MonkeyPatch,
    folder: Any,
    callbacks: list[Any],
    *,
    data: Any = None,
    trials: int = 2,
    search: dict[str, Any] | None = None,
    **settings: Any,
) -> Trainer:
    """Run a search; trial n trains at a rate of 0.01 · (1 + n) in ``folder/run-n``."""
    patch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, InTurn)
    # The one place that asks for Optuna's own type of trial.
    patch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)
    trainer = Trainer(
        model_init=lambda: build_model(),
        args=arguments(folder, **settings),
        data_collator=Collator(),
        train_dataset=Dataset.from_list(random_rows()) if data is None else data,
        callbacks=callbacks,
    )
    trainer.hyperparameter_search(
        backend="optuna",
        n_trials=trials,
        hp_space=lambda trial: {"learning_rate": 1e-2 * (1 + trial.number)},
        **(search or {}),
    )
    return trainer
