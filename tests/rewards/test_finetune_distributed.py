"""Two gloo processes through ``accelerate launch`` tune as one process with twice the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.rewards.finetune import finetune_backbone
from hf_glm_curriculum.rewards.training_config import (
    BackboneTrainingConfig,
    RewardTrainingConfig,
)
from tests.conftest import build_model, build_tokenizer
from tests.processes import launch_script
from tests.rewards.examples import DIMENSIONS, tiny_data

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from tests.rewards.test_finetune_distributed import tune
folder = Path(sys.argv[1])
trainer = tune(folder / "run", batch_size=4)
assert torch.distributed.get_world_size() == 2
assert isinstance(trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
weights = [p.detach() for p in trainer.model.parameters()]
torch.save(weights, folder / f"rank{{os.environ['RANK']}}.pt")
"""


def tune(folder: Path, batch_size: int):
    """Two epochs over 16 pairs."""
    torch.manual_seed(3)
    model = StructuredRewardModel.from_backbone(
        build_model(), build_tokenizer(), DIMENSIONS, head_hidden_size=8, head_dropout=0.0
    )
    tuning = BackboneTrainingConfig(
        backbone="full",
        backbone_epochs=2,
        backbone_batch_size=batch_size,
        backbone_learning_rate=1e-3,
        warmup=0,
    )
    config = RewardTrainingConfig(learning_rate=1e-3, tuning=tuning)
    return finetune_backbone(model, tiny_data(14), config, folder, cpu=True)


@pytest.mark.slow
def test_two_processes_tune_as_one(tmp_path):
    launch_script(_SCRIPT, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    alone = tune(tmp_path / "alone", batch_size=8)
    for one, two, single in zip(first, second, alone.model.parameters(), strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, single.detach(), atol=1e-4, rtol=0)
