"""Settings of `sft`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hf_glm_curriculum.commands.training_settings import TrainingSettings
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan.config import LifespanConfig


@dataclass
class SftSources:
    """What is trained on; a class of its own so that these settings come first."""

    data: list[str] = field(default_factory=list)
    """Training data: JSONL, JSON, CSV or Parquet files, folders of them, or one hub id."""

    eval_data: list[str] = field(default_factory=list)
    """Held-out data in any of the same formats; empty takes a share of the training data."""


@dataclass
class SftCurriculum:
    """Who is trained at which pace, and who steps in; see ``docs/methods/curriculum.md``."""

    lanes: dict[str, Any] | None = None
    """Settings of the lanes (an empty mapping for their defaults); null for one pace for all."""

    monitor: dict[str, Any] | None = None
    """Settings of the alignment monitor (an empty mapping for its defaults); null for none."""

    losses: dict[str, Any] | None = None
    """Weights of the loss's terms lm, z and tempered; null for the plain loss."""

    base_data: list[str] = field(default_factory=list)
    """Data that the monitor goes back to, in any of the same formats."""

    base_share: float = 0.25
    """Share of the training data with the least instruction entropy that the monitor goes back to
    where there is no base_data."""


@dataclass
class SftCommandConfig(TrainingSettings, SftCurriculum, SftSources):
    """Supervised fine-tuning with every sample followed; see ``docs/methods/lifespan.md``."""

    output_dir: str = "runs/sft"
    """The run's folder: checkpoints, metrics, samples, answers, the model and the report."""

    held_out: float = 0.05
    """Share of the training data held out where eval_data is empty; 0 holds nothing out."""

    epochs: float = 3.0
    """Passes over the training data."""

    max_steps: int = -1
    """Optimizer steps after which training stops whatever epochs says; -1 for no such limit."""

    debug_dir: str | None = None
    """Folder for a CSV with every sample's loss, gradient norm and weight at every step."""

    position_graph: str | None = None
    """YAML file with settings of position-graph attention, or "default" for its defaults: training
    then attends by the graph; see ``docs/methods/attention.md``."""

    teacher: str | None = None
    """Causal language model to learn from besides the data, attending densely: "self" for the model
    as it is before training, a folder or a hub id with the same vocabulary."""

    teacher_weight: float = 0.5
    """Share of the loss that is the divergence from the teacher; the data's loss has the rest."""

    teacher_temperature: float = 1.0
    """What both distributions' logits are divided by."""

    lifespan: LifespanConfig = field(default_factory=LifespanConfig)
    """How samples are weighted, observed and judged."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        super().__post_init__()
        if not self.epochs > 0:
            raise ConfigError(f"epochs: must be above 0, got {self.epochs}")
        if not 0.0 < self.teacher_weight <= 1.0:
            raise ConfigError(
                f"teacher_weight: must be above 0 and at most 1, got {self.teacher_weight}"
            )
        self._check_curriculum()
        if self.max_steps == 0 or self.max_steps < -1:
            raise ConfigError(f"max_steps: must be positive, or -1 for none, got {self.max_steps}")

    def _check_curriculum(self) -> None:
        """Read the sections of the curriculum once, so that what is wrong in them is said now.

        Raises:
            ConfigError: Naming the setting, or a section that another needs.
        """
        if self.base_data and self.monitor is None:
            raise ConfigError(
                "base_data: is what the monitor goes back to; give a monitor section, or drop it"
            )
        if self.losses is not None and self.teacher is not None:
            raise ConfigError(
                "losses: the teacher composes the loss already; use teacher_weight, or drop one"
            )
        self.curriculum()

    def curriculum(self) -> Any:
        """The `CurriculumConfig` of lanes, monitor and losses; None without any of them.

        Raises:
            ConfigError: Naming the setting.
        """
        names = ("lanes", "monitor", "losses")
        sections = {n: getattr(self, n) for n in names if getattr(self, n) is not None}
        if not sections:
            return None
        from hf_glm_curriculum.config import load_config
        from hf_glm_curriculum.curriculum.bundle_config import CurriculumConfig

        return load_config(CurriculumConfig, None, {**sections, "base_share": self.base_share})
