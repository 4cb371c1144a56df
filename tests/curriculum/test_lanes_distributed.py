"""Two gloo processes: the same lane in the same step, every row once, one decision."""

from __future__ import annotations

import pytest
import torch

from tests.processes import launch_script

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from datasets import Dataset
from hf_glm_curriculum import AlignmentConfig, AlignmentMonitorCallback, LaneCallback, LaneConfig
from tests.curriculum.lane_runs import laned, parameters, random_rows, train
from tests.curriculum.test_lanes import ONE_LANE
folder, rank = sys.argv[1], int(os.environ["RANK"])
rows, base = random_rows(27), random_rows(6, seed=9)
result = {{}}

def keep(name, seen, trainer):
    result[name] = {{
        "steps": seen.flat, "used": seen.used, "checkpointed": seen.checkpointed,
        "after": seen.after, "weights": parameters(trainer),
    }}

split = {{"accelerator_config": {{"split_batches": True}}, "per_device_train_batch_size": 4}}
for name, settings in (("apart", {{}}), ("accumulated", {{"gradient_accumulation_steps": 2}}),
                       ("split", split)):
    data = laned(rows)
    keep(name, *train(f"{{folder}}/{{name}}", data, rows, [LaneCallback(data)],
                      ddp_backend="gloo", num_train_epochs=1, **settings))
assert torch.distributed.get_world_size() == 2
one_lane = LaneConfig(quantile=0.0, refine_checkpointing=False, **ONE_LANE)
keep("one_lane", *train(f"{{folder}}/one", laned(rows, one_lane), rows, [], ddp_backend="gloo"))
plain = Dataset.from_list(rows)
keep("plain", *train(f"{{folder}}/plain", plain, rows, [], ddp_backend="gloo"))
data = laned(rows, base=Dataset.from_list(base))
jumpy = AlignmentConfig(threshold=1.0, relative=False, smoothing=0.0, warmup_steps=1, min_stay=2)
calls = []

def score(signals):
    # Each rank alone sees no variance: its scores are all the same.
    calls.append(0)
    return torch.full_like(signals.loss, (2.0 if len(calls) == 3 else 0.1) * rank)

monitor = AlignmentMonitorCallback(data, "base", jumpy, score=score)
keep("monitored", *train(f"{{folder}}/monitored", data, rows + base, [monitor, LaneCallback(data)],
                         ddp_backend="gloo"))
result["switches"] = monitor.switch.switches
torch.save(result, f"{{folder}}/rank{{rank}}.pt")
"""


@pytest.mark.slow
def test_two_processes_are_in_the_same_lane(tmp_path):
    launch_script(_SCRIPT, tmp_path)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for name in ("apart", "accumulated", "split"):
        one, other = (rank[name] for rank in ranks)
        assert len(one["steps"]) == len(other["steps"]) > 0
        seen = []
        for a, b in zip(one["steps"], other["steps"], strict=True):
            assert max(a + b) < 13 or min(a + b) >= 13  # 27 rows: the median is row 13
            assert abs(len(a) - len(b)) <= 2
            seen += a + b
        assert set(seen) == set(range(27)) and len(seen) - 27 <= 3  # evened batches repeat some
        assert one["used"] == other["used"] and one["checkpointed"] == other["checkpointed"]
        assert torch.equal(one["weights"], other["weights"])
    for rank in ranks:
        assert rank["one_lane"]["steps"] == rank["plain"]["steps"]
        assert torch.equal(rank["one_lane"]["weights"], rank["plain"]["weights"])
        kinds = ["b" if min(step) >= 27 else "c" for step in rank["monitored"]["steps"]]
        assert "".join(kinds).startswith("cccccbbbb"), kinds
        assert all(max(s) < 27 or min(s) >= 27 for s in rank["monitored"]["steps"])
    assert ranks[0]["switches"] == ranks[1]["switches"] == 2
