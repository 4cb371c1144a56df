"""Per-sample debugging values in a CSV file that only grows."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.storage import append_line, atomic_write_text, ensure_folder, writing


class CsvDump:
    """Appends rows to a CSV file, whole rows only.

    Args:
        path: The file; it and its folders are made where they are missing.
        columns: The column names, in order.

    Raises:
        StateError: The folder cannot be written, or the file is there with other columns.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self.path = Path(path)
        self.columns = list(columns)
        ensure_folder(self.path.parent)
        if not self.path.exists() or not self.path.stat().st_size:
            atomic_write_text(self.path, _line(self.columns) + "\n")
        elif self._rows()[0] != self.columns:
            raise StateError(
                f"{self.path} must have the columns {self.columns}, it has {self._rows()[0]}; "
                "move it away or choose another debug_dir"
            )

    def write(self, rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> None:
        """Append rows, each a mapping from column names or a sequence in column order.

        Raises:
            StateError: The file cannot be written, or a row does not have the columns.
        """
        lines = [_line(self._values(row)) for row in rows]
        if lines:
            append_line(self.path, "\n".join(lines))

    def rewind(self, step: int, column: str = "step") -> None:
        """Drop the rows after `step`, for a run that resumes there.

        Raises:
            StateError: The file cannot be written, or has no such column.
        """
        if column not in self.columns:
            raise StateError(
                f"{self.path} must have the column {column!r} to rewind, it has {self.columns}; "
                "add it"
            )
        place = self.columns.index(column)
        kept = [
            row
            for row in self._rows()[1:]
            if len(row) == len(self.columns) and float(row[place]) <= step
        ]
        atomic_write_text(self.path, "".join(_line(row) + "\n" for row in [self.columns, *kept]))

    def _values(self, row: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
        """A row's values in column order."""
        if isinstance(row, Mapping):
            missing = [name for name in self.columns if name not in row]
            if missing or len(row) != len(self.columns):
                raise StateError(
                    f"a row of {self.path.name} must have the columns {self.columns}, "
                    f"got {list(row)}; give each one"
                )
            return [row[name] for name in self.columns]
        if len(row) != len(self.columns):
            raise StateError(
                f"a row of {self.path.name} must have {len(self.columns)} values, got {len(row)}; "
                f"give one for each of {self.columns}"
            )
        return list(row)

    def _rows(self) -> list[list[str]]:
        """Every row of the file, the header first."""
        with writing(self.path), self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))


def _line(values: Sequence[Any]) -> str:
    """One CSV line without its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow(values)
    return buffer.getvalue()
