"""Small sources that tests of mixtures share."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset

from hf_glm_curriculum.data.mixture import CurriculumMixture


def rows(n: int, marker: int, seed: int = 0, low: int = 9, high: int = 20) -> list[dict[str, Any]]:
    """Rows whose first token names the source and whose second the row; a third has no loss."""
    generator = np.random.default_rng([seed, marker])
    made = []
    for number in range(n):
        length = int(generator.integers(low, high))
        rest = generator.integers(4, 200, length - 2).tolist()
        tokens = [200 + marker, number, *rest]
        cut = length // 3
        made.append({"input_ids": tokens, "labels": [-100] * cut + tokens[cut:]})
    return made


def stream(made: list[dict[str, Any]]) -> IterableDataset:
    """The rows as a source that can only be read from its start."""
    return Dataset.from_list(made).to_iterable_dataset()


def mixture(
    ratios: dict[str, float] | None = None, streamed: tuple[str, ...] = (), **settings: Any
) -> CurriculumMixture:
    """Sources "web" (40 longer rows, marker 0) and "chat" (7 shorter rows, marker 1)."""
    made = {"web": rows(40, 0, low=20, high=30), "chat": rows(7, 1)}
    sources = {
        name: stream(one) if name in streamed else Dataset.from_list(one)
        for name, one in made.items()
    }
    return CurriculumMixture(sources, ratios or {"web": 0.75, "chat": 0.25}, **settings)


def take(source: Any, n: int) -> list[dict[str, Any]]:
    """The first rows of a stream."""
    return list(islice(source, n))


def names(taken: list[dict[str, Any]]) -> list[int]:
    """The source of each row, by its marker."""
    return [row["input_ids"][0] - 200 for row in taken]


def labelled(row: dict[str, Any]) -> int:
    """Label tokens of a row, counted by hand."""
    return sum(label != -100 for label in row["labels"][1:])
