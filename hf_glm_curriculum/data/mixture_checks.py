"""What a mixture refuses before anything is read from it."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from hf_glm_curriculum.data.mixture_sources import MapSource, StreamSource, first_row
from hf_glm_curriculum.data.mixture_text import prepare
from hf_glm_curriculum.errors import ConfigError, DataError

SUM_TOLERANCE = 1e-6
UNITS = ("label_tokens", "rows")

Source = MapSource | StreamSource


def check_ratios(
    ratios: Mapping[str, float], names: Sequence[str], step_rows: int | None
) -> list[float]:
    """Ratios in the order of the sources; a source that is not named has 0.

    Raises:
        ConfigError: if there is no source, a name is unknown, a ratio is no number from 0 to 1,
            they do not sum to 1, or a step cannot hold a row of each.
    """
    if not names:
        raise ConfigError("sources: needs at least one, as {name: dataset}")
    for name, ratio in ratios.items():
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.0)
            raise ConfigError(
                f"ratios: {name!r} is no source; the nearest is {near[0]!r} (sources: "
                f"{', '.join(names)})"
            )
        if not isinstance(ratio, numbers.Real) or not 0 <= float(ratio) <= 1:
            raise ConfigError(
                f"ratios: {name!r} must have a share between 0 and 1, got {ratio!r}; the shares of "
                "all sources sum to 1"
            )
    found = [float(ratios.get(name, 0.0)) for name in names]
    if not math.isclose(math.fsum(found), 1.0, rel_tol=0, abs_tol=SUM_TOLERANCE):
        raise ConfigError(
            f"ratios: must sum to 1, got {math.fsum(found):g} from {dict(ratios)}; give every "
            "source its share"
        )
    active = sum(ratio > 0 for ratio in found)
    if step_rows is not None and active > step_rows:
        raise ConfigError(
            f"stratify: {step_rows} rows cannot hold one of each of {active} sources above 0; "
            "raise it, with the batch size, or set some ratios to 0"
        )
    return found


def check_settings(seed: Any, unit: str, **counts: int | None) -> None:
    """Refuse settings out of range.

    Raises:
        ConfigError: naming the setting.
    """
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed: must be a whole number of at least 0, got {seed!r}")
    if unit not in UNITS:
        raise ConfigError(f"unit: must be one of {', '.join(UNITS)}, got {unit!r}")
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}: must be a whole number of at least 1, got {value!r}")


def open_sources(
    sources: Mapping[str, Any], seed: int, shuffle: bool, tokenizer: Any, max_length: int
) -> list[Source]:
    """Prepare and check every source.

    Raises:
        DataError: if one is no data set, empty, of no known kind, or has other columns than the
            first.
    """
    opened: list[Source] = []
    columns: dict[str, list[str]] = {}
    for name, dataset in sources.items():
        prepared, first = _prepared(name, dataset, tokenizer, max_length)
        if first is None:
            opened.append(MapSource(name, prepared, seed, shuffle))
            columns[name] = prepared.column_names
        else:
            opened.append(StreamSource(name, prepared, first))
            columns[name] = list(first)
        if "input_ids" not in columns[name]:
            raise DataError(
                f"source {name!r}: has no input_ids, its columns are {columns[name]}; tokenise it"
            )
    _check_columns(columns)
    return opened


def _prepared(
    name: str, dataset: Any, tokenizer: Any, max_length: int
) -> tuple[Any, dict[str, Any] | None]:
    """The source with tokens, and its first row if it is a stream."""
    if isinstance(dataset, datasets.IterableDataset):
        first = first_row(name, dataset)
        prepared: Any = prepare(name, dataset, list(first), tokenizer, max_length)
        return prepared, first if prepared is dataset else first_row(name, prepared)
    if not isinstance(dataset, datasets.Dataset):
        raise DataError(
            f"source {name!r}: must be a datasets.Dataset or IterableDataset, got "
            f"{type(dataset).__name__}; make one with datasets.Dataset.from_list or from_generator"
        )
    if len(dataset) == 0:
        raise DataError(f"source {name!r}: has 0 rows; check the file and filters")
    if dataset.format["type"] == "custom":
        raise DataError(
            f"source {name!r}: has a transform (set_transform, with_transform), so its tokens "
            "cannot be counted beforehand; apply it with map"
        )
    return prepare(name, dataset, dataset.column_names, tokenizer, max_length), None


def _check_columns(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse sources of different columns, which no collator could batch.

    Raises:
        DataError: naming both sources and the columns.
    """
    (first, expected), *others = columns.items()
    for name, found in others:
        only_first, only_other = set(expected) - set(found), set(found) - set(expected)
        if only_first or only_other:
            parts = [
                f"only {which!r} has {sorted(extra)}"
                for which, extra in ((first, only_first), (name, only_other))
                if extra
            ]
            common = [column for column in expected if column in found]
            raise DataError(
                f"sources {first!r} and {name!r}: different columns ({'; '.join(parts)}); keep the "
                f"same in both, as with select_columns({common})"
            )
