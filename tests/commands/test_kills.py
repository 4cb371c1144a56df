"""`kill -9` at random moments: called again, a command comes to what it would have come to."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

KILLS = 5
QUICK = ("--cpu", "--limit", "3", "--max-new-tokens", "3", "--draws", "20")


def start(*words):
    command = [sys.executable, "-m", "hf_glm_curriculum.commands.main", *map(str, words)]
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(*words):
    process = start(*words)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()


def kill_at_random(chance, longest, *words):
    """Kill a command up to so many seconds after its start; whether it was still running."""
    process = start(*words)
    time.sleep(chance.uniform(0.5, longest))
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return running


def whole(folder):
    """Nothing half-written is left: every JSON reads, no temporary file stays."""
    for path in folder.rglob("*.json"):
        json.loads(path.read_text("utf-8"))
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text("utf-8").splitlines():
            json.loads(line)


def test_evaluate_goes_on_and_comes_to_the_same(tmp_path, tiny_folder, train_file):
    words = ["evaluate", "--models", f"a={tiny_folder}", "--data", train_file, *QUICK]
    finish(*words, "--output-dir", tmp_path / "straight")
    chance, out = random.Random(0), tmp_path / "killed"
    kills = [kill_at_random(chance, 9, *words, "--output-dir", out) for _ in range(KILLS)]
    assert any(kills)
    whole(out)
    finish(*words, "--output-dir", out)
    read = lambda folder: json.loads((folder / "evaluation.json").read_text("utf-8"))  # noqa: E731
    assert read(out)["measures"] == read(tmp_path / "straight")["measures"]


def test_analyze_leaves_nothing_half_written(tmp_path):
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"Write about thing {n}.", "response": "x"} for n in range(3000)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    words = ["analyze", data, "--out", tmp_path / "out", "--resample", "0:99=1"]
    chance = random.Random(1)
    for _ in range(KILLS):
        kill_at_random(chance, 6, *words)
        whole(tmp_path)
    finish(*words)
    drawn = (tmp_path / "out" / "resampled.jsonl").read_text("utf-8").splitlines()
    assert len(drawn) == 3000
