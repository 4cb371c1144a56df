"""Two gloo processes: DDP through ``accelerate launch``, and parameters sharded by torch itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.gates import LayerGates
from hf_glm_curriculum.migration.schedule import layer_weights
from hf_glm_curriculum.models import decoder_layers
from tests.migration.runs import ROWS, migration, run
from tests.migration.tiny import combined, family, gradients, random_batch, token_losses
from tests.processes import launch_script, run_two

STEEP = MigrationConfig(gamma_bottom=3.0, gamma_top=0.5)

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from hf_glm_curriculum.reporting import read_metrics
from tests.migration.runs import migration, run
callback = migration()
done = run(
    [callback], output_dir=sys.argv[1], max_steps=3, per_device_train_batch_size=1,
    average_tokens_across_devices=True, ddp_backend="gloo",
)
assert torch.distributed.get_world_size() == 2
assert isinstance(done.trainer.model_wrapped, torch.nn.parallel.DistributedDataParallel)
rank = int(os.environ["RANK"])
torch.save([p.detach() for p in done.model.parameters()], f"{{sys.argv[1]}}/rank{{rank}}.pt")
if rank == 0:
    line = [m for m in read_metrics(sys.argv[1]) if "migration/progress" in m][-1]
    torch.save(line, f"{{sys.argv[1]}}/line.pt")
"""


@pytest.mark.slow
def test_two_processes_are_one_with_twice_the_batch(tmp_path):
    launch_script(_SCRIPT, tmp_path, timeout=500)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1)]
    assert all(map(torch.equal, *ranks))
    alone = run([migration()], max_steps=3, output_dir=tmp_path / "alone")
    for both, one in zip(ranks[0], alone.model.parameters(), strict=True):
        assert torch.allclose(both, one, atol=1e-4)
    line = torch.load(tmp_path / "line.pt")
    assert line["migration/steps_with_both"] == 1.0  # each rank held one objective only
    assert 0.3 < line["migration/ratio_trained"] < 0.7 and len(ROWS) == 10


def _sharded(rank: int, folder: str, kind: str, checkpointed: bool) -> None:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
    model: Any = family(kind, tied=True)
    if checkpointed:
        model.activation_checkpointing_enable({"use_reentrant": False})
    mesh = init_device_mesh("cpu", (2,))
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    gates = LayerGates(model)
    gates.attach()
    gates.set_weights(layer_weights(0.3, gates.blocks, STEEP))
    for seed in (1, 2):  # accumulated
        losses, _ = token_losses(model, random_batch(seed=10 * rank + seed))
        (losses * gates.assign(torch.tensor([0, 1, 0, 1]))[:, None]).sum().backward()
    found = {n: p.grad.full_tensor() for n, p in model.named_parameters()}
    if rank == 0:
        torch.save(found, f"{folder}/gradients.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("checkpointed", [False, True], ids=["", "checkpointed"])
@pytest.mark.parametrize("kind", ["glm4", "gpt2"])
def test_sharded_parameters_have_the_gradients_of_whole_ones(kind, checkpointed, tmp_path):
    """Mean over ranks of two backwards combined; tied embeddings have both shares."""
    run_two(_sharded, tmp_path, str(tmp_path), kind, checkpointed)
    ours = torch.load(tmp_path / "gradients.pt")
    model, twin = family(kind, tied=True), family(kind, tied=False)
    twin.load_state_dict(model.state_dict())
    batches = [random_batch(seed=10 * rank + seed) for rank in (0, 1) for seed in (1, 2)]
    objective = torch.tensor([0, 1, 0, 1])[:, None]
    weights = layer_weights(0.3, 3, STEEP)
    from tests.migration.tiny import tied_sum

    theirs = tied_sum(combined(twin, batches, [objective] * 4, weights), model)
    assert ours.keys() == theirs.keys() and not gradients(model)
    for name, value in theirs.items():
        assert (2 * ours[name] - value).norm() <= 1e-5 * value.norm(), name
