"""Settings of `scaling sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.commands.scaling_config import FormName
from hf_glm_curriculum.commands.training_settings import check_least
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.scaling.sweep import grid


@dataclass
class ScalingSweepConfig:
    """A grid of small models trained with Trainer, and the law they follow."""

    output_dir: str = "runs/scaling-sweep"
    """The sweep's folder: runs.csv, law.json, pictures, and a folder a run."""

    documents: list[str] = field(default_factory=list)
    """Text files, folders or records; empty takes the source text of Python's standard library."""

    architectures: list[Literal["glm", "glm4", "llama", "qwen3"]] = field(
        default_factory=lambda: ["glm", "llama"]
    )
    """Families of models, by their transformers names."""

    shapes: list[str] = field(
        default_factory=lambda: ["1x16", "1x32", "1x48", "1x64", "1x96", "1x128"]
    )
    """Sizes, as layers x hidden size."""

    tokens: list[int] = field(default_factory=lambda: [120_000, 360_000, 1_080_000])
    """Sizes of the data, in tokens."""

    head_size: int = 16
    """Width of an attention head; divides every hidden size."""

    vocab_size: int = 512
    """Tokens of the byte-level BPE that is fitted to the documents."""

    length: int = 64
    """Tokens of a row."""

    batch_size: int = 4
    """Rows of an optimizer step."""

    held_out_rows: int = 512
    """Rows the final loss is measured on; none of them is trained on."""

    learning_rate: float = 5e-3
    """Peak learning rate at a hidden size of 64; others take it times 64 / hidden size."""

    warmup: float = 0.1
    """Share of a run's steps in which the learning rate rises; it falls by a cosine after."""

    weight_decay: float = 0.1
    """Weight decay of AdamW."""

    parameters: Literal["total", "matmul", "non_embedding"] = "matmul"
    """How N counts; matmul is what 6·N·D counts."""

    form: FormName = "kaplan"
    """Functional form; in runs this small, size matters more the more data there are, which sums of
    two powers cannot say."""

    bootstraps: int = 200
    """Resamples of the runs behind the intervals."""

    saves: int = 4
    """Checkpoints in the course of each run, to go on from after a kill."""

    seed: int = 0
    """Seed of weights, documents' order and batches."""

    cpu: bool = False
    """Train on the CPU even where there is a GPU."""

    resume: bool = False
    """Go on with the sweep in output_dir; finished runs are kept, new sizes are added."""

    overwrite: bool = False
    """Throw away the sweep that output_dir holds."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_least(self, _LEAST)
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate: must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup: must lie in [0, 1), got {self.warmup}")
        if self.resume and self.overwrite:
            raise ConfigError("resume, overwrite: contradict each other; set one of the two")
        for cell in grid(self.architectures, self.shapes, self.tokens):
            if cell.hidden_size % self.head_size:
                raise ConfigError(
                    f"shapes: hidden size {cell.hidden_size} is no multiple of head_size "
                    f"{self.head_size}; change one of them"
                )
            if cell.tokens < self.step_tokens:
                raise ConfigError(
                    f"tokens: {cell.tokens} are less than one step of {self.step_tokens} "
                    "(batch_size · length); give more, or make the steps smaller"
                )

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step."""
        return self.batch_size * self.length


_LEAST = {
    "head_size": 2,
    "vocab_size": 300,
    "length": 8,
    "batch_size": 1,
    "held_out_rows": 1,
    "weight_decay": 0,
    "bootstraps": 0,
    "saves": 0,
}
