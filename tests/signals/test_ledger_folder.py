"""A ledger in files: the same as one in memory, there again after a kill, refused by name."""

from __future__ import annotations

import os
import signal

import numpy as np
import pandas as pd
import pytest
import torch

from hf_glm_curriculum import SampleIndex, SampleLedger
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.ledger_folder import MANIFEST
from tests.conftest import REPOSITORY
from tests.processes import run_python
from tests.signals.test_ledger import signals

SETTINGS = {"history": 3, "drift": True, "neighbours": 2}


def visit(ledger: SampleLedger, steps: int = 30, seed: int = 0, ids: int = 12) -> None:
    """The same visits for every ledger of ids 0, 1, …"""
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        seen = generator.integers(0, ids, 5).tolist()
        step = signals(seen, generator.uniform(0.1, 5, 5).tolist())
        step.embedding = torch.nn.functional.normalize(
            torch.from_numpy(generator.normal(size=(5, 64))).float(), dim=1
        )
        ledger.add(step.ids)
        ledger.observe(step)
    ledger.set_neighbours(torch.tensor([[1, 2], [0, -1]]))


def assert_equal(one: SampleLedger, two: SampleLedger) -> None:
    pd.testing.assert_frame_equal(one.to_pandas(), two.to_pandas())
    ours, theirs = one.tensors(), two.tensors()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype
        assert torch.equal(value.nan_to_num(-9), theirs[name].nan_to_num(-9)), name


@pytest.mark.parametrize("known", [12, 0], ids=["indexed", "streamed"])
def test_files_hold_what_memory_holds(tmp_path, known):
    def index():
        return SampleIndex(np.arange(known))

    memory, disk = (
        SampleLedger(index(), folder=folder, **SETTINGS) for folder in (None, tmp_path / "ledger")
    )
    for ledger in (memory, disk):
        visit(ledger)
    assert_equal(memory, disk)
    disk.save(tmp_path / "saved.safetensors")
    assert_equal(SampleLedger.load(tmp_path / "saved.safetensors"), memory)
    disk.close()
    opened = SampleLedger.open(tmp_path / "ledger", index())
    assert_equal(opened, memory)
    for ledger in (memory, opened):
        visit(ledger, seed=1, ids=40)
    assert_equal(opened, memory)
    assert len(opened) == 40 and opened.lookup(torch.tensor([39, 40])).tolist() == [
        memory.lookup(torch.tensor([39]))[0],
        -1,
    ]


_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from tests.signals.test_ledger_folder import SETTINGS, SampleLedger, visit
visit(SampleLedger(folder={folder!r}, **SETTINGS))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_a_whole_ledger(tmp_path):
    code = _KILLED.format(root=str(REPOSITORY), folder=str(tmp_path / "files"))
    log = tmp_path / "killed.log"
    assert run_python(log, code) == -signal.SIGKILL, log.read_text()
    memory = SampleLedger(**SETTINGS)
    visit(memory)
    assert_equal(SampleLedger.open(tmp_path / "files"), memory)


def test_a_new_ledger_of_the_same_data_starts_empty_and_spoils_no_old_tensor(tmp_path):
    first = SampleLedger(SampleIndex(np.arange(12)), folder=tmp_path, **SETTINGS)
    visit(first)
    before = first.to_pandas()
    first.close()
    second = SampleLedger(SampleIndex(np.arange(12)), folder=tmp_path, history=2)
    assert second.to_pandas().empty
    pd.testing.assert_frame_equal(first.to_pandas(), before)
    visit_losses = signals([3], [1.5])
    second.observe(visit_losses)
    pd.testing.assert_frame_equal(first.to_pandas(), before)


def test_tensors_go_into_files(tmp_path):
    memory = SampleLedger(**SETTINGS)
    visit(memory)
    disk = SampleLedger.from_tensors(memory.tensors(), folder=tmp_path)
    assert_equal(disk, memory)
    assert (tmp_path / "loss_ring.bin").stat().st_size == 13 * 3 * 4


def test_who_may_use_a_folder(tmp_path, monkeypatch):
    first = SampleLedger(SampleIndex(np.arange(4)), folder=tmp_path / "a")
    with pytest.raises(StateError, match=r"another run is using this ledger's files; name"):
        SampleLedger(SampleIndex(np.arange(4)), folder=tmp_path / "a")
    first.close()
    for call in (lambda i: SampleLedger(i, folder=tmp_path / "a"),
                 lambda i: SampleLedger.open(tmp_path / "a", i)):  # fmt: skip
        with pytest.raises(StateError, match=r"the ledger of a run on other data .* delete this"):
            call(SampleIndex(np.arange(5)))
    SampleLedger.open(tmp_path / "a", SampleIndex(np.arange(4))).close()
    with pytest.raises(StateError, match=r"holds no ledger \(ledger.json is missing\)"):
        SampleLedger.open(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "weights.bin").write_bytes(b"mine")
    with pytest.raises(StateError, match=r"holds weights.bin and no ledger.json"):
        SampleLedger(folder=tmp_path / "c")
    assert (tmp_path / "c" / "weights.bin").read_bytes() == b"mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write"):
        SampleLedger(folder=tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StateError, match="Permission denied"):
        SampleLedger(folder=tmp_path / "d")


def test_damaged_folders_are_named(tmp_path):
    ledger = SampleLedger(SampleIndex(np.arange(9)), folder=tmp_path)
    ledger.close()
    file = tmp_path / "weight.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(StateError, match=r"weight.bin: has 39 bytes, and 10 ledger rows need 40"):
        SampleLedger.open(tmp_path)
    file.unlink()
    with pytest.raises(StateError, match=r"weight.bin: is missing"):
        SampleLedger.open(tmp_path)
    file.write_bytes(whole)
    manifest = (tmp_path / MANIFEST).read_text()
    for broken, message in (
        (manifest.replace('"format": 1', '"format": 9'), "ledger format must be 1, got 9"),
        (manifest.replace("hf_glm", "other"), "is not the description of a ledger"),
        (manifest.replace('"rows"', '"row"'), "does not describe a ledger"),
        ("{", "is not valid JSON"),
    ):
        (tmp_path / MANIFEST).write_text(broken)
        with pytest.raises(StateError, match=message):
            SampleLedger.open(tmp_path)
    (tmp_path / MANIFEST).write_text(manifest)
    assert len(SampleLedger.open(tmp_path)) == 9


def test_a_full_disk_is_an_error_and_not_a_dead_process(tmp_path, monkeypatch):
    import hf_glm_curriculum.signals.ledger_folder as module

    def full(file, column, rows):
        raise OSError(28, "No space left on device")

    ledger = SampleLedger(SampleIndex(np.arange(4)), folder=tmp_path)
    monkeypatch.setattr(module, "_fill", full)
    with pytest.raises(StateError, match=r"cannot write .*No space left on device; free some"):
        ledger.add(torch.arange(50))
    assert not list(tmp_path.glob(".*.new"))
    with pytest.raises(StateError, match="No space left"):
        SampleLedger(SampleIndex(np.arange(4)), folder=tmp_path / "new")
    with pytest.raises(StateError, match="does not describe a ledger"):
        SampleLedger.open(tmp_path / "new")
    monkeypatch.undo()
    assert len(SampleLedger(SampleIndex(np.arange(4)), folder=tmp_path / "new")) == 4


def test_files_stay_on_the_cpu(tmp_path):
    ledger = SampleLedger(folder=tmp_path)
    assert ledger.to("cpu") is ledger
    with pytest.raises(StateError, match=r"lie in files in .* cannot move to meta"):
        ledger.to("meta")
