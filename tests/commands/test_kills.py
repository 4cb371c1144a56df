"""`kill -9` at random moments: called again, a command comes to what it would have come to.

Every command is killed `HGC_KILLS` times (3 by default; `make kills` does 20), each time somewhere
between its start and its end, and called again until it is through. What it leaves then is compared
with what an undisturbed run leaves: weights byte for byte, tables and logs line for line.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
from hf_glm_curriculum.optional import available
from tests.commands.test_scaling_sweep import write_documents
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.pools import pairs, pool_line, write_pool
from tests.processes import run_python, start_python
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("HGC_KILLS", "3"))
COMMAND = (
    "import sys; from hf_glm_curriculum.commands.main import main; sys.exit(main(sys.argv[1:]))"
)
# What two equal runs may tell differently: when, how long, where.
FREE = ("seconds", "runtime", "per_second", "time", "eps", "started", "finished", "resumed", "path")
ANSWERS = ("--answers", "2", "--max-new-tokens", "3", "--cpu")


@dataclass(frozen=True)
class Case:
    """A command that may be killed.

    Attributes:
        words: its arguments for an output folder.
        kept: globs below that folder of what must come to the same.
        free: what equal runs of it may tell differently besides `FREE`.
    """

    words: Callable[[Path, Path], list[Any]]
    kept: tuple[str, ...]
    free: tuple[str, ...] = ()


def rows_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="module")
def materials(tmp_path_factory, tiny_folder, train_file) -> Path:
    """Everything that the commands read, under short names."""
    place = tmp_path_factory.mktemp("materials")
    (place / "model").symlink_to(tiny_folder)
    (place / "train.jsonl").write_bytes(train_file.read_bytes())
    write_documents(place / "documents")
    rows_file(place / "pairs.jsonl", preference_rows(16))
    rows_file(place / "rated.jsonl", rating_rows(24))
    checks = {"kind": "contains", "any_of": list("abcdefghijklmnopqrstuvwxyz0123456789")}
    asked = [{"prompt": f"ask {n}", "answer_check": checks} for n in range(10)]
    rows_file(
        place / "prompts.jsonl",
        [{**row, "dimension": DIMENSIONS[n % 2]} for n, row in enumerate(asked)],
    )
    wide = [{"prompt": f"Write about thing {n}.", "response": "x"} for n in range(2000)]
    rows_file(place / "wide.jsonl", wide)
    for name in "ab":
        answers = [{"prompt": f"p{n}", "response": f"{name} {n}"} for n in range(400)]
        rows_file(place / f"{name}.jsonl", answers)
    runs = ["N,D,loss"]
    for n in (1e6, 3e6, 1e7, 3e7):
        runs += [f"{n},{n * k},{1.7 + 400 / n**0.34 + 400 / (n * k) ** 0.28}" for k in (5, 20, 80)]
    (place / "runs.csv").write_text("\n".join(runs) + "\n", "utf-8")
    build_model(seed=7).save_pretrained(place / "policy")
    build_tokenizer().save_pretrained(place / "policy")
    return place


def _sft(m: Path, out: Path) -> list[Any]:
    return [
        *("sft", "--model", m / "model", "--data", m / "train.jsonl", "--output-dir", out),
        *("--epochs", 3, "--held-out", 0.2, "--logging-steps", 1, "--learning-rate", 0.01),
        *("--max-length", 128, "--save-steps", 2, "--resume", *ANSWERS),
    ]


def _migrate(m: Path, out: Path) -> list[Any]:
    return [
        *("migrate", "--model", m / "model", "--documents", m / "documents"),
        *("--instructions", m / "train.jsonl", "--output-dir", out, "--pretrain-steps", 8),
        *("--sft-steps", 4, "--window", 0.5, "--post-ramp", 4, "--max-length", 64),
        *("--batch-size", 4, "--logging-steps", 1, "--save-steps", 3, "--eval-steps", 4),
        *("--learning-rate", 0.01, "--without-labels", "drop", "--held-out", 0.1),
        *("--resume", *ANSWERS),
    ]


_HEADS = (
    *("--epochs", 2, "--folds", 2, "--confidence-epochs", 2, "--head-hidden-size", 8),
    *("--confidence-hidden-size", 4, "--max-length", 64, "--cpu", "--no-shift-check"),
    *("--dimensions", *DIMENSIONS),
)


def _reward(m: Path, out: Path) -> list[Any]:
    return [
        *(
            "reward",
            "--model",
            m / "model",
            "--output-dir",
            out,
            "--preferences",
            m / "pairs.jsonl",
        ),
        *("--cache-dir", out.with_name(f"{out.name}-features"), *_HEADS, "--resume"),
    ]


def _refresh(m: Path, out: Path) -> list[Any]:
    first = out.parent / "first"
    if not first.exists():
        log = out.parent / "first.log"
        assert run_python(log, COMMAND, *_reward(m, first)) == 0, log.read_text()
    return [
        *("reward", "--refresh", first, "--sampler", m / "policy", "--tolerance", 1),
        *("--prompts", m / "prompts.jsonl", "--output-dir", out, "--candidates", 3),
        *("--cache-dir", out.with_name(f"{out.name}-features"), "--max-new-tokens", 6),
        *("--least-score", 0, "--least-reward", 0, "--most-repetition", 1, *_HEADS, "--resume"),
    ]


def _ppo(m: Path, out: Path) -> list[Any]:
    return [
        *("ppo", "--model", m / "model", "--prompts", m / "prompts.jsonl", "--output-dir", out),
        *("--reward", "length", "--updates", 4, "--batch-size", 4, "--ppo-epochs", 1),
        *("--learning-rate", 0.01, "--save-steps", 1, "--lora-rank", 2, "--resume", *ANSWERS),
    ]


def _sweep(m: Path, out: Path) -> list[Any]:
    return [
        *("scaling", "sweep", "--cpu", "--documents", m / "documents", "--output-dir", out),
        *("--architectures", "llama", "--shapes", "1x16", "1x32", "1x48", "--length", 16),
        *("--tokens", 512, 1024, 2048, "--batch-size", 4, "--held-out-rows", 8),
        *("--vocab-size", 300, "--form", "chinchilla", "--bootstraps", 0, "--saves", 3),
        "--resume",
    ]


def _quickstart(m: Path, out: Path) -> list[Any]:
    return [
        *("quickstart", "--model", m / "model", "--output-dir", out, "--fast", "--samples", 24),
    ]


CASES = {
    "sft": Case(_sft, ("model/*.safetensors", "lifespan/*.csv", "evaluation/*.json*", "metrics*")),
    # Its data are drawn from where they were left, so the trainer counts epochs anew.
    "migrate": Case(
        _migrate, ("model/*.safetensors", "evaluation/*.json*", "metrics.jsonl"), ("epoch",)
    ),
    "reward": Case(_reward, ("model/*.safetensors", "rewards/*.json*", "metrics.jsonl")),
    "refresh": Case(_refresh, ("model/*.safetensors", "rewards/*.json*", "refresh/*.jsonl")),
    "ppo": Case(
        _ppo, ("model/*.safetensors", "completions.jsonl", "metrics.jsonl", "evaluation/*.json*")
    ),
    "sweep": Case(_sweep, ("runs.csv", "law.json")),
    "quickstart": Case(
        _quickstart,
        (
            *("lifespan/*.csv", "evaluation/*.json*", "model/*.safetensors"),
            *("stages/*/model/*.safetensors", "stages/*/metrics.jsonl"),
        ),
    ),
    "evaluate": Case(
        lambda m, out: [
            *("evaluate", "--models", f"a={m / 'model'}", f"b={m / 'policy'}", "--data"),
            *(m / "train.jsonl", "--cpu", "--limit", 3, "--max-new-tokens", 3, "--draws", 20),
            *("--judge", m / "policy", "--output-dir", out),
        ],
        ("evaluation.json", "answers/*", "*.jsonl"),
    ),
    "analyze": Case(
        lambda m, out: ["analyze", m / "wide.jsonl", "--out", out, "--resample", "0:99=1"],
        ("*.jsonl", "*.json"),
    ),
    "audit": Case(
        lambda m, out: [
            *("audit", m / "wide.jsonl", "--out", out, "--write-ids", out / "with_ids.jsonl"),
        ],
        ("*.jsonl", "*.json"),
    ),
    "graph": Case(
        lambda m, out: ["graph", "build", m / "documents" / "1.txt", "--out", out / "one.graph"],
        ("*",),
    ),
    "fit": Case(
        lambda m, out: [
            *("scaling", "fit", m / "runs.csv", "--output-dir", out, "--bootstraps", 20),
            "--overwrite",
        ],
        ("law.json",),
    ),
    "sheets": Case(
        lambda m, out: [
            *("sheets", "make", f"A={m / 'a.jsonl'}", f"B={m / 'b.jsonl'}", "--out", out),
        ],
        ("*",),
    ),
}


NEEDS_PPO = ("ppo", "quickstart")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.ppo] * (n in NEEDS_PPO)) for n in CASES]
)
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


def outcome(folder: Path, case: Case) -> dict[str, Any]:
    """What a command came to: path → content without what may differ between equal runs."""
    found = {}
    for pattern in case.kept:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.name.startswith("."):
                found[str(path.relative_to(folder))] = content(path, folder, FREE + case.free)
    return found


def content(path: Path, folder: Path, free: tuple[str, ...]) -> Any:
    if path.suffix in (".json", ".jsonl"):
        text = path.read_text("utf-8").replace(str(folder), "OUT")
        texts = text.split("\n") if path.suffix == ".jsonl" else [text]
        rows = [timeless(json.loads(line), free) for line in texts if line.strip()]
        # A trainer that goes on writes its summary of the part that it ran.
        return [row for row in rows if not (isinstance(row, dict) and "train_loss" in row)]
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [timeless(row, free) for row in csv.DictReader(file)]
    return hashlib.sha256(path.read_bytes().replace(str(folder).encode(), b"OUT")).hexdigest()


def differences(found: Any, expected: Any) -> list[Any]:
    """The rows that differ, the first few."""
    if not isinstance(found, list) or not isinstance(expected, list):
        return [found, expected]
    short = [("rows", len(found), len(expected))] if len(found) != len(expected) else []
    return short + [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]][:2]


def timeless(value: Any, free: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(word in str(k) for word in free)}
        return {k: timeless(v, free) for k, v in kept.items()}
    return [timeless(v, free) for v in value] if isinstance(value, list) else value


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
    assert run_python(log, COMMAND, *_sft(materials, run)) == 0, log.read_text()[-3000:]
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
    assert run_python(log, COMMAND, *_sft(materials, run)) == 0, log.read_text()[-3000:]
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
    words = [*_migrate(materials, tmp_path / "run"), "--workers", "2"]
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
