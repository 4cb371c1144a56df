"""Two gloo processes with two prompts each are one process with four."""

from __future__ import annotations

import json

import pytest
import torch

from tests.processes import launch_script

pytestmark = [pytest.mark.ppo, pytest.mark.slow]

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.ppo.runs import train
rank = int(os.environ["RANK"])
trainer = train(sys.argv[1] + "/run", 2, ddp_backend="gloo", gradient_accumulation_steps=1)
assert torch.distributed.get_world_size() == 2
assert isinstance(trainer.model, torch.nn.parallel.DistributedDataParallel)
# Five prompts, two at a time: one rank has a prompt more than the other.
trainer.args.per_device_eval_batch_size = 2
passes, plain = [], trainer.rollout
trainer.rollout = lambda batch, **how: passes.append(len(batch["prompts"])) or plain(batch, **how)
shared = trainer.evaluate(trainer.train_dataset.select([0, 1, 2, 3, 0]))
state = dict(trainer.bare_model.named_parameters())
if rank == 0:
    import json
    with open(sys.argv[1] + "/evaluated.json", "w") as file:
        json.dump(shared, file)
assert passes == [2, 1], passes  # on both
torch.save({{n: p.detach() for n, p in state.items()}}, f"{{sys.argv[1]}}/rank{{rank}}.pt")
"""


def test_two_processes_are_one(tmp_path):
    from tests.ppo.runs import train

    launch_script(_SCRIPT, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    alone = train(str(tmp_path / "alone"), 4)
    for name, parameter in alone.bare_model.named_parameters():
        assert torch.allclose(parameter, first[name], atol=1e-5), name
    files = (tmp_path / "run" / "metrics.jsonl", tmp_path / "alone" / "metrics.jsonl")
    both, one = ([json.loads(x) for x in f.read_text().splitlines()] for f in files)
    for ours, theirs in zip(both, one, strict=True):
        for name in ("objective/kl", "loss/policy_avg", "loss/value_avg", "structured/open"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4), name
    ours = json.loads((tmp_path / "evaluated.json").read_text())
    theirs = alone.evaluate(alone.train_dataset.select([0, 1, 2, 3, 0]))
    assert ours.keys() == theirs.keys()
    for name in ("eval_kl", "eval_structured/score_factual", "eval_structured/open_logic"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-4), name
