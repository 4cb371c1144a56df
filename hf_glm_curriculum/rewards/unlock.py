"""Progressive unlocking: the hard dimension first, the easy ones once it has settled.

Source: article 1, §4.2: an easily won dimension (compliance) teaches a policy to say little; train
on the hard one (factual) alone until its mean stays above 0.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.rewards.dimensions import (
    check_dimensions,
    check_scores,
    dimension_index,
    open_mask,
)


class ProgressiveUnlock:
    """Unlocks dimensions one stage after the other.

    Stage k ends, and the next dimensions come in, when it has lasted `min_steps` updates and the
    mean over its last `window` updates of its own dimensions' scores is at least `target` in each;
    or after `max_steps` updates in any case.

    Args:
        order: dimensions in the order of their unlocking; a tuple comes in together, as in
            ``("factual", ("logic", "compliance"))``.
        target: mean score that a stage must reach, in [0, 1].
        min_steps: least updates a stage lasts (article: 1000).
        max_steps: most updates a stage lasts, so that a dimension that never gets there does not
            keep the others out; None for no limit.
        window: updates over which the mean is taken: "stays above", not "touches once".

    Raises:
        ConfigError: if a number is out of range or a name occurs twice.
    """

    def __init__(
        self,
        order: Sequence[str | Sequence[str]],
        target: float = 0.7,
        min_steps: int = 1000,
        max_steps: int | None = 5000,
        window: int = 20,
    ) -> None:
        self.stages = [(s,) if isinstance(s, str) else tuple(s) for s in order]
        self.dimensions = check_dimensions([name for stage in self.stages for name in stage])
        self.target, self.window = float(target), int(window)
        self.min_steps, self.max_steps = min_steps, max_steps
        if not 0.0 <= self.target <= 1.0:
            raise ConfigError(f"target: must lie in [0, 1], got {target}")
        if self.min_steps < 0 or self.window < 1:
            raise ConfigError(
                f"min_steps, window: must be at least 0 and 1, got {min_steps} and {window}"
            )
        if max_steps is not None and max_steps < max(1, min_steps):
            raise ConfigError(
                f"max_steps: must be at least min_steps ({min_steps}) and 1, got {max_steps}"
            )
        self._enter(0)

    @property
    def stage(self) -> int:
        """Number of the stage under way, from 0."""
        return self._stage

    @property
    def finished(self) -> bool:
        """Whether every dimension is unlocked."""
        return self._stage == len(self.stages) - 1

    def unlocked(self, dimensions: Sequence[str] | None = None) -> Tensor:
        """Which dimensions are in use, bool [D] in the order of `dimensions`.

        Raises:
            ConfigError: if a dimension is not in `order`, or `order` names one that is not there.
        """
        names = self.dimensions if dimensions is None else tuple(dimensions)
        for name in names:
            dimension_index(name, self.dimensions, "order")
        for name in self.dimensions:
            dimension_index(name, names, "order")
        known = {name for stage in self.stages[: self._stage + 1] for name in stage}
        return torch.tensor([name in known for name in names])

    def update(
        self, scores: Tensor, mask: Tensor | None = None, dimensions: Sequence[str] | None = None
    ) -> Tensor:
        """Take one update's scores in and unlock what is due.

        Args:
            scores: [B, D] in [0, 1], of all ranks; NaN is null.
            mask: [B, D], true where open. An update without an open score of a dimension repeats
                nothing: the mean is over updates that had one.
            dimensions: names of the columns; those of `order` without it.

        Returns:
            bool [D]: what is unlocked from now on.

        Raises:
            DataError: if a score is out of range.
            ConfigError: if the names do not fit `order`.
        """
        names = self.dimensions if dimensions is None else tuple(dimensions)
        self.unlocked(names)
        check_scores(scores, names)
        opened = open_mask(scores, mask)
        for name in self.stages[self._stage]:
            column = names.index(name)
            chosen = scores[opened[:, column], column]
            if chosen.numel():
                self._means[name].append(float(chosen.double().mean()))
        self._steps += 1
        if not self.finished and (self._reached() or self._overdue()):
            self._enter(self._stage + 1)
        return self.unlocked(names)

    def state_dict(self) -> dict[str, Any]:
        """Stage, updates in it and the last means, as plain values."""
        means = {name: list(values) for name, values in self._means.items()}
        return {"stage": self._stage, "steps": self._steps, "means": means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`.

        Raises:
            StateError: if it is of another order.
        """
        stage = int(state["stage"])
        if stage >= len(self.stages) or set(state["means"]) != set(self.stages[stage]):
            raise StateError(
                f"order: state is of stage {stage} with {', '.join(state['means'])}, which the "
                f"order {self.stages} does not have; resume with the order the run began with"
            )
        self._enter(stage)
        self._steps = int(state["steps"])
        for name, values in state["means"].items():
            self._means[name].extend(values)

    def _enter(self, stage: int) -> None:
        self._stage, self._steps = stage, 0
        self._means = {name: deque(maxlen=self.window) for name in self.stages[stage]}

    def _reached(self) -> bool:
        full = min(self.window, max(1, self.min_steps))
        return self._steps >= self.min_steps and all(
            len(values) >= full and sum(values) / len(values) >= self.target
            for values in self._means.values()
        )

    def _overdue(self) -> bool:
        return self.max_steps is not None and self._steps >= self.max_steps
