"""The demo data as files."""

import hashlib
import json
import time

import datasets
import pytest

from hf_glm_curriculum.data.demo import demo_instructions, write_demo_data
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.text import check_answer


def _rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_files_hold_what_was_asked_for_and_repeat_byte_for_byte(tmp_path):
    first = write_demo_data(tmp_path / "a", n=200, seed=3, fault_share=0.2)
    second = write_demo_data(tmp_path / "b", n=200, seed=3, fault_share=0.2)
    for name, path in first.items():
        assert path.read_bytes() == second[name].read_bytes()
    rows = _rows(first["instructions"])
    assert len(rows) == 200
    assert sum(row["fault"] is not None for row in rows) == 40
    held = _rows(first["heldout"])
    assert len(held) == 20
    assert not any(row["fault"] for row in held)
    assert not {row["prompt"] for row in held} & {row["prompt"] for row in rows}
    for row in held:
        assert row["answer_check"] is None or check_answer(row["response"], row["answer_check"])
    assert len(_rows(first["preferences"])) == 50
    assert len(_rows(first["documents"])) == 6
    assert len(_rows(first["dialogues"])) == 12
    assert "| `heldout.jsonl` | 20 |" in first["readme"].read_text("utf-8")


def test_the_copy_has_the_same_content_under_another_path(tmp_path):
    paths = write_demo_data(tmp_path, n=40)
    hashes = {hashlib.sha256(paths[k].read_bytes()).hexdigest() for k in ("instructions", "copy")}
    assert len(hashes) == 1
    assert paths["copy"] != paths["instructions"]


def test_every_file_is_one_table_for_the_datasets_library(tmp_path):
    paths = write_demo_data(tmp_path / "demo", n=300)
    for name in ("instructions", "heldout", "preferences", "documents", "dialogues"):
        table = datasets.Dataset.from_json(str(paths[name]), cache_dir=str(tmp_path / "cache"))
        assert len(table) == len(_rows(paths[name]))


def test_nothing_is_written_when_an_argument_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match=r"^fault_share:"):
        write_demo_data(tmp_path / "x", n=10, fault_share=2.0)
    with pytest.raises(ConfigError, match=r"^n:"):
        write_demo_data(tmp_path / "x", n=0)
    assert not (tmp_path / "x").exists()


def test_a_path_that_is_a_file_is_a_state_error(tmp_path):
    (tmp_path / "taken").write_text("x")
    with pytest.raises(StateError, match="taken"):
        write_demo_data(tmp_path / "taken", n=10)


def test_ten_thousand_rows_take_seconds():
    start = time.perf_counter()
    rows = demo_instructions(10_000, seed=11, fault_share=0.15)
    assert time.perf_counter() - start < 20
    assert len({row["prompt"] for row in rows}) == 10_000
