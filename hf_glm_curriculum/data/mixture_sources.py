"""The sources of a mixture: rows by number or as a stream, pass after pass, with their sizes.

Shape letters: N rows of a source.
"""

from __future__ import annotations

import hashlib
import sys
import zlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import datasets
import numpy as np

from hf_glm_curriculum.data.collator import IGNORED
from hf_glm_curriculum.data.content_column import content_ids_column, ids_of_lists, token_lists
from hf_glm_curriculum.errors import DataError

Row = dict[str, Any]
MOST_ROWS_WITHOUT_LABELS = 10_000
"""Rows in a row without a label token after which a stream is taken to have none at all."""


def row_tokens(row: Mapping[str, Any]) -> int:
    """Label tokens of one row, as the trainer counts them: the first position predicts nothing.

    Without ``labels`` every token is one, as collators for language modelling make it.
    """
    labels = row.get("labels")
    if labels is None:
        return max(0, len(row["input_ids"]) - 1)
    return int(np.count_nonzero(np.asarray(labels)[1:] != IGNORED))


def column_tokens(dataset: datasets.Dataset) -> np.ndarray:
    """Label tokens of every row: int64 [N]; :func:`row_tokens` without Python per row."""
    column = "labels" if "labels" in dataset.column_names else "input_ids"
    counts = [np.empty(0, np.int64)]
    for values, offsets, _ in token_lists(dataset, column, mask_column=None, lengths_column=None):
        values, offsets = values[offsets[0] : offsets[-1]], offsets - offsets[0]
        counted = values != IGNORED if column == "labels" else np.ones(len(values), bool)
        counted[offsets[:-1][np.diff(offsets) > 0]] = False
        before = np.concatenate(([0], np.cumsum(counted, dtype=np.int64)))
        counts.append(before[offsets[1:]] - before[offsets[:-1]])
    return np.concatenate(counts)


def row_ids(row: Mapping[str, Any]) -> np.ndarray:
    """Content ids of the samples in one row: int64 [1], or one for each that is packed in it."""
    tokens = np.asarray(row["input_ids"], dtype=np.int64)
    mask = row.get("attention_mask")
    lengths = row.get("seq_lengths")
    offsets = np.concatenate(([0], np.cumsum([len(tokens)] if lengths is None else lengths)))
    return ids_of_lists(tokens, offsets, None if mask is None else np.asarray(mask))


