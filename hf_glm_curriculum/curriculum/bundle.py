"""Lifespan, lanes, monitor and losses as one callback, from one file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from transformers import TrainerCallback

from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.curriculum.alignment_callback import AlignmentMonitorCallback
from hf_glm_curriculum.curriculum.bundle_config import CurriculumConfig
from hf_glm_curriculum.curriculum.lane_build import build_lanes
from hf_glm_curriculum.curriculum.lane_callback import LaneCallback
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.curriculum.lane_data import LaneDataset
from hf_glm_curriculum.curriculum.lane_scores import Estimator
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.lifespan.callback import SampleLifespanCallback
from hf_glm_curriculum.losses.callback import CompositeLossCallback


class CurriculumCallback(TrainerCallback):
    """Holds the parts that a file asks for and hands every event on to them.

    Lifespan and losses need nothing more. Lanes and a monitor that switches choose rows, so they
    wrap the data set::

        curriculum = CurriculumCallback.from_yaml("configs/sft/curriculum.yaml")
        args = TrainingArguments(..., train_sampling_strategy="sequential")
        Trainer(
            model, args, train_dataset=curriculum.dataset(rows), callbacks=[curriculum]
        ).train()

    With a ``CurriculumMixture`` as the data set, ``from_yaml(path, mixture=mixture)`` lets the
    monitor switch that; lanes do not go with a mixture, whose rows have no fixed places.

    Args:
        config: the parts' settings.
        mixture: the ``CurriculumMixture`` that the trainer reads, for the monitor.
        base_source: the mixture's source that the monitor goes back to.

    Attributes:
        lifespan: the part, or None; ``lanes``, ``monitor`` and ``losses`` likewise. Lanes and
            monitor are there from :meth:`dataset` on.

    Raises:
        ConfigError: if lanes and a mixture are asked for together, or the source is unknown.
    """

    def __init__(
        self, config: CurriculumConfig, *, mixture: Any = None, base_source: str = "base"
    ) -> None:
        """Make the parts that need no data."""
        self.config = config
        if mixture is not None and config.lanes is not None:
            raise ConfigError(
                "lanes: a mixture's rows have no fixed places; leave the section out, or pass the "
                "rows to dataset() with the base source as base=."
            )
        self.lifespan: SampleLifespanCallback | None = None
        self.losses: CompositeLossCallback | None = None
        self.lanes: LaneCallback | None = None
        self.monitor: AlignmentMonitorCallback | None = None
        if config.lifespan is not None:
            self.lifespan = SampleLifespanCallback(config.lifespan)
        if config.losses is not None:
            self.losses = config.losses.callback()
        if config.monitor is not None and (mixture is not None or config.monitor.observe_only):
            self.monitor = AlignmentMonitorCallback(mixture, base_source, config.monitor)
        self._switches = config.monitor is not None and self.monitor is None

    @classmethod
    def from_yaml(
        cls,
        path: str | os.PathLike[str],
        overrides: Mapping[str, Any] | Iterable[str] | None = None,
        *,
        mixture: Any = None,
        base_source: str = "base",
    ) -> Self:
        """Read the settings from a file with the sections lifespan, lanes, monitor and losses.

        Args:
            path: the file; a section that is left out leaves its part out.
            overrides: settings on top, such as ``["lanes.schedule=easy_first"]``.
            mixture: see the class.
            base_source: see the class.

        Raises:
            ConfigError: if the file cannot be read or a setting is unknown (the nearest valid one
                is named) or out of range.
        """
        config = load_config(CurriculumConfig, path, overrides)
        return cls(config, mixture=mixture, base_source=base_source)

    @property
    def parts(self) -> list[TrainerCallback]:
        """The callbacks there are; their order makes no difference."""
        found = (self.lifespan, self.losses, self.lanes, self.monitor)
        return [part for part in found if part is not None]

    @property
    def chooses_rows(self) -> bool:
        """Whether the data set has to be wrapped with :meth:`dataset`."""
        return self.config.lanes is not None or self._switches

    def dataset(
        self,
        dataset: Any,
        base: Any = None,
        *,
        estimator: Estimator | None = None,
        scores: Sequence[float] | np.ndarray | None = None,
        column: str | None = None,
        tokenizer: Any = None,
    ) -> Any:
        """Wrap the trainer's data set; where no part chooses rows, give it back as it is.

        Args:
            dataset: a `datasets.Dataset`, text or tokens.
            base: rows with the same columns that the monitor goes back to; by default the share
                ``base_share`` of the data set with the lowest scores.
            estimator: see :func:`build_lanes`, as the others.
            scores: [N] numbers in place of an estimator.
            column: of the instructions.
            tokenizer: decodes the prompts of token rows.

        Raises:
            DataError: as :func:`build_lanes`.
        """
        config, switches = self.config, self._switches
        if not self.chooses_rows:
            return dataset
        if config.lanes is None and base is not None and scores is None:
            scores = np.zeros(len(dataset))  # one lane: nothing to tell apart
        laned: LaneDataset = build_lanes(
            dataset,
            estimator,
            config=config.lanes or LaneConfig.plain(),
            scores=scores,
            column=column,
            tokenizer=tokenizer,
            base=base if switches else None,
            base_share=config.base_share if switches and base is None else None,
        )
        self.lanes = LaneCallback(laned)
        if switches:
            self.monitor = AlignmentMonitorCallback(laned, config=config.monitor)
        return laned

    def detach(self) -> None:
        """Take every hook off the model; needed only after a run that died of an exception."""
        for part in self.parts:
            part.detach()  # pyright: ignore[reportAttributeAccessIssue]

    def _check_wrapped(self) -> None:
        """Find out when the trainer is made that its data set was not wrapped.

        Raises:
            IncompatibleError: naming the way out.
        """
        if self.chooses_rows and self.lanes is None:
            which = "lanes" if self.config.lanes is not None else "monitor"
            raise IncompatibleError(
                f"{which}: chooses rows, so the data set must be wrapped before the trainer is "
                "made; pass train_dataset=curriculum.dataset(rows)."
            )


def _forwarding(name: str) -> Any:
    original = getattr(TrainerCallback, name)

    def event(self: CurriculumCallback, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if name in ("on_init_end", "on_train_begin"):
            self._check_wrapped()
        for part in self.parts:
            control = getattr(part, name)(args, state, control, **kwargs) or control
        return control

    event.__name__, event.__doc__ = name, original.__doc__
    return event


for _name in [name for name in dir(TrainerCallback) if name.startswith("on_")]:
    setattr(CurriculumCallback, _name, _forwarding(_name))
