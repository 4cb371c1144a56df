"""Ids by content of the text: the same in every spelling, and written without touching the rest."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.data.record_ids import record_id, with_id, write_ids
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import DataError, StateError

CHINESE = (
    '{"instruction": "什么是位图？", "input": "", "output": "由像素组成的图像。", "topic": "图形"}'
)


def made(**fields):
    return record_id(RawRecord("here", fields))


def test_an_id_follows_the_text_alone():
    one = made(prompt="Why?", response="So.", meta={"a": 1})
    assert len(one) == 32 and int(one, 16)
    assert one == made(instruction="Why?", input="", output="So.", source="x")
    assert one == made(messages=[{"role": "user", "content": "Why?"},
                                 {"role": "assistant", "content": "So."}])  # fmt: skip
    others = [
        made(prompt="Why? ", response="So."),
        made(prompt="Why?", response="so."),
        made(prompt="So.", response="Why?"),
        made(prompt="Why?So.", response=""),
        made(prompt="为什么？", response="So."),
    ]
    assert len({one, *others}) == 6
    # Fixed: files that carry ids outlive versions of the package.
    assert one == "f5fa647e99b610109bb760064ca6f43c"


def test_round_trip_keeps_order_fields_and_spelling(tmp_path):
    lines = [
        '{"prompt": "Why?", "response": "So.", "score": 1.0, "big": 12345678901234567890}',
        CHINESE,
        '{ "meta" : {"source": "手写", "n": [1, {"id": "inner"}]} , "prompt":"a","response":"b"  }',
        '{"meta": null, "prompt": "\\u4e2d", "response": "\\"}, {"}',
        '{"prompt": "x", "response": "y", "meta": {}}',
        '{"prompt": "Why?", "response": "So.", "meta": {"id": null}}',
    ]
    source, out = tmp_path / "a.jsonl", tmp_path / "deep" / "b.jsonl"
    source.write_text("\ufeff" + "\n\n".join(lines) + "\n", "utf-8")
    assert write_ids(source, out) == len(lines)
    written = out.read_text("utf-8").splitlines()
    ids = []
    for before, after in zip(lines, written, strict=True):
        old, new = json.loads(before), json.loads(after)
        ids.append(new["meta"].pop("id"))
        (old.get("meta") or {}).pop("id", None)
        assert new["meta"] == (old.pop("meta", None) or {})
        new.pop("meta")
        assert new == old and list(new) == list(old)
    assert ids[0] == ids[5] and len(set(ids)) == 5
    assert '"score": 1.0, "big": 12345678901234567890, "meta"' in written[0]
    assert "什么是位图？" in written[1] and '"\\u4e2d"' in written[3]
    again = tmp_path / "c.jsonl"
    assert write_ids([out], again) == len(lines) and again.read_bytes() == out.read_bytes()
    assert write_ids(out, out) == len(lines) and again.read_bytes() == out.read_bytes()
    assert load_records(out)["prompt"][:] == load_records(source)["prompt"][:]


def test_an_edited_text_is_noticed(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"prompt": "p", "response": "r"}\n')
    write_ids(source, source)
    edited = source.read_text().replace('"r"', '"s"')
    source.write_text(edited)
    with pytest.raises(DataError, match=r"a.jsonl, line 1, field 'meta.id': already holds"):
        write_ids(source, tmp_path / "b.jsonl")
    assert not (tmp_path / "b.jsonl").exists()
    write_ids(source, source, replace=True)
    assert json.loads(source.read_text())["meta"]["id"] == made(prompt="p", response="s")


@pytest.mark.parametrize("meta", ["text", 3, [1], True])
def test_meta_that_is_no_object_is_named_and_nothing_is_written(tmp_path, meta):
    source, out = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    rows = [{"prompt": "p", "response": "r"}, {"prompt": "p", "response": "r", "meta": meta}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out.write_text("older")
    with pytest.raises(DataError, match=r"line 2, field 'meta': must be an object or null"):
        write_ids(source, out)
    assert out.read_text() == "older" and sorted(os.listdir(tmp_path)) == ["a.jsonl", "b.jsonl"]


def test_other_files_and_unwritable_places_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("prompt,response\np,r\n")
    for name in ("a.csv", "absent.jsonl"):
        with pytest.raises(DataError, match=r"ids are written into .jsonl files"):
            write_ids(tmp_path / name, tmp_path / "b.jsonl")
    source = tmp_path / "a.jsonl"
    source.write_text('{"prompt": "p", "response": "r"}\n')
    with pytest.raises(StateError, match="cannot write"):
        write_ids(source, tmp_path / "a.csv" / "b.jsonl")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=4), JSON, max_size=4),
    st.none() | st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_any_record_keeps_everything_but_its_id(fields, meta, escaped, indent):
    row = {**fields, "meta": meta, "prompt": "p", "response": "r"}
    line = json.dumps(row, ensure_ascii=escaped, indent=indent)
    new = json.loads(with_id(line, "here", replace=True))
    assert new["meta"].pop("id") == made(prompt="p", response="r")
    assert new.pop("meta") == {k: v for k, v in (meta or {}).items() if k != "id"}
    row.pop("meta")
    assert new == row
