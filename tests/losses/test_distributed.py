"""Two gloo processes swap, refuse and join at the same steps, and hold the same weights."""

from __future__ import annotations

import json

import pytest
import torch

from tests.processes import launch_script

_SCRIPT = """
import json, os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from transformers import TrainerCallback
from tests.lifespan.runs import random_rows, train
from hf_glm_curriculum import CompositeLoss, CompositeLossCallback, LossSwapCallback
from hf_glm_curriculum.losses.terms import CausalLMLoss, TemperatureLoss, ZLoss
folder, rank = sys.argv[1], int(os.environ["RANK"])

def sick(context):
    bad = rank == 1 and context.step == 4
    return context.token_loss.mean() * (float("nan") if bad else 0.1)

def raises(context):
    if rank == 1:
        raise ValueError("only here")
    return context.token_loss.mean()

composite = CompositeLoss({{"lm": CausalLMLoss(), "soft": TemperatureLoss(2.0), "sick": sick}})
composite.register("z", ZLoss())
composite.register("raises", raises)
EDITS = {{
    2: "loss: {{soft: 0.3}}",
    3: "loss: {{soft: 0.3, z: {{joined: true, weight: 0.001}}, raises: {{joined: true}}}}",
    5: "loss: {{sof: 0.1}}",
}}
weights, params = [], []

class Editor(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        params.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        weights.append(composite.weights)

    def on_step_end(self, args, state, control, **kwargs):
        if rank == 0 and state.global_step in EDITS:
            with open(f"{{folder}}/control.yaml", "w") as file:
                file.write(EDITS[state.global_step])

callbacks = [
    CompositeLossCallback(composite),
    LossSwapCallback(composite, poll_every=1, settle_seconds=0.0),
    Editor(),
]
run = train(
    callbacks, rows=random_rows(40), output_dir=folder, max_steps=16, ddp_backend="gloo",
    average_tokens_across_devices=True, max_grad_norm=0.0,
)
assert torch.distributed.get_world_size() == 2
assert torch.equal(params[4], params[5]) and not torch.equal(params[5], params[6])
params.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
torch.save(params, f"{{folder}}/rank{{rank}}.pt")
logged = [h for h in run.trainer.state.log_history if "losses/lm" in h]
with open(f"{{folder}}/rank{{rank}}.json", "w") as file:
    json.dump({{"weights": weights, "edits": composite.edits, "logged": logged}}, file)
"""


@pytest.mark.slow
def test_two_processes_apply_every_change_at_the_same_step(tmp_path):
    launch_script(_SCRIPT, tmp_path)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert [w["soft"] for w in first["weights"]] == [1.0] * 2 + [0.3] * 14
    # NaN came on rank 1 alone, in the step after the fourth: both refused it.
    assert [w["sick"] for w in first["weights"]] == [1.0] * 4 + [0.0] * 12
    assert [step for step, w in enumerate(first["weights"], 1) if "z" in w] == [14, 15, 16]
    assert all("raises" not in w for w in first["weights"])
    for rank, edits in enumerate((first["edits"], second["edits"])):
        told = {e.get("term", "file"): e for e in edits}
        assert [e["step"] for e in edits] == [2, 3, 5, 13, 13]
        assert "did you mean soft?" in edits[2]["refused"]
        assert told["z"]["joined"]
        where = "an error on another rank" if rank == 0 else "ValueError: only here"
        assert where in told["raises"]["reason"]
    one, other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(first["logged"]) == 16 and 0 < first["logged"][0]["losses/soft/share"] < 1
