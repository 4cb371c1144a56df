"""Preferences and ratings as the examples a reward model is trained on.

Letters: N distinct (prompt, response) items, P pairs, R rated responses, D dimensions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.rewards.config import DEFAULT_DIMENSIONS, check_dimensions


@dataclass
class Examples:
    """Pairs and ratings over a common list of items.

    Attributes:
        pairs: [P, 2] int64: item of the chosen and of the rejected response.
        pair_dimension: [P] int64: the dimension a pair is about.
        pair_source: [P] int64: which source it came from.
        rated: [R] int64: item of the rated response.
        ratings: [R, D] float32 in [0, 1], NaN where a dimension was not rated.
        rated_source: [R] int64: which source it came from.
    """

    pairs: Tensor
    pair_dimension: Tensor
    pair_source: Tensor
    rated: Tensor
    ratings: Tensor
    rated_source: Tensor

    def __len__(self) -> int:
        return len(self.pairs) + len(self.rated)

    def select(self, pairs: Tensor, rated: Tensor) -> Examples:
        """The examples where the masks [P] and [R] are true."""
        return Examples(
            self.pairs[pairs],
            self.pair_dimension[pairs],
            self.pair_source[pairs],
            self.rated[rated],
            self.ratings[rated],
            self.rated_source[rated],
        )

    def where_items(self, keep: Tensor) -> Examples:
        """The examples whose items are all in `keep` [N] bool."""
        return self.select(keep[self.pairs].all(1), keep[self.rated])

    def of_sources(self, sources: Iterable[int]) -> Examples:
        """The examples that came from these sources."""
        wanted = torch.tensor(sorted(sources), dtype=torch.int64)
        return self.select(
            torch.isin(self.pair_source, wanted), torch.isin(self.rated_source, wanted)
        )

    def items(self) -> Tensor:
        """The items used, ascending, int64."""
        return torch.unique(torch.cat([self.pairs.flatten(), self.rated]))

    def levels(self) -> Levels:
        """Every statement about one response in one dimension."""
        row, column = torch.nonzero(~torch.isnan(self.ratings), as_tuple=True)
        ones = torch.ones(len(self.pairs))
        return Levels(
            torch.cat([self.pairs[:, 0], self.pairs[:, 1], self.rated[row]]),
            torch.cat([self.pair_dimension, self.pair_dimension, column]),
            torch.cat([ones, 1 - ones, self.ratings[row, column]]),
            torch.cat([ones.bool(), ones.bool(), torch.zeros(len(row), dtype=torch.bool)]),
        )


@dataclass
class Levels:
    """M statements: item, dimension, target level in [0, 1], and whether it is from a pair."""

    item: Tensor
    dimension: Tensor
    target: Tensor
    from_pair: Tensor

    def correct(self, scores: Tensor) -> Tensor:
        """[M] bool: whether scores [N, D] say what the statements say.

        A pair's response counts as right on its side of 0.5, a rated one within 0.25.
        """
        said = scores[self.item, self.dimension]
        side = (said > 0.5) == (self.target > 0.5)
        return torch.where(self.from_pair, side, (said - self.target).abs() <= 0.25)


@dataclass
class RewardData:
    """Items, what is known of them, and how they are split.

    Attributes:
        dimensions: names, in the order of columns.
        prompts: [N] what the user said.
        responses: [N] the answers.
        examples: everything known.
        sources: names of the sources.
        splits: name → examples: "train", "validation", "test", and "unseen" for sources that are
            only evaluated on.
    """

    dimensions: tuple[str, ...]
    prompts: list[str]
    responses: list[str]
    examples: Examples
    sources: list[str]
    splits: dict[str, Examples] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Sixteen hex digits of items, examples and splits."""
        digest = hashlib.sha256(repr((self.dimensions, self.sources)).encode())
        for text in (*self.prompts, *self.responses):
            digest.update(text.encode("utf-8", "replace") + b"\0")
        for part in (self.examples, *(self.splits[name] for name in sorted(self.splits))):
            for tensor in vars(part).values():
                digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()[:16]

    def split(
        self, validation: float, test: float, seed: int, unseen: Sequence[str] = ()
    ) -> RewardData:
        """The same data split by prompt; no prompt is in two of train, validation and test.

        Prompts are dealt out within each dimension, so that every one keeps its shares.

        Args:
            validation: share of each dimension's prompts.
            test: share of each dimension's prompts.
            seed: of the deal; prompts keep their place when others are added.
            unseen: sources that are evaluated on and never trained on.

        Raises:
            ConfigError: The shares leave nothing to train on, or a source is unknown.
            DataError: A dimension has too few prompts to train and validate on.
        """
        if not (0 < validation < 1 and 0 <= test < 1 and validation + test < 1):
            raise ConfigError(
                f"validation, test: shares above 0 (test: or 0) that leave some to train on, got "
                f"{validation} and {test}"
            )
        unknown = sorted(set(unseen) - set(self.sources))
        if unknown:
            raise ConfigError(f"unseen: no source {unknown[0]!r}; sources: {self.sources}")
        kept = {i for i, name in enumerate(self.sources) if name not in unseen}
        seen = self.examples.of_sources(kept)
        place = self._deal(seen, validation, test, seed)
        splits = {
            name: seen.where_items(place == number)
            for number, name in enumerate(("train", "validation", "test"))
        }
        if unseen:
            splits["unseen"] = self.examples.of_sources(set(range(len(self.sources))) - kept)
        found = replace(self, splits=splits)
        found._check_splits()
        return found

    def _deal(self, seen: Examples, validation: float, test: float, seed: int) -> Tensor:
        """[N] int64: 0 train, 1 validation, 2 test, by the item's prompt."""
        home: dict[str, int] = {}
        levels = seen.levels()
        for item, dimension in zip(levels.item.tolist(), levels.dimension.tolist(), strict=True):
            home.setdefault(self.prompts[item], dimension)
        where: dict[str, int] = {}
        for dimension in range(len(self.dimensions)):
            names = sorted((p for p, d in home.items() if d == dimension), key=_rank(seed))
            first = max(1, round(validation * len(names)))
            second = first + (max(1, round(test * len(names))) if test else 0)
            for position, name in enumerate(names):
                where[name] = 1 if position < first else 2 if position < second else 0
        return torch.tensor([where.get(prompt, -1) for prompt in self.prompts], dtype=torch.int64)

    def _check_splits(self) -> None:
        """Refuse a dimension that would be trained or anchored on nothing."""
        for column, name in enumerate(self.dimensions):
            for split in ("train", "validation"):
                if not (self.splits[split].levels().dimension == column).any():
                    raise DataError(
                        f"dimension {name!r}: no example is left to {split} on; give more prompts "
                        "about it, or leave it out of dimensions"
                    )