class MapSource:
    """A source whose rows have numbers; every pass goes through all of them in a new order."""

    streams = False

    def __init__(self, name: str, dataset: datasets.Dataset, seed: int, shuffle: bool) -> None:
        """Count the label tokens of every row.

        Raises:
            DataError: if the source has no row, or none with a label token.
        """
        self.name, self.dataset = name, dataset
        self._seed, self._shuffle = seed, shuffle
        self.tokens = column_tokens(dataset)
        if not self.tokens.any():
            raise DataError(
                f"source {name!r}: none of its {len(dataset)} rows has a label token; label the "
                "answers, or leave the labels column out to train on every token"
            )

    def order(self, pass_: int) -> np.ndarray:
        """Numbers of the rows in the order of a pass: int64 [N], a function of seed and pass."""
        if not self._shuffle:
            return np.arange(len(self.tokens))
        seed = [self._seed, zlib.crc32(self.name.encode()), pass_]
        return np.random.default_rng(seed).permutation(len(self.tokens))

    @cached_property
    def ids(self) -> np.ndarray:
        """Content ids of all samples: int64 [N], more where rows are packed."""
        return content_ids_column(self.dataset)

    @cached_property
    def fingerprint(self) -> str | None:
        """Changes with the rows and their order; None where they are not known beforehand."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()[:16]

    def __getstate__(self) -> dict[str, Any]:
        """Workers need neither ids nor fingerprint."""
        left_out = ("ids", "fingerprint")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def open(self, drawn: int) -> MapReader:
        """A reader that stands after the first ``drawn`` rows."""
        return MapReader(self, drawn)


class MapReader:
    """Walks through the passes of a :class:`MapSource`."""

    def __init__(self, source: MapSource, drawn: int) -> None:
        self._source = source
        self._pass, self._place = divmod(drawn, len(source.tokens))
        self._order = source.order(self._pass)

    @property
    def tokens(self) -> int:
        """Label tokens of the next row."""
        return int(self._source.tokens[self._order[self._place]])

    def skip(self) -> int:
        """Go past the next row; its number."""
        row = int(self._order[self._place])
        self._place += 1
        if self._place == len(self._order):
            self._pass, self._place = self._pass + 1, 0
            self._order = self._source.order(self._pass)
        return row

    def take(self) -> tuple[Row, None]:
        """Read the next row and go past it; its samples are known beforehand."""
        return self._source.dataset[self.skip()], None


class StreamSource:
    """A source that can only be read from the start; it starts over when it ends."""

    streams = True
    fingerprint = None

    def __init__(self, name: str, dataset: datasets.IterableDataset, first: Row) -> None:
        """Remember the stream and its first row."""
        self.name, self.dataset, self.first = name, dataset, first

    def open(self, drawn: int) -> StreamReader:
        """A reader that stands after the first ``drawn`` rows, which it reads again."""
        return StreamReader(self, drawn)


class StreamReader:
    """Walks through the passes of a :class:`StreamSource`, one row ahead.

    Nothing is read before a row is asked for, so a source at ratio 0 costs nothing.
    """

    def __init__(self, source: StreamSource, drawn: int) -> None:
        self._source, self._skip = source, drawn
        self._rows: Iterator[Row] | None = None
        self._next: Row | None = None
        self._unlabelled = 0

    @property
    def tokens(self) -> int:
        """Label tokens of the next row."""
        return row_tokens(self._peek())

    def take(self) -> tuple[Row, np.ndarray]:
        """Read the next row, go past it, and hash its samples.

        Raises:
            DataError: if a pass has no rows, or the stream no label tokens.
        """
        row, self._next = self._peek(), None
        self._unlabelled = 0 if row_tokens(row) else self._unlabelled + 1
        if self._unlabelled > MOST_ROWS_WITHOUT_LABELS:
            raise DataError(
                f"source {self._source.name!r}: {self._unlabelled} rows on end without a label "
                "token; check its labels"
            )
        return row, row_ids(row)

    def _peek(self) -> Row:
        if self._rows is None:
            self._rows = _passes(self._source)
            for _ in range(self._skip):
                next(self._rows)
        if self._next is None:
            self._next = next(self._rows)
        return self._next


def _passes(source: StreamSource) -> Iterator[Row]:
    """Yield the rows of a stream, pass after pass, in one worker whole rather than by shards."""
    _reset_file_systems()
    # A new view has an epoch of its own: setting it does not move anybody else's reading.
    stream = source.dataset.with_format(None)
    pass_ = 0
    while True:
        stream.set_epoch(pass_)
        row = None
        for batch in stream.iter(batch_size=1):  # unlike iter(stream), the same in every worker
            row = {name: values[0] for name, values in batch.items()}
            yield row
        if row is None:
            raise DataError(
                f"source {source.name!r}: pass {pass_} over the stream has no row; a stream must "
                "be readable again from the start"
            )
        pass_ += 1


def _reset_file_systems() -> None:
    """Forked workers must not share the event loop of remote file systems."""
    if "fsspec.asyn" in sys.modules:
        sys.modules["fsspec.asyn"].reset_lock()


def first_row(name: str, dataset: datasets.IterableDataset) -> Row:
    """The first row of a stream.

    Raises:
        DataError: if there is none.
    """
    for batch in dataset.with_format(None).iter(batch_size=1):
        return {column: values[0] for column, values in batch.items()}
    raise DataError(f"source {name!r}: the stream has no row; check its files and filters")
