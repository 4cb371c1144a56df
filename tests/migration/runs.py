"""Training runs over rows of two objectives, and a mixture that only notes what it is asked."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from hf_glm_curriculum.data.mixture_host import event_under_way
from hf_glm_curriculum.migration.callback import ObjectiveMigrationCallback
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.objectives import DatasetTags
from tests.lifespan.runs import Run, random_rows, train

PRETRAIN_ROWS = random_rows(5, seed=1)
INSTRUCTION_ROWS = random_rows(5, seed=2)
ROWS = [row for pair in zip(PRETRAIN_ROWS, INSTRUCTION_ROWS, strict=True) for row in pair]
"""Alternating, so that every batch of two holds both objectives where nothing shuffles."""

HOSTS = {
    "trainer": {},
    "sft": {"sft": True},
    "sft_nll": {"sft": True, "loss_type": "nll"},
}
ALL = MigrationConfig(window=1.0, gamma_bottom=3.0, gamma_top=0.5)
"""A window as long as the run, and layers far apart in it."""

ONES = MigrationConfig(window=1.0, pretrain_floor=1.0, instruction_floor=1.0)
"""Gates that are on and weigh nothing."""


def data(rows: list[dict[str, Any]]) -> Dataset:
    return Dataset.from_list(rows)


def tags() -> dict[str, Dataset]:
    return {"pretrain": data(PRETRAIN_ROWS), "instruction": data(INSTRUCTION_ROWS)}


def migration(config: MigrationConfig = ALL, **settings: Any) -> ObjectiveMigrationCallback:
    """A callback that tells the rows above apart."""
    settings = settings if "mixture" in settings else {"tags": tags(), **settings}
    return ObjectiveMigrationCallback(config, **settings)


def run(callbacks: list[Any], **settings: Any) -> Run:
    """Train on ROWS, in their order."""
    defaults = {"rows": ROWS, "train_sampling_strategy": "sequential", "max_grad_norm": 0.0}
    return train(callbacks, **{**defaults, **settings})


class WrittenMixture:
    """Stands for a mixture: knows whose a sample is, and notes every change of its ratios."""

    unit = "tokens"
    lag_steps = 2

    def __init__(self, **ratios: float) -> None:
        self.ratios = dict(ratios) or {"pretrain": 1.0, "instruction": 0.0}
        self.source_names = list(self.ratios)
        self.asked: dict[int, dict[str, float]] = {}
        self.tokens = dict.fromkeys(self.source_names, 0)
        self._tags = DatasetTags(tags())
        self._begun = False

    def connect(self, args: Any) -> None:
        self._begun = False

    def reset(self) -> None:
        self.asked = {}

    def set_ratios(self, ratios: dict[str, float], step: int | None = None) -> None:
        """Note for which step a change is, as the real mixture counts it."""
        assert step is not None and abs(sum(ratios.values()) - 1) < 1e-12
        unread = event_under_way().name == "on_train_begin"
        self.ratios = dict(ratios)
        self.asked[step if unread else step + self.lag_steps] = dict(ratios)

    def ratios_at(self, step: int) -> dict[str, float]:
        known = [one for one in self.asked if one <= step]
        return self.asked[max(known)] if known else self.ratios

    def drawn(self, step: int | None = None) -> dict[str, dict[str, int]]:
        return {name: {"rows": n // 10, "tokens": n} for name, n in self.tokens.items()}

    def source_index(self, ids: Tensor) -> Tensor:
        found = self._tags.source_index(ids)
        names = [self.source_names.index(name) for name in self._tags.source_names]
        return torch.tensor([*names, -1])[found]

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        return {"asked": [list(pair) for pair in self.asked.items()], "step": step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.asked = dict(state_dict["asked"])
