"""Tables of runs: CSV or JSON Lines, columns found by their usual names."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.conventions import Conventions

Array = NDArray[np.float64]

ALIASES: dict[str, tuple[str, ...]] = {
    "N": ("N", "parameters", "params", "n_params", "num_params", "model_size"),
    "D": ("D", "tokens", "train_tokens", "training_tokens", "n_tokens", "num_tokens"),
    "C": ("C", "flops", "training_flop", "training_flops", "train_flops", "compute"),
    "L": ("L", "loss", "eval_loss", "final_loss", "test_loss", "val_loss", "validation_loss"),
    "U": ("U", "unique_tokens", "unique"),
}
"""Column → names it goes by; capitals, spaces and hyphens do not matter."""


@dataclass
class Table:
    """Rows of a file.

    Attributes:
        path: The file.
        columns: Name → cells, as text.
        lines: Line of each row in the file, from 1.
    """

    path: Path
    columns: dict[str, list[str]]
    lines: list[int]

    def numbers(self, name: str) -> Array:
        """A column as numbers; an empty cell is NaN.

        Raises:
            DataError: A cell is no number; the message names line and column.
        """
        found = []
        for line, cell in zip(self.lines, self.columns[name], strict=True):
            text = cell.strip().replace("_", "").replace(",", "")
            try:
                found.append(float(text) if text else np.nan)
            except ValueError as error:
                raise DataError(
                    f"{self.path}: line {line}: column {name!r} must hold a number, got {cell!r}; "
                    "correct the cell or leave it empty"
                ) from error
        return np.array(found)


@dataclass
class RunTable:
    """Runs of a file, ready for a fit.

    Attributes:
        N: [n] parameters.
        D: [n] tokens.
        L: [n] losses; NaN where a run has none.
        U: [n] unique tokens; None without such a column.
        lines: Line of each in the file.
        used: What each came from, such as "D = C/(6·N) of 'Training FLOP'".
    """

    N: Array
    D: Array
    L: Array
    U: Array | None
    lines: list[int]
    used: list[str] = field(default_factory=list)


def read_table(path: str | os.PathLike[str]) -> Table:
    """Read CSV (with a head line) or JSON Lines.

    Raises:
        DataError: The file is missing, empty or malformed; the message names the line.
    """
    file = Path(path).expanduser()
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    rows = _json_rows(file, text) if file.suffix in (".jsonl", ".json") else _csv_rows(file, text)
    if not rows:
        raise DataError(f"{file}: holds no rows; give a head line and one line a run")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    columns = {name: [row.get(name, "") for _, row in rows] for name in names}
    return Table(file, columns, [line for line, _ in rows])


def _csv_rows(file: Path, text: str) -> list[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text, newline=""))
    head: list[str] = []
    found = []
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if not head:
                head = [cell.strip() for cell in cells]
                continue
            if len(cells) != len(head):
                raise DataError(
                    f"{file}: line {reader.line_num}: has {len(cells)} cells for {len(head)} "
                    "columns; correct the line"
                )
            found.append((reader.line_num, dict(zip(head, cells, strict=True))))
    except csv.Error as error:
        raise DataError(f"{file}: line {reader.line_num}: {error}; correct the line") from error
    return found


def _json_rows(file: Path, text: str) -> list[tuple[int, dict[str, str]]]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{file}: line {number}: not JSON ({error})") from error
        if not isinstance(record, dict):
            raise DataError(f"{file}: line {number}: must be an object of columns")
        cells = {name: "" if value is None else str(value) for name, value in record.items()}
        found.append((number, cells))
    return found


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def find_column(table: Table, names: Sequence[str]) -> str | None:
    """The first of some names that the table has, or None."""
    known = {_plain(name): name for name in reversed(list(table.columns))}
    return next((known[_plain(name)] for name in names if _plain(name) in known), None)


def read_runs(
    path: str | os.PathLike[str],
    columns: Mapping[str, str | None] | None = None,
    conventions: Conventions | None = None,
) -> RunTable:
    """Read runs; tokens may be given as FLOPs, D = C/(k·N).

    Args:
        path: CSV or JSON Lines.
        columns: "N", "D", "C", "L" or "U" → the column to take, where its name is not usual.
        conventions: Say what k is.

    Raises:
        DataError: The file, a column or a cell is missing or wrong.
    """
    table = read_table(path)
    chosen = {key: _chosen(table, key, (columns or {}).get(key)) for key in ALIASES}
    for key in ("N", "L"):
        if chosen[key] is None:
            _refuse(table, key)
    used = [f"{key} of {chosen[key]!r}" for key in ("N", "L")]
    n = table.numbers(str(chosen["N"]))
    if chosen["D"] is not None:
        d = table.numbers(chosen["D"])
        used.append(f"D of {chosen['D']!r}")
    elif chosen["C"] is not None:
        convention = conventions or Conventions()
        with np.errstate(divide="ignore", invalid="ignore"):
            d = convention.tokens(table.numbers(chosen["C"]), n)
        used.append(f"D = C/({convention.flops_per_parameter_token:g}·N) of {chosen['C']!r}")
    else:
        _refuse(table, "D")
    u = None if chosen["U"] is None else table.numbers(chosen["U"])
    return RunTable(n, d, table.numbers(str(chosen["L"])), u, table.lines, used)


def _chosen(table: Table, key: str, name: str | None) -> str | None:
    if name is None:
        return find_column(table, ALIASES[key])
    found = find_column(table, [name])
    if found is None:
        raise DataError(f"{table.path}: has no column {name!r}; it has {', '.join(table.columns)}")
    return found


def _refuse(table: Table, key: str) -> NoReturn:
    flags = {"N": "--n-column", "D": "--d-column (or --c-column for FLOPs)", "L": "--loss-column"}
    what = {"N": "parameters", "D": "tokens", "L": "losses"}
    raise DataError(
        f"{table.path}: no column of {what[key]} ({', '.join(ALIASES[key])}) among "
        f"{', '.join(table.columns)}; name it with {flags[key]}"
    )
