"""`analyze`: files in, findings and a drawn set out."""

import json
import re

import pytest

from hf_glm_curriculum.commands.main import main

ROWS = [
    {"prompt": f"Write a story about {number} lost {animal}s.", "response": "…", "category": "open"}
    for number, animal in enumerate(("cat", "dog", "owl", "fox", "hen"))
] + [{"prompt": f"What is {n} + {n}?", "response": str(2 * n), "category": "sum"} for n in range(9)]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), "utf-8")
    return path


def test_findings_are_written_and_shown(data, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["analyze", str(data), "--out", str(out)]) == 0
    found = json.loads((out / "analysis.json").read_text("utf-8"))
    assert found["rows"] == 14 and found["labels"]["category"] == {"sum": 9, "open": 5}
    assert found["verbs"]["write"] == 5 and found["background"] == "bundled tables"
    assert found["templates"][0]["rows"] == 9
    assert (out / "entropy.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert "14 instructions" in shown and "instruction" in shown and "script and length" in shown


def test_the_page_escapes_what_rows_contain_and_loads_nothing(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"prompt": "Explain <script>alert(1)</script> & more", "response": "x"}
    path.write_text(json.dumps(row) + "\n", "utf-8")
    assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "analysis.html").read_text("utf-8")
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert not re.search(r'(src|href)="(?!data:|#)', page)


def test_a_set_is_drawn_to_bands_and_nothing_is_lost_unsaid(data, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--resample", "0:12=0.5", "12:40=0.5", "--seed", "3"]
    assert main(["analyze", str(data), "--out", str(out), *words]) == 0
    drawn = [json.loads(x) for x in (out / "resampled.jsonl").read_text("utf-8").splitlines()]
    kinds = [row["category"] for row in drawn]
    assert kinds.count("open") == kinds.count("sum") == 5
    assert all(row in ROWS for row in drawn)
    assert "0 are repeats, 4 of 14 rows are left out" in capsys.readouterr().out


def test_counts_of_ones_own_data_are_kept_and_used_again(data, tmp_path):
    kept = tmp_path / "counts.safetensors"
    first = ["analyze", str(data), "--out", str(tmp_path / "a"), "--fit"]
    assert main([*first, "--save-background", str(kept)]) == 0
    again = ["analyze", str(data), "--out", str(tmp_path / "b"), "--background", str(kept)]
    assert main(again) == 0
    one, two = (json.loads((tmp_path / x / "analysis.json").read_text("utf-8")) for x in "ab")
    assert one["background"] == "counted on 14 documents"
    assert one["entropy"] == two["entropy"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--resample", "5=1"], "LOW:HIGH=SHARE"),
        (["--resample", "90:99=1"], "no row lies in 90:99"),
        (["--size", "5"], "belong to --resample"),
        (["--save-background", "x"], "add --fit"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--column", "absent"], "has no 'absent'"),
        (["--background", "nowhere.safetensors"], "nowhere.safetensors"),
    ],
)
def test_bad_input_is_one_line(data, tmp_path, capsys, extra, words):
    assert main(["analyze", str(data), "--out", str(tmp_path / "out"), *extra]) == 2
    said = capsys.readouterr().err
    assert words in said and said.startswith("error: ") and said.count("\n") == 1


def test_files_without_records_or_instructions_are_named(tmp_path, capsys):
    empty, other = tmp_path / "empty.jsonl", tmp_path / "other.jsonl"
    empty.write_text("", "utf-8")
    other.write_text('{"label": 3}\n', "utf-8")
    for path in (empty, other, tmp_path / "absent.jsonl"):
        assert main(["analyze", str(path), "--out", str(tmp_path / "out")]) == 2
        assert str(path) in capsys.readouterr().err
