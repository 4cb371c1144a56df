"""The numpy twin must give the torch ids bit by bit, whatever Arrow holds."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data import content_column
from hf_glm_curriculum.data.content_column import content_ids_column, ids_of_lists, packed_rows
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.errors import DataError

rows_of_tokens = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=9), min_size=1, max_size=30)


def one_by_one(rows: list[list[int]]) -> list[int]:
    return [content_ids(torch.tensor([row], dtype=torch.long)).item() for row in rows]


def random_rows(count: int = 200, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, 60_000, random.integers(0, 40)).tolist() for _ in range(count)]


@given(rows_of_tokens, st.integers(1, 12))
def test_equals_torch_for_any_block_size(rows, block):
    offsets = np.cumsum([0] + [len(row) for row in rows])
    tokens = np.array([token for row in rows for token in row], dtype=np.int64)
    before = content_column.TOKENS_PER_BLOCK
    content_column.TOKENS_PER_BLOCK = block
    try:
        assert ids_of_lists(tokens, offsets).tolist() == one_by_one(rows)
    finally:
        content_column.TOKENS_PER_BLOCK = before


@pytest.mark.parametrize("token_type", [pa.int32(), pa.int64(), pa.uint16()])
@pytest.mark.parametrize("make_list", [pa.list_, pa.large_list])
def test_list_types_chunks_slices_and_indices(token_type, make_list, monkeypatch):
    monkeypatch.setattr(content_column, "ROWS_PER_BATCH", 64)
    rows = random_rows()
    kind = make_list(token_type)
    chunks = [pa.array(rows[:50], kind), pa.array(rows[50:51], kind), pa.array(rows[51:], kind)]
    table = pa.table({"input_ids": pa.chunked_array(chunks)})
    expected = np.array(one_by_one(rows))
    dataset = datasets.Dataset(table)
    assert np.array_equal(content_ids_column(dataset), expected)
    assert np.array_equal(
        content_ids_column(datasets.Dataset(table.slice(13, 90))), expected[13:103]
    )
    assert np.array_equal(content_ids_column(dataset.select(range(7, 120))), expected[7:120])
    picked = [199, 3, 3, 51, 0]
    assert np.array_equal(content_ids_column(dataset.select(picked)), expected[picked])
    order = dataset.add_column("row", np.arange(len(rows))).shuffle(seed=5)
    assert np.array_equal(content_ids_column(order), expected[order["row"][:]])
    assert np.array_equal(content_ids_column(dataset.with_format("torch")), expected)


def test_fixed_size_lists():
    rows = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32(), 3))})
    assert content_ids_column(datasets.Dataset(table.slice(1))).tolist() == one_by_one(rows[1:])


def test_padding_in_the_column_does_not_count():
    rows = {"input_ids": [[1, 2, 0, 0], [0, 3], []], "attention_mask": [[1, 1, 0, 0], [0, 1], []]}
    found = content_ids_column(datasets.Dataset.from_dict(rows))
    assert found.tolist() == one_by_one([[1, 2], [3], []])


def test_packed_rows_give_one_id_a_sample():
    rows = {"input_ids": [[1, 2, 3], [4], [5, 6, 7, 8]], "seq_lengths": [[2, 1], [1], [1, 3]]}
    dataset = datasets.Dataset.from_dict(rows).select([2, 0, 1])
    found = content_ids_column(dataset)
    assert found.tolist() == one_by_one([[5], [6, 7, 8], [1, 2], [3], [4]])
    assert packed_rows(dataset).tolist() == [0, 0, 1, 1, 2]
    assert packed_rows(dataset.remove_columns("seq_lengths")) is None


def test_sequences_of_mappings_and_tensors():
    rows = random_rows(20)
    expected = one_by_one(rows)
    assert content_ids_column([{"input_ids": row} for row in rows]).tolist() == expected
    tensors = [{"input_ids": torch.tensor(row, dtype=torch.long)} for row in rows]
    assert content_ids_column(tensors).tolist() == expected


def test_empty_data_set():
    assert content_ids_column(datasets.Dataset.from_dict({"input_ids": []})).shape == (0,)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, "'input_ids'.*'text'"),
        ({"input_ids": ["a"]}, "lists of integers"),
        ({"input_ids": [[0.5]]}, "lists of integers"),
        ({"input_ids": [[1], None]}, "row 1"),
        ({"input_ids": [[1, None]]}, "null tokens"),
        ({"input_ids": [[1, 2]], "attention_mask": [[1]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "seq_lengths": [[1]]}, "seq_lengths"),
    ],
)
def test_bad_columns_are_named(columns, message):
    with pytest.raises(DataError, match=message):
        content_ids_column(datasets.Dataset.from_dict(columns))
