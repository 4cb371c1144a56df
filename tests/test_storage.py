"""Files are whole or absent, and tensors come back as they were."""

from __future__ import annotations

import errno
import os
import resource

import pytest
import torch

from hf_glm_curriculum.csv_dump import CsvDump
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.storage import (
    atomic_write_json,
    atomic_write_text,
    ensure_folder,
    load_tensors,
    read_json,
    save_tensors,
)


def full_disk(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def denied(*args, **kwargs):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_keeps_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "state.json"
    atomic_write_json(path, {"a": 1})
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(StateError) as caught:
        atomic_write_json(path, {"a": 2})
    monkeypatch.undo()
    assert str(caught.value) == (
        f"cannot write {path}: No space left on device; "
        "free some space or choose a folder that you may write to"
    )
    assert read_json(path) == {"a": 1}
    assert os.listdir(tmp_path) == ["state.json"]


def test_permission_denied_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StateError, match="Permission denied; free some space or choose a folder"):
        atomic_write_text(tmp_path / "new" / "file.txt", "text")


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StateError, match="Permission denied"):
        ensure_folder(tmp_path)


def test_an_interrupt_leaves_no_temporary_file(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write_text(tmp_path / "file.txt", "text")
    assert os.listdir(tmp_path) == []


def test_text_is_utf8_and_follows_the_umask(tmp_path):
    mask = os.umask(0o027)
    try:
        atomic_write_text(tmp_path / "deep" / "file.txt", "课程\n")
    finally:
        os.umask(mask)
    path = tmp_path / "deep" / "file.txt"
    assert path.read_bytes() == "课程\n".encode()
    assert path.stat().st_mode & 0o777 == 0o640


def test_tensors_round_trip(tmp_path):
    whole = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    tensors = {
        "whole": whole,
        "transposed_view": whole.T,
        "ids": torch.tensor([-1, 2**62]),
        "empty": torch.empty(0, 5),
        "flag": torch.tensor(True),
        "half": torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
    }
    save_tensors(tmp_path / "x.safetensors", tensors, {"step": "3"})
    loaded, metadata = load_tensors(tmp_path / "x.safetensors")
    assert metadata == {"step": "3"}
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)


