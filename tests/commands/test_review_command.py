"""`review` on the command line: exports, refusals, and what it needs."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
from tests.lifespan.pools import pairs, pool_line, read_jsonl, write_jsonl, write_pool


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "run", [pool_line(k, *pair) for k, pair in enumerate(pairs(4))])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "data.jsonl", [{"prompt": p, "response": r} for p, r in pairs()])


def decide(run: Path) -> None:
    store = ReviewStore(read_pool(run))
    rows = store.pool.rows
    store.decide(rows[0].id, "keep", expected_version=0)
    store.decide(rows[1].id, "fix", "Right.", expected_version=0)
    store.decide(rows[2].id, "drop", expected_version=0)


def test_export_writes_the_corrected_data_without_a_server(run, data, tmp_path, capsys):
    decide(run)
    out = tmp_path / "corrected.jsonl"
    assert main(["review", str(run), "--export", str(out), "--data", str(data)]) == 0
    rows = read_jsonl(out)
    assert [r["sample_review"] for r in rows] == ["kept", "fixed", *["unreviewed"] * 3]
    assert rows[1]["response"] == "Right."
    assert "1 kept, 1 fixed, 1 dropped, 3 not reviewed" in capsys.readouterr().out


def test_annotators_get_the_pool_and_their_answers_come_back(run, data, tmp_path):
    sheet, out = tmp_path / "pool.csv", tmp_path / "corrected.csv"
    assert main(["review", str(run), "--export-pool", str(sheet)]) == 0
    with sheet.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rows[3]["decision"] = "drop"
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    command = ["review", str(run), "--answers", str(sheet), "--data", str(data)]
    assert main([*command, "--export", str(out)]) == 0
    with out.open(encoding="utf-8", newline="") as file:
        prompts = [row["prompt"] for row in csv.DictReader(file)]
    assert prompts == [p for k, (p, _) in enumerate(pairs()) if k != 3]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--export", "out.jsonl"], "--export: needs the data to correct"),
        (["--answers", "a.csv"], "--answers: are read for an export"),
        (["--port", "0"], "--port: must lie between 1 and 65535"),
        (["--export", "out.jsonl", "--data", "DATA"], "holds no decision yet"),
        (["--export", "DATA", "--data", "DATA", "--answers", "ANSWERS"], "part of the data itself"),
    ],
)
def test_what_cannot_be_done_is_one_line(run, data, tmp_path, capsys, flags, message):
    answers = write_jsonl(tmp_path / "a.jsonl", [{"row": 0, "decision": "drop"}])
    names = {"DATA": str(data), "ANSWERS": str(answers)}
    assert main(["review", str(run), *(names.get(flag, flag) for flag in flags)]) == 2
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1 and "Traceback" not in errors


def test_without_gradio_the_extra_is_named(run, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["review", str(run), "--no-browser"]) == 2
    assert 'pip install "hf-glm-curriculum[review]"' in capsys.readouterr().err


def test_nothing_but_the_page_imports_gradio(run, data, tmp_path):
    decide(run)
    script = (
        "import sys\n"
        "from hf_glm_curriculum.commands.main import main\n"
        f"assert main(['review', {str(run)!r}, '--export', {str(tmp_path / 'o.jsonl')!r}, "
        f"'--data', {str(data)!r}]) == 0\n"
        "import hf_glm_curriculum.commands.review_page\n"
        "assert 'gradio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
