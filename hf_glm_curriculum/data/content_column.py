"""Content ids of a whole Arrow column: the numpy twin of `content_id`, without Python per row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from hf_glm_curriculum.data.content_id import (
    GAMMA,
    MULTIPLIER_1,
    MULTIPLIER_2,
    SHIFTS,
    UNUSED_ID,
)
from hf_glm_curriculum.errors import DataError

ROWS_PER_BATCH = 8192
TOKENS_PER_BLOCK = 32768  # three uint64 work arrays of this size stay in a core's cache


def content_ids_column(
    dataset: Any,
    column: str = "input_ids",
    *,
    mask_column: str | None = "attention_mask",
    lengths_column: str | None = "seq_lengths",
) -> np.ndarray:
    """Hash every row of a tokenised data set; equal to `content_ids` of the same tokens.

    Args:
        dataset: a `datasets.Dataset` (any format, also after ``select`` or ``shuffle``), or any
            sized sequence of mappings that hold ``column``.
        column: the token column (lists of integers).
        mask_column: column of 0/1 lists, 0 on padding; read where the data set has it.
        lengths_column: column of lists of sample lengths, as TRL's packing writes it; where the
            data set has it, every packed sample gets its own id, in row order.

    Returns:
        int64 [rows], or [packed samples] where ``lengths_column`` is present.

    Raises:
        DataError: if the column is missing, holds no integer lists, or a row is null.
    """
    lists = token_lists(dataset, column, mask_column=mask_column, lengths_column=lengths_column)
    return np.concatenate([np.empty(0, np.int64), *(ids_of_lists(*one) for one in lists)])


def token_lists(
    dataset: Any,
    column: str = "input_ids",
    *,
    mask_column: str | None = "attention_mask",
    lengths_column: str | None = "seq_lengths",
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Yield the tokens of a data set in row order, some thousand rows at a time.

    Args:
        dataset: see `content_ids_column`.
        column: see `content_ids_column`.
        mask_column: see `content_ids_column`.
        lengths_column: see `content_ids_column`.

    Yields:
        (tokens, offsets, mask): list i of the block, which is one sample, is
        ``tokens[offsets[i]:offsets[i + 1]]``; mask is shaped like tokens, 0 on padding, or None.

    Raises:
        DataError: see `content_ids_column`.
    """
    names = _column_names(dataset)
    if column not in names:
        raise DataError(
            f"column {column!r}: not in the data set, whose columns are {sorted(names)}; "
            "tokenise it first or name the token column"
        )
    mask_column = mask_column if mask_column in names else None
    lengths_column = lengths_column if lengths_column in names else None
    wanted = [name for name in (column, mask_column, lengths_column) if name]
    row = 0
    for batch in _arrow_batches(dataset, wanted):
        tokens, offsets = _flat_list(batch[column], column, row)
        mask = None
        if mask_column:
            mask, mask_offsets = _flat_list(batch[mask_column], mask_column, row)
            if not np.array_equal(mask_offsets, offsets):
                raise DataError(
                    f"column {mask_column!r}: its lists must be as long as those of {column!r}; "
                    "drop the column or tokenise again"
                )
        row += len(offsets) - 1
        if lengths_column:
            offsets = _packed_offsets(batch[lengths_column], lengths_column, offsets)
        yield tokens, offsets, mask


def packed_rows(dataset: Any, lengths_column: str = "seq_lengths") -> np.ndarray | None:
    """Return the packed row of each sample, int64 [samples]; None if nothing is packed."""
    if lengths_column not in _column_names(dataset):
        return None
    sizes = [np.empty(0, np.int64)]
    for batch in _arrow_batches(dataset, [lengths_column]):
        _, offsets = _flat_list(batch[lengths_column], lengths_column, 0)
        sizes.append(np.diff(offsets))
    per_row = np.concatenate(sizes)
    return np.repeat(np.arange(len(per_row)), per_row)


def ids_of_lists(
    tokens: np.ndarray, offsets: np.ndarray, mask: np.ndarray | None = None
) -> np.ndarray:
    """Hash the lists ``tokens[offsets[i]:offsets[i + 1]]``.

    Args:
        tokens: integer [N].
        offsets: int64 [n + 1], non-decreasing.
        mask: [N], 0 on padding, or None.

    Returns:
        int64 [n].
    """
    count = len(offsets) - 1
    ids = np.empty(count, np.int64)
    first = 0
    while first < count:
        limit = offsets[first] + TOKENS_PER_BLOCK
        last = max(int(np.searchsorted(offsets, limit, side="right")) - 1, first + 1)
        last = min(last, count)
        begin, end = offsets[first], offsets[last]
        block_mask = None if mask is None else mask[begin:end]
        ids[first:last] = _ids_of_block(
            tokens[begin:end], offsets[first : last + 1] - begin, block_mask
        )
        first = last
    return ids


