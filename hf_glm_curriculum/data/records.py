"""Records of every supported format, loaded into a `datasets.Dataset` with canonical columns."""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from hf_glm_curriculum.data.record_files import RawRecord, data_files, looks_like_file, read_file
from hf_glm_curriculum.data.record_formats import DIMENSIONS, NEEDED, Fields, canonical
from hf_glm_curriculum.errors import DataError

logger = logging.getLogger(__name__)

Source = str | os.PathLike[str]


def load_records(
    source: Source | Sequence[Source],
    kind: str = "sft",
    *,
    split: str = "train",
    dimensions: Sequence[str] = DIMENSIONS,
) -> datasets.Dataset:
    """Load and check records; see `record_formats` for what each kind accepts.

    Args:
        source: a JSONL, JSON, CSV or Parquet file, a folder of them, several of these, or the id
            of a data set on the hub. Loading scripts are never run.
        kind: "sft", "preference", "dimension_preference" or "rating".
        split: the split to read of a hub data set.
        dimensions: names a dimension preference may carry, or that ratings must have.

    Returns:
        The rows in file order. "sft" has ``prompt`` and ``response`` (and ``messages`` where the
        data hold conversations, null for the other rows); every other field is kept.

    Raises:
        DataError: naming file, line and field, if a record does not fit or there is none.
    """
    if kind not in NEEDED:
        raise DataError(f"kind: must be one of {sorted(NEEDED)}, got {kind!r}")
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    records = raw_records(sources, split)
    rows = (row for record in records for row in canonical(record, kind, dimensions))
    dataset = dataset_of(rows)
    if not dataset.column_names:
        shown = ", ".join(os.fspath(one) for one in sources)
        raise DataError(f"{shown}: holds no record; {kind} data need {NEEDED[kind]}")
    return dataset


def raw_records(source: Source | Sequence[Source], split: str = "train") -> Iterator[RawRecord]:
    """Yield the records of files, folders or hub data sets as they stand there.

    Args:
        source: as `load_records` takes it.
        split: the split to read of a hub data set.

    Raises:
        DataError: naming file and line, if a file is missing or malformed.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    for one in sources:
        yield from _records_of(one, split)


def dataset_of(rows: Iterable[Fields]) -> datasets.Dataset:
    """Make a data set of rows with any fields; what a row lacks is null there.

    A field whose values fit no one Arrow type becomes JSON text.
    """
    columns = _columns(rows)
    return datasets.Dataset(pa.table({name: _arrow(name, v) for name, v in columns.items()}))


def _records_of(source: Source, split: str) -> Iterator[RawRecord]:
    """Yield the records of one source."""
    name = os.fspath(source)
    path = Path(name).expanduser()
    if path.exists() or looks_like_file(name):
        for file in data_files(path):
            yield from read_file(file)
        return
    for number, fields in enumerate(_hub_rows(name, split)):
        yield RawRecord(f"{name}[{split}], row {number}", fields)


def _hub_rows(name: str, split: str) -> Iterable[Fields]:
    """Load one split of a hub data set."""
    try:
        return datasets.load_dataset(name, split=split)  # pyright: ignore[reportReturnType]
    except Exception as error:  # the hub client raises a dozen unrelated types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"{name!r}: neither a file here nor a data set that the hub can give ({reason}); "
            "check the path or id, the split and the connection"
        ) from error


def _columns(rows: Iterable[Fields]) -> dict[str, list[Any]]:
    """Turn rows into columns; a field that a row lacks is null there."""
    columns: dict[str, list[Any]] = {}
    for before, row in enumerate(rows):
        for name, value in row.items():
            columns.setdefault(name, [None] * before).append(value)
        for values in columns.values():
            if len(values) == before:
                values.append(None)
    return columns


def _arrow(name: str, values: list[Any]) -> pa.Array | pa.ChunkedArray:
    """Make an Arrow column; a field of mixed types, which Arrow cannot hold, becomes JSON text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError):
        logger.warning("field %r does not fit one Arrow type; it is kept as JSON text", name)
        return pa.array([json.dumps(value, default=str) for value in values])
