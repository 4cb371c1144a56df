"""A sweep: its grid of runs, what identifies a run, and the table its results make."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, read_json

FINISHED, DIVERGED = "finished", "diverged"
COLUMNS: tuple[str, ...] = (
    "run",
    "architecture",
    "layers",
    "hidden_size",
    "N",
    "D",
    "loss",
    "unique_tokens",
    "flops",
    "attention_flops",
    "parameters_total",
    "parameters_matmul",
    "parameters_non_embedding",
    "learning_rate",
    "status",
    "seconds",
)
"""Columns of a sweep's table, in order; N counts as the sweep's convention says."""

_SHAPE = re.compile(r"(\d+)x(\d+)")


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        architecture: Family by its transformers name.
        layers: Transformer blocks.
        hidden_size: Width.
        tokens: Tokens it is trained on.
    """

    architecture: str
    layers: int
    hidden_size: int
    tokens: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.architecture}-{self.layers}x{self.hidden_size}-{self.tokens}"

    def key(self, settings: Mapping[str, Any]) -> str:
        """Sixteen hex digits of everything the result depends on.

        Args:
            settings: What all runs share: corpus, optimizer, seed.
        """
        text = json.dumps({**settings, **asdict(self)}, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def grid(architectures: Sequence[str], shapes: Sequence[str], tokens: Sequence[int]) -> list[Cell]:
    """Every combination, cheapest first, so that a sweep that is cut short leaves a small grid.

    Args:
        architectures: Families.
        shapes: "LAYERSxHIDDEN", such as "2x48".
        tokens: Sizes of the data.

    Raises:
        ConfigError: A shape is not of that form, or there is nothing to run.
    """
    sizes = [_shape(shape) for shape in shapes]
    found = {
        Cell(architecture, layers, hidden, count)
        for architecture in architectures
        for layers, hidden in sizes
        for count in tokens
    }
    if not found:
        raise ConfigError("architectures, shapes, tokens: each needs at least one value")
    return sorted(
        found, key=lambda cell: (cell.tokens * cell.layers * cell.hidden_size**2, cell.name)
    )


def _shape(text: str) -> tuple[int, int]:
    match = _SHAPE.fullmatch(text)
    if not match or not int(match[1]) or not int(match[2]):
        raise ConfigError(f"shapes: must look like 2x48 (layers x hidden size), got {text!r}")
    return int(match[1]), int(match[2])


def result_of(folder: Path, cell: Cell, key: str) -> dict[str, Any] | None:
    """The finished result of a run, or None if there is none for these settings."""
    path = folder / cell.name / "result.json"
    if not path.is_file():
        return None
    kept = read_json(path)
    return kept["result"] if isinstance(kept, dict) and kept.get("key") == key else None


def keep_result(folder: Path, cell: Cell, key: str, result: Mapping[str, Any]) -> None:
    """Write a run's result, so that it is never run again.

    Raises:
        StateError: The file cannot be written.
    """
    loss = result["loss"]
    plain = {**result, "loss": loss if loss is not None and math.isfinite(loss) else None}
    atomic_write_json(folder / cell.name / "result.json", {"key": key, "result": plain})


def write_results(path: str | os.PathLike[str], results: Iterable[Mapping[str, Any]]) -> None:
    """Write results as CSV; a diverged run has an empty loss.

    Raises:
        StateError: The file cannot be written.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for result in results:
        writer.writerow({k: "" if v is None or v != v else v for k, v in result.items()})
    atomic_write_text(path, buffer.getvalue())