def _ids_of_block(tokens: np.ndarray, offsets: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Hash one block of lists; offsets start at 0."""
    lengths = np.diff(offsets)
    if mask is not None and not np.all(mask):
        keep = mask != 0
        kept_before = np.concatenate(([0], np.cumsum(keep)))
        tokens, offsets = tokens[keep], kept_before[offsets]
        lengths = np.diff(offsets)
    key = tokens.astype(np.int64).view(np.uint64)
    np.left_shift(key, np.uint64(32), out=key)
    key += np.arange(len(tokens), dtype=np.uint64)
    key -= np.repeat(offsets[:-1].astype(np.uint64), lengths)
    _mix_in_place(key)
    total = np.zeros(len(lengths), np.uint64)
    filled = lengths > 0  # reduceat returns the next element, not 0, for an empty list
    if filled.any():
        total[filled] = np.add.reduceat(key, offsets[:-1][filled])
    total += lengths.astype(np.uint64) * np.uint64(GAMMA)
    _mix_in_place(total)
    ids = total.view(np.int64)
    ids[ids == UNUSED_ID] = UNUSED_ID - 1
    return ids


def _mix_in_place(value: np.ndarray) -> None:
    """Apply the splitmix64 step to uint64 values; the twin of ``content_id._mix``."""
    scratch = np.empty_like(value)
    value += np.uint64(GAMMA)
    for shift, multiplier in zip(SHIFTS, (MULTIPLIER_1, MULTIPLIER_2, 1), strict=True):
        np.right_shift(value, np.uint64(shift), out=scratch)
        np.bitwise_xor(value, scratch, out=value)
        if multiplier != 1:
            np.multiply(value, np.uint64(multiplier), out=value)


def _packed_offsets(lengths: Any, name: str, offsets: np.ndarray) -> np.ndarray:
    """Turn lists of sample lengths into offsets of the samples over the same tokens."""
    sizes, bounds = _flat_list(lengths, name, 0)
    ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    if not np.array_equal(ends[bounds], offsets - offsets[0]):
        raise DataError(
            f"column {name!r}: the lengths in a row must add up to the row's tokens; drop the "
            "column if it means something else"
        )
    return ends + offsets[0]


def _column_names(dataset: Any) -> list[str]:
    """Return the columns of a data set or of the first mapping in a sequence."""
    names = getattr(dataset, "column_names", None)
    if names is None:
        names = list(dataset[0]) if len(dataset) else []
    return list(names)


def _arrow_batches(dataset: Any, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Yield {column: Arrow array} in row order, some thousand rows at a time."""
    if hasattr(dataset, "select_columns") and hasattr(dataset, "with_format"):
        view = dataset.select_columns(columns).with_format("arrow")
        for table in view.iter(batch_size=ROWS_PER_BATCH):
            yield {name: table.column(name) for name in columns}
        return
    for first in range(0, len(dataset), ROWS_PER_BATCH):
        rows = [dataset[i] for i in range(first, min(first + ROWS_PER_BATCH, len(dataset)))]
        yield {name: pa.array([_plain(row[name]) for row in rows]) for name in columns}


def _plain(tokens: Any) -> np.ndarray:
    """Return the tokens of one row as something Arrow takes."""
    array = np.asarray(tokens).reshape(-1)
    return array if array.size else array.astype(np.int64)  # numpy reads [] as floats


def _flat_list(column: Any, name: str, first_row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (values, offsets) of an Arrow list column; offsets index values and start anywhere."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # an empty or oversized column stays chunked
        array = pa.concat_arrays(array.chunks) if array.num_chunks else array
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if len(array) == 0:
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    kind = array.type
    if not (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    ) or not pa.types.is_integer(kind.value_type):
        raise DataError(
            f"column {name!r}: must hold lists of integers, got {kind}; tokenise it first"
        )
    if array.null_count:
        missing = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(
            f"row {first_row + missing}, column {name!r}: is null, needs a list of integers; "
            "drop the row"
        )
    if pa.types.is_fixed_size_list(kind):
        values, offsets = array.flatten(), np.arange(len(array) + 1) * kind.list_size
    else:
        values, offsets = array.values, array.offsets.to_numpy()
    if values.null_count:
        raise DataError(f"column {name!r}: holds null tokens; tokenise the data set again")
    return values.to_numpy(), offsets.astype(np.int64)
