"""Settings of `migrate`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_glm_curriculum.commands.scratch_model import SCRATCH, ScratchConfig
from hf_glm_curriculum.commands.training_settings import TrainingSettings, check_least
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.migration.config import MigrationConfig


@dataclass
class MigrateSources:
    """What is trained on, and for how long; a class of its own so that these come first."""

    documents: list[str] = field(default_factory=list)
    """Pre-training text: text files, folders of them, records with a text field, or a hub id."""

    instructions: list[str] = field(default_factory=list)
    """Instructions with answers: JSONL, JSON, CSV or Parquet files, folders, or a hub id."""

    pretrain_steps: int = 1000
    """Optimizer steps on documents; in their last share (window) the objective migrates."""

    sft_steps: int = 200
    """Optimizer steps of instruction tuning that follow."""


@dataclass
class MigrateCommandConfig(TrainingSettings, MigrateSources):
    """Pre-training that becomes instruction tuning in one run; see ``docs/methods/migration.md``.

    ``model`` may also be "scratch", a new one of the sizes under ``scratch``.
    """

    output_dir: str = "runs/migrate"
    """The run's folder: checkpoints, metrics, pictures, answers, the model and the report."""

    max_length: int | None = 512
    """Tokens of a row; documents follow one another in rows of this length."""

    lora: bool = False
    """Train low-rank adapters (needs the extra [peft]) instead of every weight."""

    save_steps: int | None = None
    """Optimizer steps between two checkpoints; null saves ten times in the run."""

    eval_steps: int | None = None
    """Optimizer steps between two measurements of the held-out losses; null measures 20 times."""

    stratify: bool = True
    """Let every step of the migration hold rows of both objectives."""

    workers: int = 0
    """Processes that load data beside the training; one reads, so more than 1 help no further."""

    scratch: ScratchConfig = field(default_factory=ScratchConfig)
    """Sizes of the new model where model is "scratch"."""

    migration: MigrationConfig = field(default_factory=MigrationConfig)
    """How the objective migrates."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        super().__post_init__()
        check_least(self, _LEAST)
        if self.max_length is None:
            raise ConfigError("max_length: documents are cut into rows of it, so it needs a number")
        given = self.migration.pretrain_steps
        if given is not None and given != self.pretrain_steps:
            raise ConfigError(
                f"migration.pretrain_steps: is {given} and pretrain_steps {self.pretrain_steps}; "
                "set pretrain_steps only"
            )
        if self.model == SCRATCH and self.lora:
            raise ConfigError("lora: a new model has no weights worth freezing; set lora to false")
        if self.stratify and self.rows_of_a_device < 2:
            raise ConfigError(
                "stratify: a step of one row cannot hold both objectives; raise batch_size or "
                "gradient_accumulation, or set stratify to false"
            )

    @property
    def max_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.pretrain_steps + self.sft_steps

    @property
    def rows_of_a_device(self) -> int:
        """Rows of one optimizer step on one device."""
        return self.batch_size * self.gradient_accumulation


_LEAST = {"pretrain_steps": 1, "sft_steps": 0, "eval_steps": 1, "workers": 0}
