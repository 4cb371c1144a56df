"""Settings of `reward`; every one is a key of the YAML file and a flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.rewards.config import DEFAULT_DIMENSIONS, check_dimensions
from hf_glm_curriculum.rewards.construct import SamplingConfig
from hf_glm_curriculum.rewards.flywheel import FlywheelConfig
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig


@dataclass
class RewardCommandConfig:
    """Training a structured reward model; see ``docs/methods/rewards.md``."""

    preferences: list[str] = field(default_factory=list)
    """Pairs (prompt, chosen, rejected, dimension): JSONL, JSON, CSV or Parquet files, folders of \
them, or hub ids."""

    ratings: list[str] = field(default_factory=list)
    """Responses rated in [0, 1] or null in each dimension, in the same formats."""

    prompts: list[str] = field(default_factory=list)
    """Prompts with answer_check (SFT records) to make pairs of: answers are sampled and ranked by \
rules."""

    demo: int = 0
    """Pairs of demo data to add, in the dimensions factual, logic and compliance."""

    model: str = "embedded"
    """The backbone: a folder, a hub id, "embedded" (SmolLM2) or "embedded_encoder" (MiniLM)."""

    sampler: str | None = None
    """The model that answers prompts: the present policy where a run is refreshed; null takes the \
backbone's own."""

    refresh: str | None = None
    """A finished run of this command whose heads are trained anew, on the answers that sampler \
gives to prompts now."""

    fixed: list[str] = field(default_factory=list)
    """With refresh: pairs that old and new heads are compared on; without any, the test pairs of \
that run."""

    judge: str | None = None
    """With refresh: a scalar reward model that ranks answers to prompts without an answer_check, \
in preference_dimension."""

    tolerance: float = 0.02
    """With refresh: accuracy on the fixed pairs that a dimension may lose; beyond, the old heads \
stay."""

    harvest_into: str | None = None
    """With refresh: JSONL of SFT records to which the answers that pass are added."""

    dimensions: list[str] = field(default_factory=lambda: list(DEFAULT_DIMENSIONS))
    """Names of the dimensions."""

    preference_dimension: str | None = None
    """What pairs without a dimension are about; null demands one of every pair."""

    source_column: str = "source"
    """The column that says where a row came from; rows without it count by their file."""

    unseen: list[str] = field(default_factory=list)
    """Sources that are evaluated on and never trained on."""

    validation: float = 0.15
    """Share of each dimension's prompts for stopping, anchoring and calibration."""

    test: float = 0.15
    """Share of each dimension's prompts for the figures reported."""

    output_dir: str = "runs/reward"
    """The run's folder: model, figures, pictures, metrics and the report."""

    cache_dir: str | None = None
    """Where pooled features are kept for this run and later ones; null takes the user's cache."""

    pooling: Literal["last", "cls", "mean"] | None = None
    """How hidden states become one vector; null takes [CLS] for encoders, else the last token."""

    head_hidden_size: int = 512
    """Width of a dimension's head."""

    confidence_hidden_size: int = 64
    """Width of a dimension's confidence head."""

    head_dropout: float = 0.1
    """Dropout in the heads."""

    max_length: int | None = 1024
    """Tokens of prompt and response together; null takes the backbone's limit. Longer ones lose \
their start."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the backbone's weights; auto keeps the model's own."""

    shift_check: bool = True
    """Also train without each source, to see how far scores carry; a dimension needs several."""

    cpu: bool = False
    """Use the CPU even where there is a GPU."""

    report_to: list[str] = field(default_factory=list)
    """Trackers such as tensorboard or wandb; metrics.jsonl and the report are written anyway."""

    push_to_hub: str | None = None
    """Repository to upload the finished model and its card to."""

    resume: bool = False
    """Go on with the run in output_dir, if there is one."""

    overwrite: bool = False
    """Throw away the run that output_dir holds."""

    training: RewardTrainingConfig = field(default_factory=RewardTrainingConfig)
    """How heads, levels and confidences are trained."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How answers to prompts are sampled and paired."""

    flywheel: FlywheelConfig = field(default_factory=FlywheelConfig)
    """What an answer must be to go back into SFT data."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_dimensions(self.dimensions)
        for name in ("head_hidden_size", "confidence_hidden_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.max_length is not None and self.max_length < 2:
            raise ConfigError(f"max_length: must be at least 2, got {self.max_length}")
        if not 0 <= self.head_dropout < 1:
            raise ConfigError(f"head_dropout: must lie in [0, 1), got {self.head_dropout}")
        if self.demo < 0:
            raise ConfigError(f"demo: must not be negative, got {self.demo}")
        if self.demo and not set(DEFAULT_DIMENSIONS) & set(self.dimensions):
            raise ConfigError(
                f"demo: has pairs for {', '.join(DEFAULT_DIMENSIONS)} only, and dimensions are "
                f"{self.dimensions}"
            )
        if self.resume and self.overwrite:
            raise ConfigError("resume, overwrite: contradict each other; set one of the two")
        self._check_refresh()

    def _check_refresh(self) -> None:
        if self.refresh is None:
            for name in ("fixed", "judge", "harvest_into"):
                if getattr(self, name):
                    raise ConfigError(
                        f"{name}: belongs to refresh, which is not set; pass --refresh RUN"
                    )
            return
        if not 0 <= self.tolerance <= 1:
            raise ConfigError(f"tolerance: must lie in [0, 1], got {self.tolerance}")
        for name in ("demo", "unseen", "push_to_hub"):
            if getattr(self, name):
                raise ConfigError(f"{name}: is not for a refresh; leave it out")
        for name, what in (("sampler", "the present policy"), ("prompts", "what it answers")):
            if not getattr(self, name):
                raise ConfigError(f"{name}: a refresh needs {what}; pass --{name}")
        if self.training.tuning.backbone != "frozen":
            raise ConfigError(
                f"backbone: a refresh trains heads on the backbone as it is, got "
                f"{self.training.tuning.backbone!r}; set frozen, or train a new model on the pairs"
            )
        if self.judge is not None and self.preference_dimension is None:
            raise ConfigError(
                "judge: preference_dimension must say what it ranks; pass --preference-dimension"
            )
