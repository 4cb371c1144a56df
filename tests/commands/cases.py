"""Commands that may be killed or run out of disk: how to call them, and what they must come to."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_scaling_sweep import write_documents
from tests.conftest import build_model, build_tokenizer
from tests.processes import run_python
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows

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


def lay_out(place: Path, tiny_folder: Path, train_file: Path) -> Path:
    """Everything that the commands read, under short names."""
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
    wide = [{"prompt": f"Write about thing {n}.", "response": "x"} for n in range(600)]
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


def sft_words(m: Path, out: Path) -> list[Any]:
    return [
        *("sft", "--model", m / "model", "--data", m / "train.jsonl", "--output-dir", out),
        *("--epochs", 3, "--held-out", 0.2, "--logging-steps", 1, "--learning-rate", 0.01),
        *("--max-length", 128, "--save-steps", 2, "--resume", *ANSWERS),
    ]


def migrate_words(m: Path, out: Path) -> list[Any]:
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


def reward_words(m: Path, out: Path) -> list[Any]:
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


def refresh_words(m: Path, out: Path) -> list[Any]:
    first = m / "first"
    if not first.exists():
        log = m / "first.log"
        assert run_python(log, COMMAND, *reward_words(m, first)) == 0, log.read_text()
    return [
        *("reward", "--refresh", first, "--sampler", m / "policy", "--tolerance", 1),
        *("--prompts", m / "prompts.jsonl", "--output-dir", out, "--candidates", 3),
        *("--cache-dir", out.with_name(f"{out.name}-features"), "--max-new-tokens", 6),
        *("--least-score", 0, "--least-reward", 0, "--most-repetition", 1, *_HEADS, "--resume"),
    ]


def ppo_words(m: Path, out: Path) -> list[Any]:
    return [
        *("ppo", "--model", m / "model", "--prompts", m / "prompts.jsonl", "--output-dir", out),
        *("--reward", "length", "--updates", 4, "--batch-size", 4, "--ppo-epochs", 1),
        *("--learning-rate", 0.01, "--save-steps", 1, "--lora-rank", 2, "--resume", *ANSWERS),
    ]


def sweep_words(m: Path, out: Path) -> list[Any]:
    return [
        *("scaling", "sweep", "--cpu", "--documents", m / "documents", "--output-dir", out),
        *("--architectures", "llama", "--shapes", "1x16", "1x32", "1x48", "--length", 16),
        *("--tokens", 512, 1024, 2048, "--batch-size", 4, "--held-out-rows", 8),
        *("--vocab-size", 300, "--form", "chinchilla", "--bootstraps", 0, "--saves", 3),
        "--resume",
    ]


def quickstart_words(m: Path, out: Path) -> list[Any]:
    return [
        *("quickstart", "--model", m / "model", "--output-dir", out, "--fast", "--samples", 24),
    ]


CASES = {
    "sft": Case(
        sft_words, ("model/*.safetensors", "lifespan/*.csv", "evaluation/*.json*", "metrics.jsonl")
    ),
    # Its data are drawn from where they were left, so the trainer counts epochs anew.
    "migrate": Case(
        migrate_words, ("model/*.safetensors", "evaluation/*.json*", "metrics.jsonl"), ("epoch",)
    ),
    "reward": Case(reward_words, ("model/*.safetensors", "rewards/*.json*", "metrics.jsonl")),
    "refresh": Case(refresh_words, ("model/*.safetensors", "rewards/*.json*", "refresh/*.jsonl")),
    "ppo": Case(
        ppo_words,
        ("model/*.safetensors", "completions.jsonl", "metrics.jsonl", "evaluation/*.json*"),
    ),
    "sweep": Case(sweep_words, ("runs.csv", "law.json")),
    "quickstart": Case(
        quickstart_words,
        (
            *("lifespan/*.csv", "evaluation/*.json*", "model/*.safetensors"),
            *("stages/*/model/*.safetensors", "stages/*/metrics.jsonl"),
        ),
    ),
    "evaluate": Case(
        lambda m, out: [
            *("evaluate", "--models", f"a={m / 'model'}", f"b={m / 'policy'}", "--data"),
            *(m / "train.jsonl", "--cpu", "--limit", 3, "--max-new-tokens", 3, "--draws", 20),
            *("--judge", m / "policy", "--output-dir", out, "--measures", "loss", "answers"),
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
            *("scaling", "fit", m / "runs.csv", "--output-dir", out, "--bootstraps", 5),
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


def each_case() -> list[Any]:
    """The names of all cases, as parameters of a test."""
    return [pytest.param(n, marks=[pytest.mark.ppo] * (n in NEEDS_PPO)) for n in CASES]


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
