"""A ledger's columns in files: memory-mapped, so that the system keeps in memory what is in use.

A file is never shortened or rewritten in place: tensors that somebody still holds stay readable
when a new ledger takes the folder. Shape letter: R ledger rows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.ledger_columns import Column
from hf_glm_curriculum.storage import atomic_write_json, ensure_folder, read_json, writing

MANIFEST = "ledger.json"
"""Describes the files beside it; what lies in a folder without it is not touched."""
KIND = "hf_glm_curriculum ledger"
FORMAT = 1
_BLOCK_BYTES = 1 << 22
_IDS = Column(torch.int64, 0)


class LedgerFolder:
    """A folder that holds one ledger's files and belongs to one process at a time.

    Attributes:
        path: the folder.
        manifest: what is known of the files in it, {} where there are none yet.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the folder, which is made if it is not there.

        Raises:
            StateError: if it cannot be written, another ledger uses it at this time, or it holds
                files that are no ledger's.
        """
        self.path = ensure_folder(path)
        self._lock: Any = None
        self._take()
        self.manifest: dict[str, Any] = {}
        if (self.path / MANIFEST).exists():
            self.manifest = self._read_manifest()
            return
        if strangers := sorted(p.name for p in self.path.glob("*.bin")):
            raise StateError(
                f"{self.path}: holds {', '.join(strangers[:3])} and no {MANIFEST}, so these are "
                "no ledger's files; name an empty folder."
            )
        # Before any other file: what a full disk cuts short is known as ours next time.
        self.describe()

    def check_owner(self, fingerprint: str) -> None:
        """Refuse the files of a ledger of other data.

        Args:
            fingerprint: `SampleIndex.fingerprint` of the data of this run.

        Raises:
            StateError: if the folder holds a ledger of other data.
        """
        known = self.manifest.get("fingerprint", fingerprint)
        if known != fingerprint:
            raise StateError(
                f"{self.path}: holds the ledger of a run on other data ({known[:8]}…, this run's "
                f"are {fingerprint[:8]}…); name another folder, or delete this one if that run "
                "is over."
            )

    def close(self) -> None:
        """Let another process have the folder; tensors that are still held stay readable."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- columns -----------------------------------------------------------------------------

    def create(self, columns: Mapping[str, Column], rows: int) -> dict[str, Tensor]:
        """Make every column anew, with ``rows`` rows that are unseen.

        Raises:
            StateError: if the disk is full or the folder cannot be written.
        """
        return {name: self._create(name, column, rows) for name, column in columns.items()}

    def extend(self, columns: Mapping[str, Column], valid: int, rows: int) -> dict[str, Tensor]:
        """Give every column ``rows`` rows; those from ``valid`` on are unseen ones.

        Raises:
            StateError: if the disk is full or the folder cannot be written.
        """
        found = {}
        for name, column in columns.items():
            with writing(self._file(name)), self._file(name).open("r+b") as file:
                file.seek(valid * _row_bytes(column))
                _fill(file, column, rows - valid)
            found[name] = self._map(name, column, rows)
        return found

    def attach(self, columns: Mapping[str, Column], rows: int) -> dict[str, Tensor]:
        """Map columns that are there.

        Raises:
            StateError: if a file is missing or too short.
        """
        for name, column in columns.items():
            file, needed = self._file(name), rows * _row_bytes(column)
            size = file.stat().st_size if file.exists() else None
            # A longer one has grown just before its process was killed.
            if size is None or size < needed:
                found = "is missing" if size is None else f"has {size:,} bytes"
                raise StateError(
                    f"{file}: {found}, and {rows:,} ledger rows need {needed:,}; the folder is "
                    "damaged or was copied in part, resume from a checkpoint into another folder."
                )
        return {name: self._map(name, column, rows) for name, column in columns.items()}

    def keep(self, name: str, values: Tensor) -> Tensor:
        """A copy of an int64 [N] tensor in a file, which replaces the one of that name."""
        kept = self._create(name, _IDS, max(1, len(values)))[: len(values)]
        kept.copy_(values)
        return kept

    def kept(self, name: str, length: int) -> Tensor:
        """The int64 [length] tensor that :meth:`keep` has put in a file.

        Raises:
            StateError: if the file is missing or too short.
        """
        return self.attach({name: _IDS}, max(1, length))[name][:length]

    def describe(self, **facts: Any) -> None:
        """Write the manifest.

        Raises:
            StateError: if it cannot be written.
        """
        self.manifest = {"kind": KIND, "format": FORMAT, **facts}
        atomic_write_json(self.path / MANIFEST, self.manifest)

    # -- helpers -----------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.bin"

    def _create(self, name: str, column: Column, rows: int) -> Tensor:
        target = self._file(name)
        fresh = target.with_name(f".{name}.new")
        with writing(target):
            try:
                with fresh.open("wb") as file:
                    _fill(file, column, rows)
                os.replace(fresh, target)
            except OSError:
                with contextlib.suppress(OSError):
                    fresh.unlink()
                raise
        return self._map(name, column, rows)

    def _map(self, name: str, column: Column, rows: int) -> Tensor:
        size = rows * max(1, column.width)
        flat = torch.from_file(str(self._file(name)), shared=True, size=size, dtype=column.dtype)
        return flat.view(column.shape(rows))

    def _take(self) -> None:
        from filelock import FileLock, Timeout

        lock = FileLock(self.path / "lock")
        with writing(self.path):
            try:
                lock.acquire(timeout=0)
            except Timeout as error:
                raise StateError(
                    f"{self.path}: another run is using this ledger's files; name another folder "
                    "or wait until it has ended."
                ) from error
        self._lock = lock

    def _read_manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST
        found = read_json(path)
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise StateError(f"{path}: is not the description of a ledger; name an empty folder.")
        if found.get("format") != FORMAT:
            raise StateError(
                f"{path}: ledger format must be {FORMAT}, got {found.get('format')}; it was "
                "written by another version of the package, name another folder."
            )
        return found


def _row_bytes(column: Column) -> int:
    return column.dtype.itemsize * max(1, column.width)


def _fill(file: Any, column: Column, rows: int) -> None:
    """Write unseen rows: real blocks, because a full disk behind a map kills the process."""
    at_once = max(1, min(rows, _BLOCK_BYTES // _row_bytes(column)))
    block = column.full(at_once).numpy().tobytes()
    size = _row_bytes(column)
    for start in range(0, rows, at_once):
        file.write(memoryview(block)[: min(at_once, rows - start) * size])
    file.flush()
