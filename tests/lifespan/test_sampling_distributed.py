"""Two gloo processes draw one epoch between them and hear one judge."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from tests.processes import launch_script

_SCRIPT = """
import os, random, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.lifespan.test_sampling import LifespanConfig, counts, run, states
from tests.lifespan.runs import random_rows
from hf_glm_curriculum import SampleLifespanCallback
folder, rank = sys.argv[1], int(os.environ["RANK"])
config = LifespanConfig(weighting="none", life_threshold=0.0, suspicion_threshold=1e9)
asked = []
def moody(cases):
    asked.append(len(cases))
    verdicts = ["MASTERED", "RELABEL", "RESAMPLE"]
    return [random.SystemRandom().choice(verdicts) for _ in range(len(cases))]
init = SampleLifespanCallback.__init__
def with_judge(self, config=None, **settings):
    init(self, config, judge=moody, **settings)
SampleLifespanCallback.__init__ = with_judge
def change(ledger, epoch):
    states(RELABEL=[0, 1, 2, 3])(ledger, epoch)
    if epoch == 2:
        ledger.column("state")[4:10] = 1  # OBSERVED: the end of the run judges them
callback, seen, trainer = run(
    folder, random_rows(16), config=config, change=change, ddp_backend="gloo",
)
assert torch.distributed.get_world_size() == 2
callback.ledger.to_pandas().to_pickle(f"{{folder}}/rank{{rank}}.pkl")
result = {{"ids": seen.ids, "rows": callback.ledger.index.row_ids.tolist(), "asked": asked}}
torch.save(result, f"{{folder}}/rank{{rank}}.pt")
"""


@pytest.mark.slow
def test_two_processes_draw_one_epoch_and_hear_one_judge(tmp_path):
    launch_script(_SCRIPT, tmp_path)
    frames = [pd.read_pickle(tmp_path / f"rank{rank}.pkl") for rank in (0, 1)]
    pd.testing.assert_frame_equal(*frames)
    assert set(frames[0]["state"]) > {"TRAINING", "RELABEL"}
    results = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    assert results[0]["asked"] == [6] and results[1]["asked"] == []
    half = len(results[0]["ids"]) // 2
    for start, stop, untouched in ((0, half, 0), (half, 2 * half, 4)):
        ids = [i for r in results for batch in r["ids"][start:stop] for i in batch]
        visits = [ids.count(row) for row in results[0]["rows"]]
        assert visits[:untouched] == [0] * untouched
        assert sum(visits) == 16 and max(visits) - min(visits[untouched:]) <= 1
