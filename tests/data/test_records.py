"""Every accepted format, and every way a file can be wrong."""

import csv
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import DataError


def write(path, rows, suffix):
    path = path / f"data{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_file_type_gives_the_same_rows(tmp_path, suffix):
    rows = [
        {"instruction": "Add, please", "input": "1\n2", "output": "3", "tag": "a"},
        {"instruction": "问", "input": "", "output": "答", "tag": "b"},
    ]
    found = load_records(write(tmp_path, rows, suffix))
    assert found.column_names == ["prompt", "response", "tag"]
    assert found.to_list() == [
        {"prompt": "Add, please\n\n1\n2", "response": "3", "tag": "a"},
        {"prompt": "问", "response": "答", "tag": "b"},
    ]


@pytest.mark.parametrize("answer", ["completion", "response"])
def test_prompt_and_answer_keep_other_fields_of_any_shape(tmp_path, answer):
    rows = [
        {"prompt": "p", answer: "r", "meta": {"a": 1}, "mixed": 1, "fault": None},
        {"prompt": "q", answer: "", "meta": {"b": [2]}, "mixed": "x", "fault": "empty"},
    ]
    found = load_records(write(tmp_path, rows, ".jsonl"))
    assert found["prompt"][:] == ["p", "q"] and found["response"][:] == ["r", ""]
    assert found[0]["meta"]["a"] == 1 and found[1]["meta"]["b"] == [2]
    assert found["fault"][:] == [None, "empty"]
    assert found["mixed"][:] == ["1", '"x"']  # no Arrow type holds both


def test_conversations(tmp_path):
    def turns(*pairs):
        return [{"role": role, "content": content} for role, content in pairs]

    long = turns(("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"))
    rows = [
        {"messages": turns(("user", "hi"), ("assistant", "hello"))},
        {"messages": [*long, *turns(("assistant", "d"))], "source": "x"},
        {"prompt": long, "completion": turns(("assistant", "d"))},
    ]
    path = write(tmp_path, rows, ".jsonl")
    found = load_records(path)
    assert found[0]["prompt"] == "hi" and found[0]["response"] == "hello"
    assert found[0]["messages"] is None
    assert found[1]["prompt"] == "system: S\nuser: a\nassistant: b\nuser: c"
    assert found[1]["messages"] == found[2]["messages"] == rows[1]["messages"]
    assert found["source"][:] == [None, "x", None]
    again = load_records(write(tmp_path, found.to_list(), ".json"))
    assert again.to_list() == found.to_list()  # what we wrote loads as it was


def test_self_instruct_instances(tmp_path):
    instances = [{"input": "x", "output": "1"}, {"input": "", "output": "2"}]
    rows = [{"id": "t", "instruction": "Do", "instances": instances}]
    found = load_records(write(tmp_path, rows, ".jsonl"))
    assert found["prompt"][:] == ["Do\n\nx", "Do"] and found["id"][:] == ["t", "t"]


def test_a_field_named_like_ours_survives(tmp_path):
    rows = [{"instruction": "i", "output": "o", "prompt": "template", "messages": None}]
    found = load_records(write(tmp_path, rows, ".jsonl"))
    assert found.to_list() == [{"prompt": "i", "response": "o", "original_prompt": "template"}]


def test_preferences(tmp_path):
    rows = [{"prompt": "p", "chosen": "c", "rejected": "r", "dimension": "logic", "n": 1}]
    path = write(tmp_path, rows, ".jsonl")
    assert load_records(path, "dimension_preference").to_list() == rows
    assert load_records(path, "preference").to_list() == rows
    assert load_records(path, "dimension_preference", dimensions=("logic", "style")).num_rows == 1
    rows[0] = {"prompt": "p", "chosen": [{"role": "assistant", "content": "c"}], "rejected": "r"}
    assert load_records(write(tmp_path, rows, ".json"), "preference")[0]["chosen"] == "c"


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_ratings(tmp_path, suffix):
    rows = [
        {"prompt": "p", "response": "r", "factual": 1, "logic": 0.25, "compliance": None},
        {"prompt": "p", "response": "s", "factual": 0, "logic": None, "compliance": 0.5},
    ]
    found = load_records(write(tmp_path, rows, suffix), "rating")
    assert found["factual"][:] == [1.0, 0.0]
    assert found["logic"][:] == [0.25, None] and found["compliance"][:] == [None, 0.5]
    assert found.features["logic"].dtype == "float64"


def test_not_a_number_is_the_null_of_tables(tmp_path):
    table = {"prompt": ["p"], "response": ["r"], "factual": [float("nan")], "logic": [0.1]}
    pq.write_table(pa.table({**table, "compliance": [1.0]}), tmp_path / "data.parquet")
    assert load_records(tmp_path / "data.parquet", "rating")["factual"][:] == [None]


