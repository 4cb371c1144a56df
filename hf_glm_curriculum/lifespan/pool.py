"""The observation pool as a run left it: read back, and written out for annotators."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.data.record_files import read_file
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.signals.ledger import SampleState
from hf_glm_curriculum.storage import atomic_write_text, replacing

if TYPE_CHECKING:
    import datasets

POOL_FILE = "observation_pool.jsonl"
ANSWER_COLUMNS = ("decision", "corrected_response", "note")
"""Columns an annotator fills in."""
_VERDICTS = tuple(s.name for s in SampleState if s is not SampleState.TRAINING)
# What a spreadsheet would read as a formula, or eat: such cells are led by an apostrophe.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "'")


@dataclass(frozen=True)
class PoolRow:
    """One sample of the pool.

    Attributes:
        row: row of the training data, negative where the data did not list the sample.
        id: 64-bit id of the sample's content.
        prompt: what was asked; None where the run could not read its text.
        response: the answer trained on; None with `prompt`.
        signals: name → value, None where unknown.
        verdict: the judge's: OBSERVED, MASTERED, RESAMPLE or RELABEL.
        suspicion: robust deviations above the median, None where unknown.
        weight: the loss weight at the end of the run, None where unknown.
        decoded: whether the text was decoded from tokens: in a template, perhaps cut.
    """

    row: int
    id: int
    prompt: str | None
    response: str | None
    signals: dict[str, float | None]
    verdict: str
    suspicion: float | None
    weight: float | None
    decoded: bool = False

    def flat(self) -> dict[str, Any]:
        """The row as one level of columns, signals among them."""
        return {
            "row": self.row,
            "id": self.id,
            "prompt": self.prompt,
            "response": self.response,
            "verdict": self.verdict,
            "suspicion": self.suspicion,
            "weight": self.weight,
            **self.signals,
        }


@dataclass(frozen=True)
class ObservationPool:
    """Samples that left training, most suspicious first.

    Attributes:
        path: the JSONL file they were read from.
        rows: one entry a sample; ids are unique.
    """

    path: Path
    rows: tuple[PoolRow, ...]

    @cached_property
    def by_id(self) -> dict[int, PoolRow]:
        """Sample id → row of the pool."""
        return {row.id: row for row in self.rows}

    @cached_property
    def by_row(self) -> dict[int, PoolRow]:
        """Row of the training data → row of the pool, for rows that hold one sample of it."""
        held = Counter(row.row for row in self.rows)
        return {row.row: row for row in self.rows if row.row >= 0 and held[row.row] == 1}

    def to_dataset(self) -> datasets.Dataset:
        """The pool as a data set of flat columns, with empty columns for the annotator."""
        import datasets

        text, number = datasets.Value("string"), datasets.Value("float64")
        kinds = dict.fromkeys(self._columns(), number)
        kinds |= {"row": datasets.Value("int64"), "id": datasets.Value("int64")}
        kinds |= dict.fromkeys(("prompt", "response", "verdict", *ANSWER_COLUMNS), text)
        columns = {name: [row.flat().get(name) for row in self.rows] for name in kinds}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write the pool for annotators, whole or not at all.

        The columns ``decision`` (keep, fix or drop), ``corrected_response`` and ``note`` are
        left empty for them; `answers.read_answers` reads the file back. In CSV and JSONL the
        id is hexadecimal text, since spreadsheets and JavaScript round 64-bit numbers; a CSV
        cell that a spreadsheet would take for a formula is led by an apostrophe.

        Args:
            path: ``.jsonl``, ``.csv`` or ``.parquet``; a path without a suffix becomes a
                folder that `datasets.load_from_disk` reads.

        Raises:
            DataError: for another suffix.
            StateError: if it cannot be written, or the folder is there and not empty.
        """
        target = Path(path)
        suffix = target.suffix.lower()
        if suffix == ".jsonl":
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in self._records())
            atomic_write_text(target, "".join(lines))
        elif suffix == ".csv":
            atomic_write_text(target, self._csv())
        else:
            save_dataset(self.to_dataset(), target)
        return target

    def _columns(self) -> list[str]:
        signals = {name: None for row in self.rows for name in row.signals}
        base = ("row", "id", "prompt", "response", "verdict", "suspicion", "weight")
        return [*base, *signals, *ANSWER_COLUMNS]

    def _records(self) -> list[dict[str, Any]]:
        empty = dict.fromkeys(self._columns())
        return [{**empty, **row.flat(), "id": id_text(row.id)} for row in self.rows]

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns(), lineterminator="\r\n")
        writer.writeheader()
        for record in self._records():
            writer.writerow({name: csv_cell(value) for name, value in record.items()})
        return text.getvalue()


