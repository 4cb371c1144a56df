"""`audit` on files with and without faults."""

import json

import pytest


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def faulty(tmp_path):
    rows = [
        {"prompt": f"Name the number after {i}.", "response": f"It is {i + 1}."} for i in range(9)
    ]
    return write(tmp_path / "rows.jsonl", [*rows, rows[0], {"prompt": "Why?", "response": ""}])


def test_findings_are_shown_and_written(cli, faulty, tmp_path):
    out = tmp_path / "out" / "deep"
    status, shown, _ = cli("audit", faulty, "--out", out)
    assert status == 0
    assert "11 records" in shown and "exact_duplicate" in shown and "empty_answer" in shown
    found = json.loads((out / "audit.json").read_text())
    assert found["summary"]["issues"]["exact_duplicate"] == 1
    assert (out / "audit.html").read_text().startswith("<!doctype html>")
    assert json.loads((out / "files.json").read_text())["files"] == 1


def test_copies_of_a_file_are_named_and_counted_once(cli, faulty, tmp_path):
    copy = tmp_path / "copies" / "rows.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(faulty.read_bytes())
    status, shown, errors = cli("audit", faulty, copy)
    assert status == 0
    assert "2 files with 1 distinct contents, 11 records" in shown
    assert "same content as" in errors


def test_faults_can_fail_a_pipeline(cli, faulty, tmp_path):
    assert cli("audit", faulty, "--fail-on-faults")[0] == 1
    clean = write(tmp_path / "clean.jsonl", [{"prompt": "What is 2 + 2?", "response": "It is 4."}])
    status, shown, _ = cli("audit", clean, "--fail-on-faults")
    assert status == 0 and "nothing found" in shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("", "holds no record"),
        ('{"prompt": ', "line 1: not JSON"),
        ('{"prompt": "a", "answer": "b"}', "line 1"),
        ("\n\n[1]\n", "line 3: must be a JSON object"),
    ],
)
def test_bad_files_are_one_line_and_leave_nothing(refused, tmp_path, content, words):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_text(content)
    assert words in refused("audit", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_threshold_and_an_unwritable_folder(refused, faulty, tmp_path):
    assert "--near-threshold must lie in (0, 1], got 2.0" in refused(
        "audit", faulty, "--near-threshold", 2
    )
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused("audit", faulty, "--out", tmp_path / "file" / "out")


def test_ids_are_written_into_a_copy(cli, refused, faulty, tmp_path):
    out = tmp_path / "ids.jsonl"
    status, shown, _ = cli("audit", faulty, "--write-ids", out)
    assert status == 0 and "11 records with ids" in shown
    rows = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    ids = [row.pop("meta")["id"] for row in rows]
    assert rows == [json.loads(line) for line in faulty.read_text("utf-8").splitlines()]
    assert ids[0] == ids[9] and len(set(ids)) == 10
    edited = write(tmp_path / "edited.jsonl", [{"prompt": "a", "response": "b", "meta": {"id": 7}}])
    assert "already holds 7" in refused("audit", edited, "--write-ids", tmp_path / "x.jsonl")
    assert cli("audit", edited, "--write-ids", tmp_path / "x.jsonl", "--replace-ids")[0] == 0
    table = tmp_path / "rows.csv"
    table.write_text("prompt,response\na,b\n")
    assert "ids are written into .jsonl files" in refused("audit", table, "--write-ids", out)