def test_folders_lists_and_json_variants(tmp_path):
    write(tmp_path, [{"prompt": "a", "response": "1"}], ".jsonl")
    (tmp_path / "more.json").write_text('{"data": [{"prompt": "b", "response": "2"}]}')
    (tmp_path / "lines.json").write_text('{"prompt": "c", "response": "3"}\n' * 2)
    (tmp_path / "notes.txt").write_text("not data")
    assert load_records(tmp_path)["prompt"][:] == ["a", "c", "c", "b"]
    files = [tmp_path / "more.json", str(tmp_path / "data.jsonl")]
    assert load_records(files)["prompt"][:] == ["b", "a"]


def test_byte_order_mark_and_blank_lines(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "response": "b"}\r\n\r\n')
    assert load_records(path).num_rows == 1


GOOD = '{"prompt": "p", "response": "r"}\n'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", "", "holds no record"),
        ("d.jsonl", GOOD + "{oops\n", "d.jsonl, line 2: not JSON"),
        ("d.jsonl", GOOD + "[1]\n", "line 2: must be a JSON object, got list"),
        ("d.jsonl", GOOD.encode() + b'{"prompt": "\xff"}\n', "line 2: not UTF-8"),
        ("d.jsonl", GOOD + '{"prompt": null, "response": "r"}', "line 2, field 'prompt'.*null"),
        ("d.jsonl", '{"prompt": "p", "response": 42}', "line 1, field 'response'.*text, got 42"),
        ("d.jsonl", '{"prompt": "\\ud800", "response": ""}', "'prompt': must be valid Unicode"),
        ("d.jsonl", '{"instruction": "i", "ouput": "o"}', "did you mean 'output' for 'ouput'"),
        ("d.jsonl", '{"a": 1}', r"sft records need \(instruction, output\).*got \['a'\]"),
        ("d.jsonl", '{"messages": []}', "field 'messages'"),
        ("d.jsonl", '{"messages": [{"role": "user"}]}', r"messages\[0\].content.*null"),
        ("d.jsonl", '{"messages": [{"role": "user", "content": "x"}]}', "last turn"),
        ("d.jsonl", '{"instruction": "i", "instances": []}', "instances"),
        ("d.jsonl", "[" * 100_000, "not JSON"),
        (
            "d.json",
            '[\n{"prompt": "p", "response": "r"},\n{"prompt": 1, "response": ""}]',
            "line 3",
        ),
        ("d.json", '[{"prompt": "p", "response": "r"}', "d.json, line 1: not JSON"),
        ("d.json", "[\n{},\n]", "line 3|line 2"),
        ("d.csv", "prompt,response\na\n", "d.csv, line 2: has more or fewer fields"),
        ("d.csv", "prompt,response\na,b,c\n", "line 2: has more or fewer fields"),
        ("d.csv", "prompt,prompt\na,b\n", "line 1: column 'prompt' is named twice"),
        ("d.csv", 'prompt,response\n"a"x,b\n', "line 2: not CSV"),
        ("d.csv", b"prompt,response\n\xff,b\n", "not UTF-8"),
        ("d.parquet", "PAR1 nonsense", "not a readable Parquet file"),
        ("d.pkl", "x", "unknown suffix '.pkl'"),
    ],
)
def test_a_bad_file_is_one_line_with_the_place(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as caught:
        load_records(path)
    assert "\n" not in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("value", ["1.5", "-0.1", "true", '"high"', "[1]"])
def test_ratings_outside_their_range(tmp_path, value):
    row = f'{{"prompt": "p", "response": "r", "factual": {value}, "logic": 1, "compliance": 1}}'
    (tmp_path / "d.jsonl").write_text(row)
    with pytest.raises(DataError, match=r"line 1, field 'factual': must be a number in \[0, 1\]"):
        load_records(tmp_path / "d.jsonl", "rating")


def test_missing_fields_of_other_kinds(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "p", "choosen": "c", "rejected": "r"}')
    with pytest.raises(DataError, match="did you mean 'chosen' for 'choosen'"):
        load_records(tmp_path / "d.jsonl", "preference")
    with pytest.raises(DataError, match="rating records need"):
        load_records(tmp_path / "d.jsonl", "rating")
    (tmp_path / "e.jsonl").write_text(
        '{"prompt": "p", "chosen": "c", "rejected": "r", "dimension": "logik"}'
    )
    with pytest.raises(DataError, match="did you mean 'logic'"):
        load_records(tmp_path / "e.jsonl", "dimension_preference")


def test_missing_paths_folders_and_kinds(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_records(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="the folder holds no"):
        load_records(tmp_path)
    with pytest.raises(DataError, match="kind: must be one of"):
        load_records(tmp_path, "sftt")


def test_hub_data_sets(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = datasets.Dataset.from_dict({"prompt": ["p", "q"], "completion": ["r", None]})
    asked = []

    def fake(name, split):
        asked.append((name, split))
        return rows.select(range(2 if split == "bad" else 1))

    monkeypatch.setattr(datasets, "load_dataset", fake)
    assert load_records("someone/something", split="test")["response"][:] == ["r"]
    assert asked == [("someone/something", "test")]
    with pytest.raises(DataError, match=r"someone/something\[bad\], row 1, field 'completion'"):
        load_records("someone/something", split="bad")

    def refuse(name, split):
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=r"someone/something.*connection"):
        load_records("someone/something")
