"""The position graph switched on for the length of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.registration import (
    PositionGraphHandle,
    disable_position_graph,
    enable_position_graph,
    position_graph_of,
)
from hf_glm_curriculum.checkpoints import run_folder
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.reporting_callback import ReportingCallback

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class PositionGraphCallback(ReportingCallback):
    """Trains with position-graph attention: ``Trainer(callbacks=[PositionGraphCallback(config)])``.

    The model attends by the graph from the start of training to its end, evaluation included, and
    as before afterwards; checkpoints carry the settings in their ``config.json``. Logged under the
    callback's name with every loss: the keys a choosing query sees, the share of keys kept over
    all, the entropy of the estimated attention, and the share of calls each backend took.

    A model that was enabled by hand stays as it was; with no ``config`` its settings are used.

    Args:
        config: settings, a mapping of them or a YAML file; defaults if None.
        tokenizer: reads structure, turns and rules; the trainer's processing class if None.
        keep: leave the model enabled after training.
        name: of the metrics.
    """

    def __init__(
        self,
        config: PositionGraphConfig | Mapping[str, Any] | str | Path | None = None,
        tokenizer: Any = None,
        *,
        keep: bool = False,
        name: str = "position_graph",
    ) -> None:
        """Remember the settings; the model is touched when training begins."""
        self.config, self.tokenizer, self.keep, self.name = config, tokenizer, keep, name
        self._handle: PositionGraphHandle | None = None
        self._model: Any = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        """Switch the graph on.

        Raises:
            IncompatibleError: the model cannot attend this way.
            ConfigError: the model is enabled already and other settings are given here.
        """
        self.detach()
        found = position_graph_of(model)
        if found is not None:
            if self.config is not None:
                raise ConfigError(
                    "config: the model was enabled before training with settings of its own; give "
                    "the callback none, or call disable_position_graph(model) first."
                )
            self._handle = found
        else:
            tokenizer = self.tokenizer if self.tokenizer is not None else processing_class
            settings = dict(self.config) if isinstance(self.config, Mapping) else self.config
            self._handle = enable_position_graph(model, settings, tokenizer)
            self._model = model
        self._begin_report(run_folder(args, state), args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Give the model its own attention back."""
        self.detach()
        self._end_report()

    def detach(self) -> None:
        """Switch the graph off where this callback switched it on; also after an exception."""
        if self._model is not None and not self.keep:
            disable_position_graph(self._model)
        self._model, self._handle = None, None

    def _metrics(self, state: TrainerState) -> dict[str, float]:
        handle = self._handle
        if handle is None or handle.last_plan is None:
            return {}
        served = handle.last_plan.served
        total = max(1, sum(served.values()))
        shares = {f"backend/{name}": count / total for name, count in served.items()}
        return {**handle.report(), **shares}
