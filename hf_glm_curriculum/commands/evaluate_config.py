"""Settings of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_glm_curriculum.errors import ConfigError

MEASURES = ("loss", "answers", "refusals", "red_team", "forgetting", "rewards", "tasks")


@dataclass
class EvaluateConfig:
    """What is measured, of which models, on what.

    Raises:
        ConfigError: Naming the field, the rule and the value.
    """

    models: list[str] = field(default_factory=list)
    """Models, adapters or run folders, as PATH or NAME=PATH; the first is compared with."""

    output_dir: str = "runs/evaluate"
    """Folder of the findings; called again, what is there is not measured anew."""

    data: list[str] = field(default_factory=list)
    """Held-out records of yours (any SFT format): their loss, and answers to their prompts."""

    measures: list[str] = field(
        default_factory=lambda: ["loss", "answers", "refusals", "red_team", "forgetting", "rewards"]
    )
    """What to measure: loss, answers, refusals, red_team, forgetting, rewards, tasks."""

    general_text: list[str] = field(default_factory=list)
    """Text of yours that must not be forgotten: files, folders or records; empty takes ours."""

    reward_model: str | None = None
    """A structured reward model, or the folder of a reward run; null leaves rewards out."""

    gate_threshold: float = 0.85
    """Confidence from which a dimension counts as open."""

    limit: int | None = None
    """Prompts of each measure at most, spread over their categories; null takes all."""

    xstest: bool = True
    """Add XSTest's prompts to the refusals where HGC_DATA or ../shared/data holds them."""

    max_new_tokens: int = 64
    """Longest answer, in tokens."""

    max_length: int = 512
    """Tokens kept of a row whose loss is read."""

    batch_size: int = 8
    """Rows at once."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights; auto keeps each model's own."""

    cpu: bool = False
    """Stay on the CPU even where there is a GPU."""

    draws: int = 1000
    """Bootstrap resamples."""

    level: float = 0.95
    """Share of resamples inside an interval."""

    seed: int = 0
    """Of the resamples."""

    tasks: list[str] = field(default_factory=list)
    """Tasks of lm-eval (needs the extra [eval]); add tasks to measures."""

    tasks_path: str | None = None
    """Folder with lm-eval task YAML files of your own."""

    judge: str | None = None
    """A model that compares answers with the first model's: a local one, or a name at judge_url."""

    judge_url: str | None = None
    """OpenAI-compatible endpoint of the judge, such as http://localhost:8000/v1."""

    judge_key: str = "OPENAI_API_KEY"
    """Environment variable that holds the endpoint's key."""

    def __post_init__(self) -> None:
        """Check every field."""
        names = [name for name, _ in named_models(self.models)]
        if not names:
            raise ConfigError("models: needs one at least, as PATH or NAME=PATH, got none")
        if len(set(names)) < len(names):
            raise ConfigError(f"models: need different names, got {', '.join(names)}")
        for name in self.measures:
            if name not in MEASURES:
                raise ConfigError(f"measures: must be of {', '.join(MEASURES)}, got {name!r}")
        if "tasks" in self.measures and not self.tasks:
            raise ConfigError("tasks: measures names them, so name lm-eval tasks too")
        for name in ("max_new_tokens", "max_length", "batch_size", "draws"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit: must be at least 1, got {self.limit}")
        for name in ("level", "gate_threshold"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"{name}: must lie in (0, 1), got {getattr(self, name)}")
        if self.judge_url and not self.judge:
            raise ConfigError("judge: needs the model's name at judge_url")


def named_models(models: list[str]) -> list[tuple[str, str]]:
    """(name, path) of each; a path alone is named by its last part."""
    found = []
    for entry in models:
        name, mark, path = entry.partition("=")
        found.append((name, path) if mark else (Path(entry).name or entry, entry))
    return found
