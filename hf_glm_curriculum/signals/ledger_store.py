"""Where a sample ledger's columns lie: in memory on the training device, or in files.

Shape letters: R ledger rows, M observations of one step, K history length.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.ledger_columns import ledger_columns
from hf_glm_curriculum.signals.ledger_folder import MANIFEST, LedgerFolder
from hf_glm_curriculum.storage import load_tensors, save_tensors

FORMAT = "1"
"""Version of the saved file."""


class LedgerStore:
    """Columns by name, one row a sample, with the index that finds a sample's row."""

    def __init__(
        self,
        index: SampleIndex | None = None,
        *,
        history: int = 5,
        drift: bool = False,
        neighbours: int = 0,
        folder: str | os.PathLike[str] | LedgerFolder | None = None,
    ) -> None:
        """Make an empty ledger.

        Args:
            index: ids and rows known in advance; None to add samples as they are seen.
            history: K, how many losses and gradient norms a sample keeps.
            drift: also keep each sample's last embedding (64 float16 a sample).
            neighbours: k, how many neighbours drift compares a sample with (int32 each); 0
                compares it with its own last visit only.
            folder: where the columns and the index lie on disk, memory-mapped; in memory if None.
                A ledger of the same data that lies there is replaced (:meth:`open` continues it).

        Raises:
            ValueError: if ``history`` is less than 2.
            StateError: if the folder cannot be written, is in use, or belongs to other data.
        """
        if history < 2:
            raise ValueError(f"history: a slope needs at least 2 visits, got {history}.")
        self.index = SampleIndex.empty() if index is None else index
        self.history_length = history
        self.keeps_drift = drift
        self.neighbour_count = neighbours if drift else 0
        self.device = torch.device("cpu")
        self._layout = ledger_columns(history, drift, self.neighbour_count)
        self._columns: dict[str, Tensor] = {}
        self.folder: LedgerFolder | None = None
        if isinstance(folder, LedgerFolder):
            self._claim(folder)
        elif folder is not None:
            self._claim(LedgerFolder(folder), self.index.fingerprint)
        self._allocate(len(self.index))

    # -- size and place ----------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of ledger rows R."""
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns and the index take."""
        return sum(c.nbytes for c in self._columns.values()) + 3 * self.index.row_ids.nbytes

    def to(self, device: torch.device | str) -> Self:
        """Move every column to ``device`` and return the ledger.

        Raises:
            StateError: if the columns lie in files, which no other device can read.
        """
        device = torch.device(device)
        if self.folder is not None and device.type != "cpu":
            raise StateError(
                f"ledger: its columns lie in files in {self.folder.path} and cannot move to "
                f"{device}; make it without folder=."
            )
        self.device = device
        self._columns = {name: c.to(self.device) for name, c in self._columns.items()}
        self.index.to(self.device)
        return self

    def column(self, name: str) -> Tensor:
        """The column ``name`` as a view of length R; writing to it changes the ledger."""
        return self._columns[name][: len(self)]

    def put(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Write ``values`` [M] to a column at ``rows`` [M]; negative rows are left out."""
        column = self._columns[name]
        column[self._spare(rows)] = values.to(column.dtype)

    def _allocate(self, rows: int, valid: int = 0) -> None:
        """Give every column ``rows`` rows, those from ``valid`` on unseen, and a spare one.

        The spare one swallows unused writes.
        """
        layout, old = self._layout, self._columns
        if self.folder is None:
            self._columns = {name: c.full(rows + 1, self.device) for name, c in layout.items()}
            for name, column in old.items():
                self._columns[name][:valid] = column[:valid]
            return
        if old:
            self._columns = self.folder.extend(layout, valid, rows + 1)
        else:
            self._columns = self.folder.create(layout, rows + 1)
        self._describe()

    def _claim(self, folder: LedgerFolder, owner: str | None = None) -> None:
        """Keep columns and index in a folder, which must be the owner's if one is named."""
        try:
            if owner is not None:
                folder.check_owner(owner)
            self._fingerprint = folder.manifest.get("fingerprint", self.index.fingerprint)
            self.index.keep_in(folder.keep)
        except BaseException:
            folder.close()
            raise
        self.folder = folder

    def _describe(self) -> None:
        """Bring the manifest up to date."""
        if self.folder is not None:
            self.folder.describe(
                fingerprint=self._fingerprint,
                rows=len(self),
                capacity=len(self._columns["weight"]),
                history=self.history_length,
                drift=self.keeps_drift,
                neighbours=self.neighbour_count,
            )

    def add(self, ids: Tensor) -> None:
        """Give rows to ids that have none yet, in order of appearance; known ids are left alone.

        Args:
            ids: [M] int64. Copies to the host: call it at logging and saving, not in the step.
        """
        before = len(self)
        self.index.add(ids)
        # Room for half as much again, so that a stream of new samples does not copy each time.
        if len(self) >= len(self._columns["weight"]):
            self._allocate(max(len(self), before + before // 2), valid=before)
        elif len(self) > before:
            self._describe()

    def lookup(self, ids: Tensor) -> Tensor:
        """Ledger rows of ids: [M] int64, -1 where unknown; no host copy."""
        return self.index.lookup(ids)

    def _spare(self, rows: Tensor) -> Tensor:
        """Send negative rows to the spare row at the end."""
        return torch.where(rows >= 0, rows, len(self._columns["weight"]) - 1)

    # -- disk --------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything a copy needs, by name; suited to :meth:`from_tensors`."""
        columns = {name: c[: len(self)] for name, c in self._columns.items()}
        return {"ids": self.index.row_ids, **columns}

    @classmethod
    def open(cls, folder: str | os.PathLike[str], index: SampleIndex | None = None) -> Self:
        """Continue a ledger that was made with ``folder=``, also after its process was killed.

        Args:
            folder: where its files lie.
            index: of the data it must belong to; any if None.

        Raises:
            StateError: if there is none, it is in use, damaged, or belongs to other data.
        """
        if not (Path(folder) / MANIFEST).exists():
            raise StateError(
                f"{os.fspath(folder)}: holds no ledger ({MANIFEST} is missing); name the folder "
                "that SampleLedger(folder=...) was given."
            )
        store = LedgerFolder(folder)
        try:
            if index is not None:
                store.check_owner(index.fingerprint)
            return cls._attached(store)
        except BaseException:
            store.close()
            raise

    @classmethod
    def _attached(cls, store: LedgerFolder) -> Self:
        """The ledger whose files lie in a folder."""
        facts = store.manifest
        try:
            rows, capacity = int(facts["rows"]), int(facts["capacity"])
            ledger = cls.__new__(cls)
            ledger.history_length = int(facts["history"])
            ledger.keeps_drift = bool(facts["drift"])
            ledger.neighbour_count = int(facts["neighbours"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{store.path / MANIFEST}: does not describe a ledger ({error}); name another "
                "folder and resume from a checkpoint."
            ) from error
        ledger.device = torch.device("cpu")
        ledger._layout = ledger_columns(
            ledger.history_length, ledger.keeps_drift, ledger.neighbour_count
        )
        ledger._columns = store.attach(ledger._layout, capacity)
        ledger.index = SampleIndex(store.kept("ids", rows).clone())
        ledger._claim(store)
        return ledger

    def close(self) -> None:
        """Let go of the ledger's folder, if it has one; the columns stay readable."""
        if self.folder is not None:
            self.folder.close()

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor], folder: str | os.PathLike[str] | LedgerFolder | None = None
    ) -> Self:
        """Rebuild a ledger from :meth:`tensors`.

        Args:
            tensors: columns by name.
            folder: as for a new ledger.

        Raises:
            StateError: if a column is missing or of another length than the ids.
        """
        try:
            ids = tensors["ids"]
            ledger = cls(
                SampleIndex(ids),
                history=tensors["loss_ring"].shape[1],
                drift="embedding" in tensors,
                neighbours=tensors["neighbours"].shape[1] if "neighbours" in tensors else 0,
                folder=folder,
            )
            for name, column in ledger._columns.items():
                column[:-1] = tensors[name]
        except (KeyError, RuntimeError, IndexError) as error:
            raise StateError(
                f"ledger: a saved column is missing or of the wrong length ({error}); the file is "
                "damaged or of another version, resume from another checkpoint."
            ) from error
        return ledger

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to one safetensors file, atomically.

        Raises:
            StateError: if the file cannot be written.
        """
        save_tensors(path, self.tensors(), {"format": FORMAT})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a ledger written by :meth:`save`.

        Raises:
            StateError: if the file is missing, damaged or of another format.
        """
        tensors, metadata = load_tensors(path)
        if metadata.get("format") != FORMAT:
            raise StateError(
                f"{os.fspath(path)}: ledger format must be {FORMAT}, got "
                f"{metadata.get('format')}; it was written by another version of the package."
            )
        return cls.from_tensors(tensors)
