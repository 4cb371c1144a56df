"""Which row of the training data a content id belongs to: a sorted table, searched on the device.

Shape letters: N rows known, Q ids asked.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.data.content_column import content_ids_column, packed_rows
from hf_glm_curriculum.data.content_id import UNUSED_ID
from hf_glm_curriculum.errors import DataError

logger = logging.getLogger(__name__)

Keep = Callable[[str, Tensor], Tensor]
"""Name and tensor -> an equal tensor that lies where the table should."""


@dataclass(frozen=True)
class Duplicates:
    """Rows of equal content, which share one id and count as the first of them.

    Attributes:
        row_ids: int64 [N], the id of each row, in row order.
    """

    row_ids: np.ndarray

    @cached_property
    def count(self) -> int:
        """Number of surplus rows: those whose content an earlier row has."""
        return len(self.row_ids) - len(np.unique(self.row_ids))

    @cached_property
    def groups(self) -> list[list[int]]:
        """Rows that are equal, group by group, each ascending; groups ordered by first row."""
        order = np.argsort(self.row_ids, kind="stable")
        starts = np.flatnonzero(np.diff(self.row_ids[order], prepend=~self.row_ids[order][:1]))
        groups = np.split(order, starts[1:]) if len(order) else []
        return sorted((group.tolist() for group in groups if len(group) > 1), key=lambda g: g[0])


class SampleIndex:
    """Maps content ids to rows; equal content maps to its first row, the rest is reported.

    Rows are those of the data set (samples, where it is packed), then the ids that `add` learnt,
    in the order they came. Built on the CPU; follows the ids it is asked about to their device.

    Attributes:
        row_ids: int64 [N] tensor on the CPU, the id of each row in row order.
        packed_row: for a packed data set, int64 [N]: the data set's row that holds each sample;
            None otherwise.
    """

    def __init__(self, row_ids: np.ndarray | Tensor, packed_row: np.ndarray | None = None) -> None:
        """Build the table from the ids of rows 0, 1, ... (int64 [N]).

        Raises:
            DataError: if the ids are not one int64 a row.
        """
        ids = torch.as_tensor(row_ids).cpu()
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise DataError(
                f"row_ids: must be int64 [rows], got {ids.dtype} {list(ids.shape)}; make them "
                "with content_ids_column"
            )
        self.row_ids = ids
        self.packed_row = packed_row
        self._warned = False
        self._from_data = len(ids)
        self._keep: Keep = lambda name, values: values
        self._build(torch.device("cpu"))

    @classmethod
    def from_dataset(cls, dataset: Any, column: str = "input_ids") -> Self:
        """Hash a tokenised data set and index its rows.

        Args:
            dataset: a `datasets.Dataset`, or a sized sequence of mappings. Rows that TRL packed
                (``seq_lengths`` column) count as one row for each sample in them.
            column: the token column.

        Raises:
            DataError: if the data set is empty, or its columns do not fit.
        """
        if not hasattr(dataset, "__len__"):
            raise DataError(
                f"dataset: a {type(dataset).__name__} has no length, so its rows cannot be "
                "indexed beforehand; start from SampleIndex.empty(), which learns ids as they come"
            )
        if len(dataset) == 0:
            raise DataError("dataset: has 0 rows, needs at least one; check the file and filters")
        index = cls(content_ids_column(dataset, column), packed_rows(dataset))
        if index.duplicates.count:
            logger.warning(
                "%d of %d samples repeat another sample's tokens and are tracked as one with it",
                index.duplicates.count,
                len(index),
            )
        return index

    @classmethod
    def empty(cls) -> Self:
        """Return an index that knows no row yet, for streamed data."""
        return cls(np.empty(0, np.int64))

    def __len__(self) -> int:
        """Return the number of rows, duplicates and added ids included."""
        return len(self.row_ids)

    @property
    def duplicates(self) -> Duplicates:
        """Rows of the data set that repeat another's content."""
        return Duplicates(self.row_ids[: self._from_data].numpy())

    @property
    def fingerprint(self) -> str:
        """Return a hex digest of the data set's ids in row order, to match saved state with."""
        data = self.row_ids[: self._from_data].numpy().astype("<i8", copy=False)
        return hashlib.sha256(data.data).hexdigest()[:32]

    @property
    def device(self) -> torch.device:
        """Where the table lies."""
        return self._ids.device

    def to(self, device: torch.device | str) -> Self:
        """Move the table to ``device``; returns the index itself."""
        self._ids, self._rows = self._ids.to(device), self._rows.to(device)
        return self

    def keep_in(self, keep: Keep) -> None:
        """Hold the table in tensors that ``keep`` makes, from now on; stays on the CPU.

        Args:
            keep: name and int64 [N] tensor -> an equal tensor, such as one that lies in a file.
        """
        self._keep = keep
        self.row_ids = keep("ids", self.row_ids)
        self._ids, self._rows = keep("sorted_ids", self._ids), keep("sorted_rows", self._rows)

    def lookup(self, ids: Tensor) -> Tensor:
        """Find the rows of ids by binary search, without synchronisation.

        Args:
            ids: int64, any shape [Q].

        Returns:
            int64 of the same shape and device: the row, -1 where the id is unknown.
        """
        if ids.device != self._ids.device:
            self.to(ids.device)
        place = torch.searchsorted(self._ids, ids.contiguous()).clamp(max=self._ids.numel() - 1)
        return torch.where(self._ids[place] == ids, self._rows[place], -1)

    def add(self, ids: Tensor) -> Tensor:
        """Give rows to ids that are not known yet, in order of first appearance; says so once.

        Reads the ids on the host: call it when a queue is flushed, not in every step. Ranks that
        add the same ids in the same order agree on their rows.

        Args:
            ids: int64 [Q]; known ids and repeats are allowed.

        Returns:
            int64 [Q]: the row of each id.
        """
        asked = ids.reshape(-1).cpu()
        unknown = asked[self.lookup(asked.to(self.device)).cpu() < 0].numpy()
        values, first_seen = np.unique(unknown, return_index=True)
        fresh = values[np.argsort(first_seen)]
        if len(fresh):
            if self._from_data and not self._warned:
                logger.warning(
                    "%d samples in a batch match no row of the indexed data (first id %d); they "
                    "are tracked as new rows. Was the data tokenised or truncated again?",
                    len(fresh),
                    fresh[0],
                )
                self._warned = True
            self.row_ids = self._keep("ids", torch.cat([self.row_ids, torch.from_numpy(fresh)]))
            self._build(self.device)
        return self.lookup(asked.to(self.device)).to(ids.device)

    def _build(self, device: torch.device) -> None:
        """Sort the ids and keep the first row of each; a sentinel ends the table."""
        values, first_row = np.unique(self.row_ids.numpy(), return_index=True)
        table = (np.append(values, UNUSED_ID), np.append(first_row, -1))
        ids, rows = (torch.from_numpy(column).to(device) for column in table)
        self._ids, self._rows = self._keep("sorted_ids", ids), self._keep("sorted_rows", rows)
