"""Records of every supported format, loaded into a `datasets.Dataset` with canonical columns."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import datasets

from hf_glm_curriculum.data.record_files import RawRecord, data_files, looks_like_file, read_file
from hf_glm_curriculum.data.record_formats import DIMENSIONS, NEEDED, Fields, canonical
from hf_glm_curriculum.data.record_table import fingerprint, table_of
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import ProgressBar, progress

Source = str | os.PathLike[str]
_LARGE_BYTES = 16 << 20


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
    with progress(None, "reading records", None if _are_large(sources) else False) as bar:
        dataset = dataset_of(rows, bar)
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


def dataset_of(rows: Iterable[Fields], bar: ProgressBar | None = None) -> datasets.Dataset:
    """Make a data set of rows with any fields; what a row lacks is null there.

    A field whose values fit no one Arrow type becomes JSON text. Rows are turned into Arrow a
    batch at a time, and what outgrows memory lies in temporary files; see `record_table`.

    Args:
        rows: read once.
        bar: moved on by the number of rows.
    """
    table = table_of(rows, bar)
    return datasets.Dataset(table, fingerprint=fingerprint(table))


def _are_large(sources: Sequence[Source]) -> bool:
    """Whether files take long enough to read for a progress bar."""
    paths = [Path(os.fspath(one)).expanduser() for one in sources]
    files = (file for path in paths if path.exists() for file in data_files(path))
    return sum(file.stat().st_size for file in files) > _LARGE_BYTES


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
