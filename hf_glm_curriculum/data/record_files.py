"""Raw records out of files: JSONL, JSON, CSV and Parquet, each with the place it came from.

Nothing in a file is ever executed: no pickle, no loading scripts.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_glm_curriculum.errors import DataError


@dataclass(frozen=True)
class RawRecord:
    """One record as the file holds it.

    Attributes:
        place: "FILE, line N" (or row N), as error messages name it.
        fields: the record.
    """

    place: str
    fields: dict[str, Any]


def read_file(path: Path) -> Iterator[RawRecord]:
    """Yield the records of one file, by its suffix.

    Raises:
        DataError: if the file cannot be read, has an unknown suffix or a malformed record.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: unknown suffix {path.suffix!r}; give a file that ends in "
            f"{', '.join(sorted(READERS))}"
        )
    with reading(path):
        yield from reader(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say what is wrong with a file that a block reads.

    Raises:
        DataError: if it cannot be read, or is not UTF-8.
    """
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its "
            "permissions"
        ) from error


def data_files(path: Path) -> list[Path]:
    """Return the data files that a path names: itself, or those in a folder, sorted.

    Raises:
        DataError: if the path does not exist or a folder holds no data file.
    """
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in READERS and p.is_file())
        if not found:
            raise DataError(f"{path}: the folder holds no {', '.join(sorted(READERS))} file")
        return found
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    return [path]


def looks_like_file(name: str) -> bool:
    """Return whether a name that does not exist was meant as a file, not as a hub id."""
    return Path(name).suffix.lower() in READERS or name.startswith((".", "/", "~")) or "\\" in name


def jsonl_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield place and text of each line that holds something, without a byte order mark.

    Raises:
        DataError: if a line is not UTF-8.
    """
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            place = f"{path}, line {number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: not UTF-8 ({error.reason}); save it as UTF-8") from error
            if line:
                yield place, line


def parse_object(line: str, place: str) -> dict[str, Any]:
    """Parse one line of JSONL.

    Raises:
        DataError: naming the place, if it is no JSON object.
    """
    return _as_object(_parse_json(line, place), place)


def _read_jsonl(path: Path) -> Iterator[RawRecord]:
    """Yield one record a line; blank lines are skipped."""
    for place, line in jsonl_lines(path):
        yield RawRecord(place, parse_object(line, place))


def _read_json(path: Path) -> Iterator[RawRecord]:
    """Yield the objects of a JSON array, of its ``data`` member, or of JSON Lines named .json."""
    text = path.read_text(encoding="utf-8-sig")
    start = len(text) - len(text.lstrip())
    if text[start : start + 1] == "[":
        yield from _json_array(text, start, path)
        return
    try:
        whole = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        yield from _read_jsonl(path)
        return
    if isinstance(whole, dict) and isinstance(whole.get("data"), list):
        for number, item in enumerate(whole["data"], start=1):
            place = f"{path}, data item {number}"
            yield RawRecord(place, _as_object(item, place))
        return
    yield RawRecord(f"{path}, line 1", _as_object(whole, f"{path}, line 1"))


def _json_array(text: str, start: int, path: Path) -> Iterator[RawRecord]:
    """Decode an array item by item, so that each one's line is known."""
    decoder = json.JSONDecoder()
    at, counted, line, item = start + 1, 0, 1, 0
    while True:
        at = _skip(text, at, " \t\r\n")
        line, counted = line + text.count("\n", counted, at), at
        place = f"{path}, line {line}"
        if text[at : at + 1] == "]":
            break
        if item:
            if text[at : at + 1] != ",":
                raise DataError(f"{place}: not JSON, expected ',' or ']' after item {item}")
            at = _skip(text, at + 1, " \t\r\n")
            line, counted = line + text.count("\n", counted, at), at
            place = f"{path}, line {line}"
        try:
            value, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{place}: not JSON ({error}); repair the item") from error
        item += 1
        yield RawRecord(place, _as_object(value, place))
    if text[at + 1 :].strip():
        raise DataError(f"{path}, line {line}: text after the end of the JSON array")


def _skip(text: str, at: int, characters: str) -> int:
    """Return the first index from ``at`` on that holds none of ``characters``."""
    while at < len(text) and text[at] in characters:
        at += 1
    return at


def _read_csv(path: Path) -> Iterator[RawRecord]:
    """Yield one record a CSV row; the first row names the fields."""
    csv.field_size_limit(sys.maxsize)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, strict=True)
        try:
            names = rows.fieldnames or []
            repeated = {name for name in names if names.count(name) > 1}
            if repeated:
                raise DataError(f"{path}, line 1: column {min(repeated)!r} is named twice")
            for row in rows:
                place = f"{path}, line {rows.line_num}"
                if None in row or None in row.values():
                    raise DataError(
                        f"{place}: has more or fewer fields than the {len(names)} of line 1; "
                        "quote fields that hold commas or line breaks"
                    )
                yield RawRecord(place, dict(row))
        except csv.Error as error:
            line = rows.reader.line_num
            raise DataError(f"{path}, line {line}: not CSV ({error})") from error


def _read_parquet(path: Path) -> Iterator[RawRecord]:
    """Yield the rows of a Parquet file, a batch in memory at a time."""
    try:
        with pq.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=4096):
                for fields in batch.to_pylist():
                    yield RawRecord(f"{path}, row {row}", fields)
                    row += 1
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason})") from error


def _parse_json(line: str, place: str) -> Any:
    """Parse one line or name its place."""
    try:
        return json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}); one object a line is needed") from error


def _as_object(value: Any, place: str) -> dict[str, Any]:
    """Return the value if it is an object."""
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object, got {type(value).__name__}")
    return value


READERS: dict[str, Callable[[Path], Iterator[RawRecord]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