def pool_file(source: str | os.PathLike[str]) -> Path:
    """The pool's file: `source` itself, in it, or in its one callback folder that has one.

    Raises:
        DataError: if there is none, or several.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError(f"{path}: no such run folder; check the path")
    if (path / POOL_FILE).is_file():
        return path / POOL_FILE
    found = sorted(path.glob(f"*/{POOL_FILE}"))
    if not found:
        raise DataError(
            f"{path}: holds no {POOL_FILE}; it is written when a run with the sample life cycle "
            "ends, so finish the run or name another folder"
        )
    if len(found) > 1:
        names = ", ".join(file.parent.name for file in found)
        raise DataError(f"{path}: holds the pools of several callbacks; name one of {names}")
    return found[0]


def read_pool(source: str | os.PathLike[str]) -> ObservationPool:
    """Read an observation pool.

    Args:
        source: a run's folder, a callback's folder in it, or the JSONL file.

    Raises:
        DataError: naming file, line and field, if the pool is missing or malformed.
    """
    path = pool_file(source)
    rows: dict[int, PoolRow] = {}
    for record in read_file(path):
        row = _pool_row(record.fields, record.place)
        if row.id in rows:
            raise DataError(f"{record.place}: sample {id_text(row.id)} is in the pool twice")
        rows[row.id] = row
    return ObservationPool(path, tuple(rows.values()))


def id_text(sample_id: int) -> str:
    """A sample id as text that no reader rounds: ``0x`` and 16 hexadecimal digits."""
    return f"0x{sample_id & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def parse_id(value: Any, place: str) -> int:
    """Read a sample id from an integer, or from decimal or hexadecimal text.

    Raises:
        DataError: if it is neither, as after a spreadsheet has rounded it.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    try:
        if text.lower().startswith("0x"):
            number = int(text, 16)
            return number - 2**64 if number >= 2**63 else number
        return int(text)
    except ValueError as error:
        raise DataError(
            f"{place}, field 'id': must be an integer or 0x and 16 digits, got {text[:40]!r}; a "
            "spreadsheet may have rounded it: leave the column out and identify samples by row"
        ) from error


def csv_cell(value: Any) -> str:
    """A value as a CSV cell that no spreadsheet runs as a formula; None becomes empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value)
    return f"'{value}" if value.startswith(_FORMULA) else value


def from_csv_cell(cell: str) -> str:
    """Undo `csv_cell` on text."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


def save_dataset(dataset: datasets.Dataset, path: Path) -> None:
    """Write a data set as Parquet or, without a suffix, as a folder; whole or not at all.

    Raises:
        DataError: for another suffix.
        StateError: if it cannot be written, or the folder is there and not empty.
    """
    if path.suffix.lower() not in ("", ".parquet"):
        raise DataError(
            f"{path}: unknown suffix {path.suffix!r}; end it in .jsonl, .csv or .parquet, or give "
            "the name of a folder"
        )
    with replacing(path) as temporary:
        if path.suffix:
            dataset.to_parquet(temporary)
        else:
            dataset.save_to_disk(temporary)


def _pool_row(fields: Mapping[str, Any], place: str) -> PoolRow:
    """Check one line of the pool."""
    text, signals = fields.get("text"), fields.get("signals")
    if text is not None and not isinstance(text, Mapping):
        raise _wrong(place, "text", "an object or null", text)
    if not isinstance(signals, Mapping):
        raise _wrong(place, "signals", "an object", signals)
    if fields.get("verdict") not in _VERDICTS:
        raise _wrong(place, "verdict", f"one of {', '.join(_VERDICTS)}", fields.get("verdict"))
    return PoolRow(
        row=_integer(fields, "row", place),
        id=_integer(fields, "id", place),
        prompt=None if text is None else _string(text, "prompt", place),
        response=None if text is None else _string(text, "response", place),
        signals={str(name): _number(signals, name, place) for name in signals},
        verdict=fields["verdict"],
        suspicion=_number(fields, "suspicion", place),
        weight=_number(fields, "weight", place),
        decoded=text is not None and text.get("decoded") is True,
    )


def _integer(fields: Mapping[str, Any], name: str, place: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise _wrong(place, name, "a 64-bit integer", value)
    return value


def _number(fields: Mapping[str, Any], name: str, place: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(place, name, "a finite number or null", value)
    return value


def _string(fields: Mapping[str, Any], name: str, place: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _wrong(place, name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(place, name, "valid Unicode", value[error.start : error.end]) from error
    return value


def _wrong(place: str, field: str, rule: str, value: Any) -> DataError:
    return DataError(
        f"{place}, field {field!r}: must be {rule}, got {repr(value)[:60]}; the file is not as "
        "the run wrote it: restore it, or run again"
    )
