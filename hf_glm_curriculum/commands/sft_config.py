"""Settings of `sft`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field

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
class SftCommandConfig(TrainingSettings, SftSources):
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
        if self.max_steps == 0 or self.max_steps < -1:
            raise ConfigError(f"max_steps: must be positive, or -1 for none, got {self.max_steps}")
