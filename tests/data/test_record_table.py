"""Rows into Arrow a batch at a time: the same table as at once, in files that leave no trace."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.data import record_table
from hf_glm_curriculum.data.record_table import fingerprint, table_of
from hf_glm_curriculum.data.records import dataset_of, load_records
from hf_glm_curriculum.errors import StateError

VALUES = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.floats(-2, 2),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.sampled_from("xy"), st.integers(0, 3), max_size=2),
)
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["prompt", "meta", "tag"]), VALUES, min_size=1), max_size=9
)


@pytest.fixture
def small(monkeypatch):
    """Two rows a batch, and every two batches into a file."""
    monkeypatch.setattr(record_table, "ROWS_PER_BATCH", 2)
    monkeypatch.setattr(record_table, "MEMORY_BYTES", 40)


def at_once(rows):
    """The naive version."""
    names = dict.fromkeys(name for row in rows for name in row)
    arrays = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            arrays[name] = pa.array(values)
        except pa.ArrowException:
            arrays[name] = None
    return arrays


@given(ROWS)
@settings(max_examples=150, deadline=None)
def test_batches_make_the_table_that_all_rows_at_once_make(rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_table, "ROWS_PER_BATCH", 2)
        patch.setattr(record_table, "MEMORY_BYTES", 40)
        table = table_of(rows)
    expected = at_once(rows)
    assert table.column_names == list(expected) and table.num_rows == (len(rows) if expected else 0)
    for name, column in expected.items():
        if column is not None:
            assert table[name].to_pylist() == column.to_pylist(), name
        else:
            assert pa.types.is_string(table[name].type)


def test_mixed_types_become_json_text_in_every_batch(small, caplog):
    values = ["a", "b", 1, 2, None, {"k": [1]}, "c"]
    table = table_of([{"x": value, "n": i} for i, value in enumerate(values)])
    assert table["x"].to_pylist() == ['"a"', '"b"', "1", "2", "null", '{"k": [1]}', '"c"']
    assert table["n"].to_pylist() == list(range(7))
    assert caplog.text.count("field 'x' does not fit one Arrow type") == 1


def test_types_widen_from_batch_to_batch(small):
    rows = [{"a": None}, {"a": None}, {"a": 1}, {"a": 2}, {"a": 2.5}, {"a": 1, "b": {"x": 1}}]
    rows += [{"a": 1}, {"a": 1, "b": {"y": "t"}}]
    table = table_of(rows)
    assert table["a"].to_pylist() == [None, None, 1.0, 2.0, 2.5, 1.0, 1.0, 1.0]
    assert table["b"].to_pylist()[5:] == [{"x": 1, "y": None}, None, {"x": None, "y": "t"}]


def test_files_are_unlinked_at_once_and_read_all_the_same(small, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = [{"prompt": f"问题 {i}", "response": "x" * i} for i in range(50)]
    before = pa.total_allocated_bytes()
    data = dataset_of(rows)
    assert os.listdir(tmp_path) == []
    assert data.to_list() == rows and data[49] == rows[49]
    maps = Path("/proc/self/maps").read_text().splitlines()
    maps = [line for line in maps if "hf_glm_curriculum-" in line]
    assert len(maps) >= 10 and all("(deleted)" in line for line in maps)
    assert pa.total_allocated_bytes() - before < sum(map(len, map(str, rows)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    with pytest.raises((StateError, OSError)):
        dataset_of(rows)


def test_the_fingerprint_follows_the_content_alone(tmp_path):
    rows = [{"prompt": "p", "response": "r", "n": 1}]
    same, other = table_of(rows), table_of([{**rows[0], "n": 2}])
    assert fingerprint(same) == fingerprint(table_of([dict(rows[0])])) != fingerprint(other)
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p", "response": "r"}\n')
    first = load_records(path)._fingerprint
    assert first == load_records(path)._fingerprint
    path.write_text('{"prompt": "p", "response": "s"}\n')
    assert first != load_records(path)._fingerprint
