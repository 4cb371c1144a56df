"""`kill -9` at random moments: called again, a command comes to what it would have come to.

Every command is killed `HGC_KILLS` times (1 by default; `make kills` does 20), each time somewhere
between its start and its end, and called again until it is through. What it leaves then is compared
with what an undisturbed run leaves: weights byte for byte, tables and logs line for line.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
from hf_glm_curriculum.optional import available
from tests.commands.cases import (
    CASES,
    COMMAND,
    differences,
    each_case,
    migrate_words,
    outcome,
    sft_words,
)
from tests.lifespan.pools import pairs, pool_line, write_pool
from tests.processes import run_python, start_python

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HGC_KILLS", "1"))


@pytest.mark.parametrize("name", each_case())
def test_a_killed_command_comes_to_what_it_would_have(name, materials, tmp_path):
    case, chance = CASES[name], random.Random(name)
    words = case.words(materials, tmp_path / "straight")
    began = time.monotonic()
    log = tmp_path / "straight.log"
    assert run_python(log, COMMAND, *words) == 0, log.read_text()[-3000:]
    length = time.monotonic() - began
    expected = outcome(tmp_path / "straight", case)
    assert expected, "the globs name nothing"
    killed, attempt = 0, 0
    while killed < KILLS:
        attempt += 1
        out, finished = tmp_path / f"killed{attempt}", False
        while not finished:
            words = case.words(materials, out)
            log = tmp_path / f"killed{attempt}.log"
            worker = start_python(log, COMMAND, *words)
            if killed < KILLS:
                worker.join(chance.uniform(0.0, length))
            else:
                worker.join(400)
            finished = worker.exitcode is not None
            if not finished:
                assert killed < KILLS, "hangs"
                worker.kill()
                worker.join()
                killed += 1
                whole(out)
            else:
                assert worker.exitcode == 0, log.read_text()[-3000:]
        found = outcome(out, case)
        assert found.keys() == expected.keys()
        for path, value in expected.items():
            assert found[path] == value, f"{path}: {differences(found[path], value)}"
        assert not list(out.rglob(".*.tmp"))
        for place in tmp_path.glob(f"killed{attempt}*"):
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def whole(folder: Path) -> None:
    """Nothing half-written lies under a name that somebody reads."""
    for path in folder.rglob("*.json"):
        if "checkpoint-" not in str(path) and "tmp" not in str(path):
            json.loads(path.read_text("utf-8"))


@pytest.mark.skipif(KILLS < 2, reason="test_search.py kills one; `make kills` kills many")
@pytest.mark.skipif(not available("optuna"), reason="optuna is not installed")
def test_a_killed_search_tries_every_point_once(materials, tmp_path):
    base = {
        **{"model": str(materials / "model"), "data": [str(materials / "train.jsonl")]},
        **{"cpu": True, "epochs": 1, "held_out": 0.2, "answers": 0, "max_length": 128},
    }
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base), "utf-8")
    rates = [0.01, 0.003, 0.001]
    search = {
        **{"output_dir": str(tmp_path / "out"), "base": str(tmp_path / "base.yaml")},
        **{"space": {"learning_rate": {"choices": rates}}, "sampler": "grid", "trials": 3},
        "objective": "evaluation/heldout.json:after.loss",
    }
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(search), "utf-8")
    words, log = ["search", "--config", tmp_path / "search.yaml"], tmp_path / "log"
    chance = random.Random(2)
    for _ in range(KILLS):
        worker = start_python(log, COMMAND, *words)
        worker.join(chance.uniform(0.5, 12))
        worker.kill()
        worker.join()
        whole(tmp_path / "out")
    assert run_python(log, COMMAND, *words) == 0, log.read_text()[-3000:]
    with (tmp_path / "out" / "trials.csv").open(encoding="utf-8", newline="") as file:
        done = [row for row in csv.DictReader(file) if row["state"] == "complete"]
    assert sorted(float(row["learning_rate"]) for row in done) == sorted(rates)


def test_a_killed_reproduction_goes_on(materials, tmp_path):
    log = tmp_path / "log"
    run = tmp_path / "run"
    assert run_python(log, COMMAND, *sft_words(materials, run)) == 0, log.read_text()[-3000:]
    words, chance = ["reproduce", run, "--output-dir", tmp_path / "again"], random.Random(3)
    before = (run / "run.json").read_bytes()
    for _ in range(KILLS):
        worker = start_python(log, COMMAND, *words)
        worker.join(chance.uniform(0.2, 5))
        worker.kill()
        worker.join()
    assert run_python(log, COMMAND, *words) == 0, log.read_text()[-3000:]
    found = json.loads((tmp_path / "again" / "reproduction.json").read_text("utf-8"))
    assert found["counts"].keys() == {"equal"}
    assert (run / "run.json").read_bytes() == before


def test_a_killed_report_leaves_the_old_page_or_the_new_one(materials, tmp_path):
    run, log, chance = tmp_path / "run", tmp_path / "log", random.Random(4)
    assert run_python(log, COMMAND, *sft_words(materials, run)) == 0, log.read_text()[-3000:]
    for _ in range(KILLS):
        worker = start_python(log, COMMAND, "report", run)
        worker.join(chance.uniform(0.0, 1.5))
        worker.kill()
        worker.join()
        page = (run / "report.html").read_text("utf-8")
        assert page.rstrip().endswith("</html>")


def test_a_killed_control_leaves_the_old_file_or_the_new_one(tmp_path):
    run, log, chance = tmp_path / "run", tmp_path / "log", random.Random(5)
    run.mkdir()
    assert run_python(log, COMMAND, "control", run, "set", "loss.a=0.5") == 0, log.read_text()
    for number in range(KILLS):
        worker = start_python(log, COMMAND, "control", run, "set", f"loss.b{number}=0.1")
        worker.join(chance.uniform(0.0, 0.3))
        worker.kill()
        worker.join()
        terms = yaml.safe_load((run / "control.yaml").read_text("utf-8"))["loss"]
        assert terms["a"] == 0.5 and set(terms.values()) <= {0.5, 0.1}


REVIEWER = """
import sys
from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
store = ReviewStore(read_pool(sys.argv[1]))
while True:
    for row in store.pool.rows:
        store.decide(row.id, "keep", expected_version=store.version(row.id))
        print(row.id, store.version(row.id), flush=True)
"""


def test_every_review_that_was_acknowledged_is_there_after_a_kill(tmp_path):
    lines = [pool_line(k, *pair) for k, pair in enumerate(pairs(5))]
    folder, chance, told = write_pool(tmp_path / "run", lines), random.Random(6), {}
    for number in range(KILLS):
        log = tmp_path / f"{number}.log"
        log.touch()
        worker = start_python(log, REVIEWER, folder)
        while not log.read_text("utf-8") and worker.exitcode is None:
            time.sleep(0.01)
        worker.join(chance.uniform(0.0, 0.5))
        worker.kill()
        worker.join()
        for line in log.read_text("utf-8").split("\n")[:-1]:
            sample, version = map(int, line.split())
            told[sample] = version
        store = ReviewStore(read_pool(folder))
        assert told, "nothing was decided"
        for sample, version in told.items():
            assert store.version(sample) in (version, version + 1)


def test_a_killed_command_leaves_no_child_behind(materials, tmp_path):
    """Loaders and trials end with the process that started them."""
    words = [*migrate_words(materials, tmp_path / "run"), "--workers", "2"]
    command = [os.sys.executable, "-m", "hf_glm_curriculum.commands.main", *map(str, words)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    pytest.fail("children outlive the command")