def _rank(seed: int) -> Any:
    return lambda text: hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "replace")).digest()


def read_reward_data(
    preferences: Sequence[str | os.PathLike[str]] = (),
    ratings: Sequence[str | os.PathLike[str]] = (),
    *,
    dimensions: Sequence[str] = DEFAULT_DIMENSIONS,
    preference_dimension: str | None = None,
    source_column: str = "source",
) -> RewardData:
    """Read preference and rating files into one data set.

    Args:
        preferences: files, folders or hub ids of (prompt, chosen, rejected, dimension).
        ratings: of (prompt, response, a number in [0, 1] or null a dimension).
        dimensions: names of the dimensions.
        preference_dimension: what preferences without a `dimension` are about; None demands one.
        source_column: the column that says where a row came from; without it, its file's name.

    Raises:
        DataError: A row does not fit its format, names an unknown dimension, prefers a response
            to itself, or rates nothing; or there is no row.
        ConfigError: No file is named, or `preference_dimension` is no dimension.
    """
    if not preferences and not ratings:
        raise ConfigError("preferences, ratings: need at least one file; pass --preferences FILE")
    pairs, rated = read_rows(
        preferences,
        ratings,
        dimensions=dimensions,
        preference_dimension=preference_dimension,
        source_column=source_column,
    )
    return reward_data(pairs, rated, dimensions, preference_dimension)


