"""Settings of `scaling fit`, `scaling plan` and `scaling plot`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.commands.training_settings import check_least
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.scaling.stage_costs import StageCosts

FormName = Literal["chinchilla", "two_power", "simplified", "kaplan", "data_limited"]
ParameterName = Literal["unspecified", "total", "matmul", "non_embedding"]


@dataclass
class ScalingFitConfig:
    """A law from a table of runs; see ``docs/methods/scaling.md``."""

    runs: list[str] = field(default_factory=list)
    """A CSV or JSON Lines table, one line a run; with post, a table or folders of runs."""

    output_dir: str = "runs/scaling-fit"
    """Folder for law.json and the pictures."""

    form: FormName = "chinchilla"
    """Functional form; data_limited needs a column of unique tokens."""

    bootstraps: int = 100
    """Resamples of the runs behind the intervals; 0 takes them from the covariance."""

    huber: float = 1e-3
    """Threshold of the Huber loss on ln L."""

    seed: int = 0
    """Seed of the resamples."""

    n_column: str | None = None
    """Column of parameters; null finds it by its usual names."""

    d_column: str | None = None
    """Column of tokens; null finds it by its usual names."""

    c_column: str | None = None
    """Column of training FLOPs, from which tokens follow where there is no column of them."""

    loss_column: str | None = None
    """Column of final losses; null finds it by its usual names."""

    unique_column: str | None = None
    """Column of unique tokens, for data_limited."""

    leave_out: list[int] = field(default_factory=list)
    """Lines of the table to leave out, as the flags name them."""

    leave_out_highest: int = 0
    """So many runs of the highest losses are left out."""

    parameters: ParameterName = "unspecified"
    """How the table counts parameters; stored with the law."""

    flops_per_parameter_token: float = 6.0
    """The k of C = k·N·D."""

    loss_unit: str = "nats per token"
    """What the loss is; stored with the law."""

    tokenizer: str = "unspecified"
    """Whose tokens are counted; stored with the law."""

    post: bool = False
    """Fit a post-training law: metric against SFT rows, preference pairs, PPO episodes."""

    metric: str = "eval_loss"
    """With post: column, or key in the runs' logs."""

    rises: bool = False
    """With post: more of the metric is better, as with rewards."""

    curve: bool = False
    """With post: take every line of a run's log, not the last one only."""

    overwrite: bool = False
    """Write over the law that output_dir holds."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_least(self, {"bootstraps": 0, "leave_out_highest": 0})
        for name in ("huber", "flops_per_parameter_token"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        if self.curve and not self.post:
            raise ConfigError("curve: belongs to post; set both or none")


@dataclass
class ScalingPlanConfig:
    """What a budget buys; see ``docs/methods/scaling.md``."""

    flops: float | None = None
    """The budget in FLOPs, all stages together."""

    law: str | None = None
    """law.json of `scaling fit` or `scaling sweep`, for pre-training."""

    post_law: str | None = None
    """law.json of `scaling fit --post`, which decides a split over stages."""

    stages: list[Literal["pretrain", "sft", "rlhf"]] = field(default_factory=lambda: ["pretrain"])
    """Stages that the budget pays for."""

    fixed: dict[str, float] = field(default_factory=dict)
    """Inputs that are given, such as parameters=7e9 or preference_pairs=20000."""

    limits: dict[str, float] = field(default_factory=dict)
    """Most of an input there is, such as sft_rows=50000."""

    compare: list[float] = field(default_factory=list)
    """Model sizes to compare at equal compute."""

    at: dict[str, float] = field(default_factory=dict)
    """Where a run stands, such as sft_rows=10000: how much more of each input the change takes."""

    change: float = 0.01
    """The improvement that `at` asks about: share of the loss, or of the range of rewards."""

    device: str | None = None
    """A device of the hardware table, for hours and money."""

    hardware: str | None = None
    """YAML table of devices; null takes the package's, which has examples in place of prices."""

    costs: StageCosts = field(default_factory=StageCosts)
    """Sizes that decide what a row, a pair and an episode cost."""

    output: str | None = None
    """JSON file for the plan."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        if self.flops is None and not self.at:
            raise ConfigError(
                "flops: needs a budget, such as --flops 1e21 (or --at, to ask for more)"
            )
        if self.flops is not None and not 0 < self.flops < float("inf"):
            raise ConfigError(f"flops: must be above 0, got {self.flops}")
        if self.at and self.post_law is None:
            raise ConfigError("at: needs a post-training law; pass --post-law FILE")


@dataclass
class ScalingPlotConfig:
    """Pictures of a law."""

    law: str = "runs/scaling-fit/law.json"
    """law.json of `scaling fit` or `scaling sweep`."""

    output_dir: str | None = None
    """Folder for the pictures; null takes the law's."""

    runs: str | None = None
    """A table of further runs to show beside the frontier."""

    budgets: list[float] = field(default_factory=list)
    """FLOPs of the valleys; empty spreads them over the runs."""