def test_tensors_that_do_not_fit_leave_the_old_file(tmp_path):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.ones(3)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        with pytest.raises(StateError, match=r"cannot write .*File too large.*; free some space"):
            save_tensors(path, {"a": torch.ones(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert load_tensors(path)[0]["a"].tolist() == [1.0] * 3
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_tensors_that_share_memory_are_written_apart(tmp_path):
    whole = torch.arange(6.0).view(2, 3)
    save_tensors(tmp_path / "x.safetensors", {"a": whole[0], "b": whole.t(), "c": whole})
    loaded, _ = load_tensors(tmp_path / "x.safetensors")
    assert torch.equal(loaded["a"], whole[0]) and torch.equal(loaded["b"], whole.t())
    assert torch.equal(loaded["c"], whole)


def test_broken_and_missing_files_are_named(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"broken")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(StateError, match="is not a safetensors file"):
        load_tensors(tmp_path / "x.safetensors")
    with pytest.raises(StateError, match="cannot read"):
        load_tensors(tmp_path / "absent.safetensors")
    with pytest.raises(StateError, match="is not valid JSON"):
        read_json(tmp_path / "x.json")
    with pytest.raises(StateError, match="No such file"):
        read_json(tmp_path / "absent.json")


def test_csv_appends_across_openings_and_rewinds(tmp_path):
    path = tmp_path / "debug" / "weights.csv"
    CsvDump(path, ["step", "id", "weight"]).write([[1, 7, 0.5], {"step": 2, "id": 8, "weight": 1}])
    dump = CsvDump(path, ["step", "id", "weight"])
    dump.write([(3, "a,b", 0.1)])
    assert path.read_text() == 'step,id,weight\n1,7,0.5\n2,8,1\n3,"a,b",0.1\n'
    dump.rewind(2)
    assert path.read_text() == "step,id,weight\n1,7,0.5\n2,8,1\n"


def test_csv_refuses_what_does_not_fit(tmp_path):
    dump = CsvDump(tmp_path / "x.csv", ["step", "weight"])
    with pytest.raises(StateError, match="must have 2 values, got 3"):
        dump.write([[1, 2, 3]])
    with pytest.raises(StateError, match="give each one"):
        dump.write([{"step": 1, "wieght": 2}])
    with pytest.raises(StateError, match="move it away"):
        CsvDump(tmp_path / "x.csv", ["step", "loss"])
    with pytest.raises(StateError, match="must have the column 'epoch'"):
        dump.rewind(1, column="epoch")
    assert (tmp_path / "x.csv").read_text() == "step,weight\n"


def test_csv_on_a_full_disk_keeps_whole_rows(tmp_path, monkeypatch):
    dump = CsvDump(tmp_path / "x.csv", ["step", "weight"])
    real_write = os.write

    def short_then_full(handle, data):
        if len(data) > 2:
            return real_write(handle, bytes(data[:2]))
        return full_disk()

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(StateError, match="No space left"):
        dump.write([[1, 0.5], [2, 0.5]])
    monkeypatch.undo()
    assert (tmp_path / "x.csv").read_text() == "step,weight\n"


def test_replacing_shows_the_whole_new_thing_or_the_old(tmp_path):
    from hf_glm_curriculum.storage import replacing

    target = tmp_path / "deep" / "result.csv"
    with replacing(target) as temporary:
        temporary.write_text("new", "utf-8")
        assert not target.exists() and temporary.parent == target.parent
    assert target.read_text("utf-8") == "new"
    with pytest.raises(ValueError, match="stop"), replacing(target) as temporary:
        temporary.write_text("half", "utf-8")
        raise ValueError("stop")
    assert target.read_text("utf-8") == "new"
    assert [p.name for p in target.parent.iterdir()] == ["result.csv"]


def test_replacing_takes_folders_and_refuses_full_ones(tmp_path):
    from hf_glm_curriculum.storage import replacing

    for fill in (False, True):
        target = tmp_path / str(fill)
        target.mkdir()
        if fill:
            (target / "mine").write_text("x", "utf-8")
            with pytest.raises(StateError, match="cannot write"), replacing(target) as temporary:
                temporary.mkdir()
            assert (target / "mine").exists()
        else:
            with replacing(target) as temporary:
                temporary.mkdir()
                (temporary / "a").write_text("a", "utf-8")
            assert (target / "a").read_text("utf-8") == "a"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["False", "True"]


def test_a_line_after_one_that_a_kill_tore_stands_alone(tmp_path):
    from hf_glm_curriculum.storage import append_line, read_whole_lines

    path = tmp_path / "lines.jsonl"
    append_line(path, '{"step": 1}')
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "text": "cut o')
    append_line(path, '{"step": 3}')
    assert [row["step"] for row in read_whole_lines(path)] == [1, 3]


def test_texts_with_other_line_breaks_are_one_line(tmp_path):
    import json

    from hf_glm_curriculum.storage import append_line, read_whole_lines, rewind_lines

    path = tmp_path / "lines.jsonl"
    rows = [{"step": n, "text": f"a{mark}b"} for n, mark in enumerate("\u2028\u2029\x85\x0b", 1)]
    for row in rows:
        append_line(path, json.dumps(row, ensure_ascii=False))
    assert read_whole_lines(path) == rows
    rewind_lines(path, 3)
    assert read_whole_lines(path) == rows[:3]
    rewind_lines(path, 1, again=True)
    assert read_whole_lines(path) == []


def test_leftovers_of_killed_writers_are_swept_and_nothing_else(tmp_path):
    import subprocess
    import sys

    from hf_glm_curriculum.storage import sweep_temporaries

    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    number = dead.stdout.decode().strip()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / f".run.json.{number}.0123abcd.tmp").write_text("half", "utf-8")
    folder = tmp_path / f".model.{number}.0123abcd.tmp"
    folder.mkdir()
    (folder / "weights").write_text("half", "utf-8")
    kept = [f".run.json.{os.getpid()}.0123abcd.tmp", ".mine.tmp", "run.json", f".a.{number}.x.tmp"]
    for name in kept:
        (tmp_path / name).write_text("x", "utf-8")
    sweep_temporaries(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted([*kept, "deep"])


def test_a_lock_is_waited_for(tmp_path):
    import threading

    from hf_glm_curriculum.storage import locked

    order = []

    def second():
        with locked(tmp_path / "lock"):
            order.append("second")

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
