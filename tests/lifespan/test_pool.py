"""The pool: read back, exported for annotators, and their answers read."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.lifespan.answers import read_answers
from hf_glm_curriculum.lifespan.pool import csv_cell, from_csv_cell, id_text, parse_id, read_pool
from tests.lifespan.pools import pairs, pool_line, read_jsonl, write_jsonl, write_pool

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "run", [pool_line(k, *pair) for k, pair in enumerate(pairs())])


def test_rows_are_typed_and_keep_their_order(run):
    pool = read_pool(run)
    assert [row.row for row in pool.rows] == [0, 1, 2, 3, 4, 5]
    first = pool.rows[0]
    assert (first.prompt, first.response) == ("Question number 0?", "Answer number 0.")
    assert first.signals["loss"] == 3.0 and first.verdict == "RELABEL" and first.suspicion == 5.0
    assert pool.by_id[first.id] is first and pool.by_row[0] is first


def test_a_pool_is_found_in_the_run_its_folder_or_by_name(run):
    for source in (run, run / "lifespan", run / "lifespan" / "observation_pool.jsonl"):
        assert read_pool(source).path == run / "lifespan" / "observation_pool.jsonl"


def test_what_holds_no_pool_or_several_is_named(run, tmp_path):
    with pytest.raises(DataError, match="no such run folder"):
        read_pool(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="finish the run"):
        read_pool(tmp_path / "empty")
    other = run / "second"
    other.mkdir()
    (other / "observation_pool.jsonl").write_text("", "utf-8")
    with pytest.raises(DataError, match="name one of lifespan, second"):
        read_pool(run)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"row": "1"}, "row"),
        ({"id": 2**64}, "id"),
        ({"id": True}, "id"),
        ({"text": "words"}, "text"),
        ({"text": {"prompt": "p"}}, "response"),
        ({"text": {"prompt": "p", "response": "\ud800"}}, "response"),
        ({"signals": None}, "signals"),
        ({"signals": {"loss": "high"}}, "loss"),
        ({"verdict": "TRAINING"}, "verdict"),
        ({"suspicion": float("nan")}, "suspicion"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, changes, field):
    lines = [pool_line(0, "p", "r"), pool_line(1, "p", "r", **changes)]
    with pytest.raises(DataError, match=rf"observation_pool.jsonl, line 2, field '{field}'"):
        read_pool(write_pool(tmp_path, lines))


def test_a_sample_twice_in_the_pool_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"line 2: sample 0x7a0.* twice"):
        read_pool(write_pool(tmp_path, [pool_line(0, "p", "r"), pool_line(0, "q", "r")]))


def test_packed_rows_have_no_text(tmp_path):
    row = read_pool(write_pool(tmp_path, [pool_line(0, None, None, suspicion=None)])).rows[0]
    assert row.prompt is None and row.response is None and row.suspicion is None


# -- export ------------------------------------------------------------------------------------


def test_every_export_holds_the_same_rows(run, tmp_path):
    pool = read_pool(run)
    lines = read_jsonl(pool.export(tmp_path / "p.jsonl"))
    with pool.export(tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    parquet = datasets.Dataset.from_parquet(str(pool.export(tmp_path / "p.parquet")))
    disk = datasets.load_from_disk(str(pool.export(tmp_path / "folder")))
    assert disk.to_list() == parquet.to_list() == pool.to_dataset().to_list()
    for row, line, cell, record in zip(pool.rows, lines, cells, disk, strict=True):
        assert line["row"] == int(cell["row"]) == record["row"] == row.row
        assert line["id"] == cell["id"] == id_text(row.id) and record["id"] == row.id
        assert line["response"] == cell["response"] == record["response"] == row.response
        assert line["grad_norm"] == float(cell["grad_norm"]) == row.signals["grad_norm"]
        assert line["decision"] is None and cell["decision"] == "" and record["decision"] is None


def test_an_export_never_replaces_a_full_folder_and_leaves_no_part(run, tmp_path):
    pool = read_pool(run)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x", "utf-8")
    with pytest.raises(StateError, match="full"):
        pool.export(tmp_path / "full")
    assert (tmp_path / "full" / "precious").exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    with pytest.raises(DataError, match=r"unknown suffix '.xlsx'"):
        pool.export(tmp_path / "pool.xlsx")


def test_csv_cells_are_no_formulas(tmp_path):
    evil = '=HYPERLINK("http://x","y")'
    pool = read_pool(write_pool(tmp_path, [pool_line(0, evil, "-1")]))
    with pool.export(tmp_path / "p.csv").open(encoding="utf-8", newline="") as file:
        cell = next(csv.DictReader(file))
    assert cell["prompt"] == f"'{evil}" and cell["response"] == "'-1"


@given(TEXT)
def test_csv_cells_round_trip(text):
    cell = csv_cell(text)
    assert from_csv_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))


@given(st.integers(-(2**63), 2**63 - 1))
def test_ids_round_trip_as_text_and_numbers(number):
    assert parse_id(id_text(number), "here") == parse_id(str(number), "here") == number
    assert parse_id(number, "here") == number


# -- answers -----------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5),
    st.data(),
    st.sampled_from([".csv", ".jsonl", ".parquet"]),
)
def test_answers_survive_every_file_format(texts, data, suffix):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pool = read_pool(write_pool(folder, [pool_line(k, p, r) for k, (p, r) in enumerate(texts)]))
        records = pool.to_dataset().to_list()
        expected = {}
        for record, row in zip(records, pool.rows, strict=True):
            decision = data.draw(st.sampled_from([None, "keep", "fix", "drop"]))
            record["decision"] = decision
            if decision == "fix":
                fixes = TEXT.filter(lambda text, row=row: text.strip() and text != row.response)
                record["corrected_response"] = data.draw(fixes)
            if decision:
                expected[row.id] = (decision, record["corrected_response"])
        path = folder / f"answers{suffix}"
        _write_answers(records, path)
        answers = {a.id: (a.decision, a.response) for a in read_answers(path, pool)}
        assert answers == expected


def _write_answers(records: list[dict], path: Path) -> None:
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(records).to_parquet(path)
    elif path.suffix == ".jsonl":
        write_jsonl(path, records)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows({k: csv_cell(v) for k, v in r.items()} for r in records)


def test_a_spreadsheet_may_change_line_ends_only(tmp_path):
    pool = read_pool(write_pool(tmp_path, [pool_line(0, "one\ntwo", "three")]))
    path = write_jsonl(
        tmp_path / "a.jsonl", [{"row": 0, "prompt": "one\r\ntwo", "decision": "Keep "}]
    )
    assert read_answers(path, pool)[0].decision == "keep"


KEEP = {"row": 1, "decision": "keep"}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([KEEP, {"row": 99, "decision": "keep"}], "line 2, field 'row': 99 is not in"),
        ([{"id": "0x1", "decision": "keep"}], "line 1, field 'id': 0x0000000000000001 is not in"),
        ([{"id": "1.2E+18", "decision": "keep"}], "line 1, field 'id': .* rounded"),
        ([{"row": "two", "decision": "keep"}], "line 1, field 'row': must be a whole number"),
        ([{"decision": "keep"}], "line 1: names no sample"),
        ([{"row": 1}], "line 1: an answer needs decision"),
        ([{"row": 1, "id": 0x7A00_0000_0000_0002, "decision": "drop"}], "content has changed"),
        ([{**KEEP, "prompt": "Another?"}], "line 1, field 'prompt': differs from the pool's"),
        ([{**KEEP, "response": "Other."}], "line 1, field 'response': differs from the pool's"),
        ([{"row": 1, "decision": "maybe"}], "must be one of keep, fix, drop, got 'maybe'"),
        ([{"row": 1, "decision": "fix"}], "line 1, .* needs the corrected answer"),
        ([{"row": 1, "decision": "fix", "corrected_response": " \n"}], "needs the corrected"),
        (
            [{"row": 1, "decision": "fix", "corrected_response": "Answer number 1."}],
            "is the answer as it was",
        ),
        ([{**KEEP, "corrected_response": "New."}], "is given with decision 'keep'"),
        ([{"row": 1, "decision": "", "corrected_response": "New."}], "'decision': is empty"),
        ([{"row": 1, "decision": 3}], "must be text, got 3"),
        ([{"row": 1, "decision": "fix", "corrected_response": "\ud800"}], "valid Unicode"),
        ([KEEP, KEEP], "line 2: repeats the answer .* line 1"),
        ([KEEP, {"id": "0x7a00000000000001", "decision": "drop"}], "line 2: contradicts"),
    ],
)
def test_what_is_wrong_with_an_answer_is_named_with_its_line(run, tmp_path, answers, message):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(a) + "\n" for a in answers), "utf-8")
    with pytest.raises(DataError, match=message):
        read_answers(path, read_pool(run))


def test_undecided_records_are_passed_over(run, tmp_path):
    rows = [
        {"row": 0, "decision": None},
        {"row": 1, "decision": " "},
        {"row": 2, "decision": "drop"},
    ]
    answers = read_answers(write_jsonl(tmp_path / "a.jsonl", rows), read_pool(run))
    assert [(a.decision, a.place.rsplit(",")[-1]) for a in answers] == [("drop", " line 3")]