def read_rows(
    preferences: Sequence[str | os.PathLike[str]],
    ratings: Sequence[str | os.PathLike[str]],
    *,
    dimensions: Sequence[str] = DEFAULT_DIMENSIONS,
    preference_dimension: str | None = None,
    source_column: str = "source",
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The checked rows of preference files and of rating files, each with its `source`.

    Raises:
        DataError: A row does not fit its format.
        ConfigError: `preference_dimension` is no dimension.
    """
    names = check_dimensions(dimensions)
    if preference_dimension is not None and preference_dimension not in names:
        raise ConfigError(
            f"preference_dimension: must be one of {list(names)}, got {preference_dimension!r}"
        )
    kind = "dimension_preference" if preference_dimension is None else "preference"
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    kinds = (kind, "rating")
    for rows, sources, one in zip(found, (preferences, ratings), kinds, strict=True):
        for source in sources:
            loaded = load_records(source, one, dimensions=names)
            rows += [_with_source(row, source, source_column) for row in loaded]
    return found


def reward_data(
    preferences: Iterable[Mapping[str, Any]] = (),
    ratings: Iterable[Mapping[str, Any]] = (),
    dimensions: Sequence[str] = DEFAULT_DIMENSIONS,
    preference_dimension: str | None = None,
) -> RewardData:
    """Rows in memory as one data set; see `read_reward_data` for what they hold.

    Raises:
        DataError: As in `read_reward_data`.
    """
    names = check_dimensions(dimensions)
    builder = _Builder(names)
    for number, row in enumerate(preferences):
        builder.add_pair(row, number, preference_dimension)
    for number, row in enumerate(ratings):
        builder.add_rating(row, number)
    return builder.build()


def _with_source(row: Any, source: Any, column: str) -> dict[str, Any]:
    value = row.get(column)
    name = value if isinstance(value, str) and value else Path(os.fspath(source)).stem
    return {**row, "source": name}


class _Builder:
    """Collects rows; the same text is one item however often it occurs."""

    def __init__(self, dimensions: tuple[str, ...]) -> None:
        self.dimensions = dimensions
        self.items: dict[tuple[str, str], int] = {}
        self.sources: dict[str, int] = {}
        self.pairs: list[tuple[int, int, int, int]] = []
        self.rated: list[tuple[int, int, list[float]]] = []

    def add_pair(self, row: Mapping[str, Any], number: int, dimension: str | None) -> None:
        """Add one preference."""
        name = row.get("dimension") or dimension
        if name not in self.dimensions:
            raise DataError(
                f"preference {number}, field 'dimension': must be one of {list(self.dimensions)}, "
                f"got {name!r}"
            )
        if row["chosen"] == row["rejected"]:
            raise DataError(
                f"preference {number}: chosen and rejected are the same text "
                f"({row['chosen'][:40]!r}); drop the row"
            )
        chosen, rejected = (self._item(row["prompt"], row[side]) for side in ("chosen", "rejected"))
        self.pairs.append((chosen, rejected, self.dimensions.index(name), self._source(row)))

    def add_rating(self, row: Mapping[str, Any], number: int) -> None:
        """Add one rated response."""
        given = [row.get(name) for name in self.dimensions]
        values = [float("nan") if value is None else float(value) for value in given]
        if all(value != value for value in values):
            raise DataError(
                f"rating {number}: rates none of {list(self.dimensions)} "
                f"({str(row['prompt'])[:40]!r}); give one number in [0, 1], or drop the row"
            )
        for name, value in zip(self.dimensions, values, strict=True):
            if value < 0 or value > 1:
                raise DataError(
                    f"rating {number}, field {name!r}: must be a number in [0, 1] or null, got "
                    f"{value}"
                )
        item = self._item(row["prompt"], row["response"])
        self.rated.append((item, self._source(row), values))

    def build(self) -> RewardData:
        """The data set."""
        if not self.pairs and not self.rated:
            raise DataError("preferences, ratings: hold no row; give at least one example")
        table = torch.tensor(self.pairs, dtype=torch.int64).reshape(-1, 4)
        rated = torch.tensor([row[:2] for row in self.rated], dtype=torch.int64).reshape(-1, 2)
        values = torch.tensor([row[2] for row in self.rated], dtype=torch.float32)
        examples = Examples(
            table[:, :2].contiguous(),
            table[:, 2].contiguous(),
            table[:, 3].contiguous(),
            rated[:, 0].contiguous(),
            values.reshape(-1, len(self.dimensions)),
            rated[:, 1].contiguous(),
        )
        prompts, responses = zip(*self.items, strict=True)
        return RewardData(
            self.dimensions, list(prompts), list(responses), examples, list(self.sources)
        )

    def _item(self, prompt: str, response: str) -> int:
        return self.items.setdefault((prompt, response), len(self.items))

    def _source(self, row: Mapping[str, Any]) -> int:
        return self.sources.setdefault(str(row.get("source") or "data"), len(self.sources))
