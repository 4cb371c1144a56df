"""Lookup of ids by rows: exact for any data set, duplicates merged, unknown ids learnt."""

import logging
import time

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data.content_id import UNUSED_ID, content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import DataError

INT64 = st.integers(-(2**63), UNUSED_ID - 1)


@given(st.lists(INT64, max_size=30), st.lists(INT64, max_size=10), st.randoms())
def test_lookup_agrees_with_a_dictionary(known, others, random):
    known = known + [x for x in known if random.random() < 0.3]
    first_row = {x: row for row, x in reversed(list(enumerate(known)))}
    index = SampleIndex(np.array(known, np.int64))
    asked = [*known, *others, UNUSED_ID]
    found = index.lookup(torch.tensor(asked, dtype=torch.int64)).tolist()
    assert found == [first_row.get(x, -1) for x in asked]
    assert index.duplicates.count == len(known) - len(first_row)
    groups = [[r for r, y in enumerate(known) if y == x] for x in dict.fromkeys(known)]
    assert index.duplicates.groups == [group for group in groups if len(group) > 1]


def test_from_dataset_finds_rows_of_batches(caplog):
    rows = [[1, 2, 3], [4], [1, 2, 3], [5, 6]]
    index = SampleIndex.from_dataset(datasets.Dataset.from_dict({"input_ids": rows}))
    assert "1 of 4 samples repeat" in caplog.text
    batch, mask = torch.tensor([[9, 5, 6], [1, 2, 3], [9, 9, 4]]), torch.ones(3, 3).long()
    mask[0, 0] = mask[2, 0] = mask[2, 1] = 0
    found = index.lookup(content_ids(batch, mask))
    assert found.tolist() == [3, 0, 1]
    assert index.duplicates.groups == [[0, 2]]
    assert index.lookup(content_ids(batch)).tolist() == [-1, 0, -1]


def test_packed_data_set_counts_samples():
    data = {"input_ids": [[1, 2, 3], [4, 5]], "seq_lengths": [[1, 2], [2]]}
    index = SampleIndex.from_dataset(datasets.Dataset.from_dict(data))
    assert len(index) == 3
    assert index.packed_row is not None and index.packed_row.tolist() == [0, 0, 1]
    assert index.lookup(content_ids(torch.tensor([[2, 3], [4, 5]]))).tolist() == [1, 2]


def test_unknown_ids_are_added_in_order_with_one_warning(caplog):
    index = SampleIndex(np.array([10, 20], np.int64))
    before = index.fingerprint
    with caplog.at_level(logging.WARNING):
        assert index.add(torch.tensor([7, 20, 3, 7])).tolist() == [2, 1, 3, 2]
        assert index.add(torch.tensor([-5])).tolist() == [4]
    assert len(caplog.records) == 1
    assert index.row_ids.tolist() == [10, 20, 7, 3, -5]
    assert index.lookup(torch.tensor([[3, 10], [-5, 8]])).tolist() == [[3, 0], [4, -1]]
    assert len(index) == 5
    assert index.fingerprint == before
    assert index.duplicates.count == 0


def test_streamed_data_start_empty_and_silent(caplog):
    index = SampleIndex.empty()
    assert index.lookup(torch.tensor([1])).tolist() == [-1]
    assert index.add(torch.tensor([1, 2])).tolist() == [0, 1]
    assert not caplog.records


def test_fingerprint_depends_on_order_and_content():
    prints = {SampleIndex(np.array(ids, np.int64)).fingerprint for ids in ([1, 2], [2, 1], [1, 3])}
    assert len(prints) == 3


def test_follows_ids_to_their_device():
    index = SampleIndex(np.array([3, 1, 2], np.int64))
    assert index.lookup(torch.zeros(4, dtype=torch.int64, device="meta")).shape == (4,)
    assert index.device.type == "meta"


@pytest.mark.parametrize("rows", [np.array([1.0]), np.array([[1]]), np.array([1], np.int32)])
def test_wrong_ids_are_refused(rows):
    with pytest.raises(DataError, match="row_ids"):
        SampleIndex(rows)


def test_data_that_cannot_be_indexed_is_refused():
    with pytest.raises(DataError, match="0 rows"):
        SampleIndex.from_dataset(datasets.Dataset.from_dict({"input_ids": []}))
    with pytest.raises(DataError, match="no length"):
        SampleIndex.from_dataset(iter([{"input_ids": [1]}]))


def test_lookup_cost_does_not_grow_with_rows():
    ids = torch.from_numpy(np.random.default_rng(0).integers(-(2**62), 2**62, 1_000_000))
    index = SampleIndex(ids)
    started = time.perf_counter()
    for first in range(0, 8000, 8):
        index.lookup(ids[first : first + 8])
    assert (time.perf_counter() - started) / 1000 < 2e-3  # a search by comparison takes far more
    assert index.lookup(ids[:100]).tolist() == list(range(100))
