"""Two gloo processes through ``accelerate launch`` hold the same ledger as one process."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from tests.lifespan.runs import random_rows, train
from tests.processes import launch_script

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.lifespan.runs import random_rows, train
from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
folder, known, sft = sys.argv[1], sys.argv[2] == "known", sys.argv[3] == "sft"
rank = int(os.environ["RANK"])
callback = SampleLifespanCallback(LifespanConfig(index_dataset=known, sync_every=1))
run = train(
    [callback], sft=sft, rows=random_rows(12), output_dir=folder, max_steps=-1,
    num_train_epochs=3, per_device_train_batch_size=2, average_tokens_across_devices=True,
    max_grad_norm=0.0, ddp_backend="gloo", save_strategy="steps", save_steps=4,
)
assert torch.distributed.get_world_size() == 2
assert isinstance(run.trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
callback.ledger.to_pandas().to_pickle(f"{{folder}}/rank{{rank}}.pkl")
torch.save([p.detach() for p in run.trainer.model.parameters()], f"{{folder}}/rank{{rank}}.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("known", ["known", "streamed"])
@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_two_processes_hold_one_ledger(tmp_path, host, known):
    launch_script(_SCRIPT, tmp_path, known, host)
    first, second = (pd.read_pickle(tmp_path / f"rank{rank}.pkl") for rank in (0, 1))
    pd.testing.assert_frame_equal(first, second)
    assert (first["lifetime"] == 3).all() and len(first) == 12
    weights = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    for ours, theirs in zip(*weights, strict=True):
        assert torch.equal(ours, theirs)
    alone = SampleLifespanCallback(LifespanConfig(index_dataset=known == "known", sync_every=1))
    run = train(
        [alone],
        sft=host == "sft",
        rows=random_rows(12),
        max_steps=-1,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        max_grad_norm=0.0,
    )
    columns = ["id", "loss", "grad_norm", "weight", "suspicion"]
    ours = first[columns].sort_values("id", ignore_index=True)
    theirs = alone.ledger.to_pandas()[columns].sort_values("id", ignore_index=True)
    pd.testing.assert_frame_equal(ours, theirs, rtol=1e-3, atol=1e-4)
    for one, both in zip(run.model.parameters(), weights[0], strict=True):
        assert torch.allclose(one, both, atol=1e-4)
