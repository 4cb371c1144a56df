"""Every shipped training config starts on two gloo processes and comes to its end, on tiny models.

What the flags change is size and place; everything else is the config's own. FSDP and ZeRO need
GPUs: their files are parsed in test_ppo_config.py.
"""

from __future__ import annotations

import json
import sys
import time

import pytest

from hf_glm_curriculum.commands.main import main
from tests.commands.test_scaling_sweep import write_documents
from tests.conftest import REPOSITORY
from tests.processes import run_two
from tests.rewards.examples import preference_rows

pytestmark = pytest.mark.slow

SMALL = ("--cpu", "--answers", "2", "--max-new-tokens", "3", "--batch-size", "2")
SFT = (*SMALL, "--max-length", "128", "--max-steps", "2", "--held-out", "0.2")
HEADS = (
    *("--head-hidden-size", "8", "--confidence-hidden-size", "4", "--folds", "2", "--epochs", "2"),
    *("--confidence-epochs", "2", "--max-length", "64", "--cpu", "--no-shift-check"),
)
PPO = (
    *("--cpu", "--answers", "2", "--max-new-tokens", "4", "--batch-size", "4"),
    *("--mini-batch-size", "4", "--updates", "2"),
)
ONE_PROCESS = ("reward/default", "reward/encoder", "reward/helpful_honest_harmless")
"""Heads on a frozen backbone train in seconds, in one process."""


def configs(*folders: str) -> list[str]:
    paths = (path for folder in folders for path in (REPOSITORY / "configs" / folder).glob("*"))
    return sorted(f"{path.parent.name}/{path.stem}" for path in paths)


@pytest.fixture
def words(tiny_folder, train_file, reward_folder, tmp_path):
    """`words("sft/lora")` → the command line of a config, cut down to seconds."""

    def call(name: str) -> list[str]:
        kind = name.split("/")[0]
        path = REPOSITORY / "configs" / f"{name}.yaml"
        common = ["--config", path, "--output-dir", tmp_path / "run"]
        if kind in ("sft", "attention"):
            found = ["sft", *common, "--model", tiny_folder, "--data", train_file, *SFT]
        elif kind == "migrate":
            documents = write_documents(tmp_path / "documents")
            found = ["migrate", *common, "--documents", documents, "--instructions", train_file]
            found += [*SMALL, "--max-length", 64, "--pretrain-steps", 3, "--sft-steps", 2]
            found += ["--window", 0.5, "--post-ramp", 1, "--held-out", 0.1, "--without-labels"]
            found += ["drop", "--eval-steps", 2]
            if name == "migrate/glm":
                found += ["--hidden-size", 32, "--layers", 2, "--heads", 4, "--intermediate-size"]
                found += [48, "--vocab-size", 300]
            else:
                found += ["--model", tiny_folder]
        elif kind == "reward":
            rated = dimension_rows()
            pairs = tmp_path / "pairs.jsonl"
            pairs.write_text("".join(json.dumps(row) + "\n" for row in rated), "utf-8")
            found = ["reward", *common, "--model", tiny_folder, *HEADS, "--cache-dir"]
            found += [tmp_path / "features", "--preferences", pairs]
            if name == "reward/lora":
                found += ["--lora-rank", 2, "--backbone-epochs", 1]
        else:
            found = ["ppo", *common, "--model", tiny_folder, "--demo", 12, *PPO]
            if "ladder_1" not in name and "ladder_2" not in name:
                found += ["--reward", reward_folder]
        return [str(word) for word in found]

    return call


def dimension_rows() -> list[dict]:
    names = ("factual", "logic", "compliance")
    return [{**row, "dimension": names[n % 3]} for n, row in enumerate(preference_rows(30))]


def start(rank: int, words: list[str]) -> None:
    sys.exit(main(words))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.ppo] * name.startswith("ppo"))
        for name in configs("sft", "migrate", "ppo", "reward")
        if name not in ("sft/t4", "reward/refresh", *ONE_PROCESS)
    ]
    + ["attention/distill"],
)
def test_a_config_starts_on_two_processes(name, words, tmp_path):
    run_two(start, tmp_path, words(name))
    about = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert about["status"] == "finished"
    assert (tmp_path / "run" / "report.html").exists()
    logs = [(tmp_path / f"rank{rank}.log").read_text("utf-8") for rank in (0, 1)]
    assert "report:" in logs[0] and "report:" not in logs[1], "the first process speaks"


def test_four_bits_without_a_gpu_are_refused_by_name(words, refused):
    assert "CUDA" in refused(*words("sft/t4"))


def start_late(rank: int, words: list[str]) -> None:
    time.sleep(6 * rank)
    sys.exit(main(words))


def test_a_process_that_starts_late_joins_the_run_and_resumes_it(words, tmp_path):
    """Nodes of a cluster start seconds apart: the folder is the run's own by then."""
    run_two(start_late, tmp_path, words("sft/lora"))
    run_two(start_late, tmp_path, [*words("sft/lora"), "--resume"])
    about = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert about["status"] == "finished" and len(about["resumed"]) == 1


def refused_on_both(rank: int, words: list[str]) -> None:
    sys.exit(0 if main(words) == 2 else 1)


def test_a_folder_that_holds_a_run_is_refused_on_every_process(words, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"status": "finished"}', "utf-8")
    run_two(refused_on_both, tmp_path, words("sft/lora"))
    for rank in (0, 1):
        log = (tmp_path / f"rank{rank}.log").read_text("utf-8")
        assert "holds a finished run" in log and "Traceback" not in log
