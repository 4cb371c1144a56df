"""A disk that fills up, or may not be written: one line says so, and nothing is lost by it.

A small file system in memory stands for the disk. With room made, the same command comes to what it
would have come to.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.commands.cases import CASES, COMMAND, each_case, outcome
from tests.processes import run_python

pytestmark = pytest.mark.slow

WHOLE = "HGC_KILLS" in os.environ
SHARES = (0.2, 0.4, 0.6, 0.8, 0.95) if WHOLE else (0.6,)
"""Of the room that a run needs."""

LONG = ("sweep", "quickstart", "migrate", "refresh", "analyze", "fit")
"""Cases that `make kills` fills a disk with, and `make test` does not."""


@pytest.fixture
def disk(tmp_path):
    """`disk("size=64k")` mounts a file system, or changes it; skips where that is not allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if mounted else ["-t", "tmpfs", "-o", options, "tmpfs"]
        done = subprocess.run(["mount", *again, str(place)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        mounted.append(options)
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def room(folder: Path) -> int:
    """KiB in whole pages, as the file system in memory counts them."""
    sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return sum(-(-size // 4096) * 4 for size in sizes)


@pytest.mark.parametrize("name", each_case())
def test_a_full_disk_is_one_line_and_costs_nothing(name, materials, tmp_path, disk):
    if name in LONG and not WHOLE:
        pytest.skip("`make kills` fills its disk")
    case = CASES[name]
    log = tmp_path / "log"
    assert run_python(log, COMMAND, *case.words(materials, tmp_path / "straight")) == 0
    expected, need = outcome(tmp_path / "straight", case), room(tmp_path / "straight")
    place = disk("size=4k")
    for share in SHARES:
        disk(f"size={max(4, int(need * share))}k")
        status = run_python(log, COMMAND, *case.words(materials, place / "run"))
        said = log.read_text("utf-8")
        assert "Traceback" not in said, said[-3000:]
        errors = [line for line in said.split("\n") if line.startswith("error: ")]
        if status == 0:
            continue
        assert status == 2 and len(errors) == 1, said[-3000:]
        assert "No space left on device" in errors[0] or "full disk" in errors[0], errors[0]
    disk(f"size={need * 4 + 4096}k")
    status = run_python(log, COMMAND, *case.words(materials, place / "run"))
    assert status == 0, log.read_text("utf-8")[-3000:]
    assert outcome(place / "run", case) == expected


@pytest.mark.parametrize("name", each_case())
def test_a_read_only_place_is_one_line_before_the_work(name, materials, tmp_path, disk):
    place = disk("ro")
    log = tmp_path / "log"
    status = run_python(log, COMMAND, *CASES[name].words(materials, place / "run"))
    said = log.read_text("utf-8")
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    assert status == 2 and len(errors) == 1 and "Traceback" not in said, said[-3000:]
    assert "Read-only" in errors[0] or "not writable" in errors[0], errors[0]
    assert "epoch 1" not in said and "update 1" not in said
