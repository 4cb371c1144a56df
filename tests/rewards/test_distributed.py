"""Two gloo processes come to the running state of one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hf_glm_curriculum import ProgressiveUnlock, RewardGate, RewardShaper
from hf_glm_curriculum.rewards.pipeline import RewardPipeline
from tests.conftest import REPOSITORY
from tests.rewards.scorers import THREE, HashScorer

_SCRIPT = """
import json, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.rewards.test_distributed import BATCHES, make, score
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=2
)
pipeline = make()
# The ranks hold unequal parts of every batch.
part = slice(0, 2) if rank == 0 else slice(2, None)
rewards = [score(pipeline, batch[part]) for batch in BATCHES]
with open(f"{{folder}}/rank{{rank}}.json", "w") as file:
    json.dump({{"state": pipeline.state_dict(), "rewards": rewards}}, file)
torch.distributed.destroy_process_group()
"""
BATCHES = [[f"answer {step} {row}" for row in range(5)] for step in range(4)]


def make() -> RewardPipeline:
    unlock = ProgressiveUnlock(THREE, target=0.45, min_steps=1, window=1)
    return RewardPipeline(HashScorer(), RewardGate(0.5), None, RewardShaper(), unlock=unlock)


def score(pipeline: RewardPipeline, texts: list[str]) -> list[float]:
    return pipeline.score(["q"] * len(texts), texts).reward.tolist()


@pytest.mark.slow
def test_two_processes_decide_as_one(tmp_path):
    script = tmp_path / "run.py"
    script.write_text(_SCRIPT.format(root=str(REPOSITORY)))
    runs = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path)]) for rank in (0, 1)
    ]
    assert [run.wait(timeout=240) for run in runs] == [0, 0]
    one, two = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one["state"] == two["state"]
    alone = make()
    for step, batch in enumerate(BATCHES):
        together = one["rewards"][step] + two["rewards"][step]
        assert together == pytest.approx(score(alone, batch), abs=1e-5)
    moments = one["state"]["shaper"]["moments"]
    assert moments["count"] == alone.state_dict()["shaper"]["moments"]["count"]
    assert moments["mean"] == pytest.approx(alone.state_dict()["shaper"]["moments"]["mean"])
    assert one["state"]["unlock"]["stage"] == alone.unlock.stage > 0
