"""Two processes: neutral is the plain trainer, and signals are what one sample at a time gives."""

from __future__ import annotations

import json

import pytest

from tests.processes import launch_script

_SCRIPT = """
import itertools, json, os, sys
sys.path.insert(0, {root!r})
import pytest, torch
torch.set_num_threads(1)
from tests.conftest import build_model
from tests.lifespan.runs import one_at_a_time, random_rows
from tests.lifespan.hosts import assert_same_training, host
from tests.lifespan.test_exactness import NEUTRAL
from hf_glm_curriculum import SampleLifespanCallback
rank, seen = int(os.environ["RANK"]), []
for sft, average, window in itertools.product((False, True), (False, True), (1, 2)):
    settings = dict(
        sft=sft, average_tokens_across_devices=average, gradient_accumulation_steps=window,
        rows=random_rows(12), ddp_backend="gloo", max_steps=3, max_grad_norm=0.0,
    )
    name = f"{{sys.argv[1]}}/{{sft}}{{average}}{{window}}"
    plain = host(name + "plain", [], **settings).train()
    callback = SampleLifespanCallback(NEUTRAL)
    watched = host(name + "watched", [callback], **settings).train()
    assert torch.distributed.get_world_size() == 2
    assert_same_training(watched, plain)
    frame = callback.ledger.to_pandas()
    # Three batches an epoch: windows of two are one of two and one of one.
    assert frame["lifetime"].sum() == {{1: 12, 2: 20}}[window]
    first = SampleLifespanCallback(NEUTRAL)
    host(name + "first", [first], **{{**settings, "max_steps": 1}}).train()
    one = first.ledger.to_pandas()
    losses, norms = one_at_a_time(build_model().train(), [random_rows(12)[i] for i in one["row"]])
    assert len(one) == 4 * window and one["loss"].tolist() == pytest.approx(losses, abs=1e-5)
    assert one["grad_norm"].tolist() == pytest.approx(norms, rel=1e-4)
    seen.append(frame[["row", "lifetime", "loss", "grad_norm"]].to_numpy().round(4).tolist())
with open(f"{{sys.argv[1]}}/rank{{rank}}.json", "w") as out:
    json.dump(seen, out)
"""


@pytest.mark.slow
def test_neutral_is_the_plain_trainer_on_two_processes(tmp_path):
    launch_script(_SCRIPT, tmp_path, timeout=500)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
