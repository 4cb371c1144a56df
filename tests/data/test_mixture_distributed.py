"""Two gloo processes train on one mixture: its rows, each once, in both of accelerate's modes."""

from __future__ import annotations

import pytest
import torch

from tests.data.mixtures import mixture
from tests.data.test_mixture_training import ALL_WEB, Schedule, expected, run
from tests.processes import launch_script

_SCRIPT = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.data.test_mixture_training import ALL_WEB, MixtureCallback, Schedule, mixture, run
from tests.data import test_mixture_training as here
folder, rank = sys.argv[1], int(os.environ["RANK"])
results = {{}}
for mode, dispatch, host, workers, streamed in (
    ("dispatched", True, "trainer", 0, ()),
    ("sharded", False, "trainer", 1, ("chat",)),
    ("sft", False, "sft", 0, ()),
):
    if dispatch:  # rank 0 joins the batches of all ranks, so they must be of one width
        here.SftCollator = lambda pad: COLLATOR(pad, pad_to_multiple_of=32)
    mixed = mixture(ALL_WEB, streamed=streamed, stratify=8)
    seen = run(
        mixed, f"{{folder}}/{{mode}}", [MixtureCallback(mixed), Schedule(mixed)], host,
        gradient_accumulation_steps=2, dataloader_num_workers=workers, ddp_backend="gloo",
        accelerator_config={{"dispatch_batches": dispatch}}, save_strategy="steps", save_steps=12,
    )[0]
    here.SftCollator = COLLATOR
    results[mode] = {{
        "seen": seen, "changes": mixed.changes, "drawn": mixed.drawn(step=12),
        "lag": mixed.lag_steps,
    }}
assert torch.distributed.get_world_size() == 2
torch.save(results, f"{{folder}}/rank{{rank}}.pt")
""".replace("folder, rank =", "COLLATOR = here.SftCollator\nfolder, rank =")


@pytest.mark.slow
def test_two_processes_share_the_rows_of_a_mixture(tmp_path):
    launch_script(_SCRIPT, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for mode in ("dispatched", "sharded", "sft"):
        streamed = ("chat",) if mode == "sharded" else ()
        one, other = first[mode], second[mode]
        assert one["changes"] == other["changes"] and one["drawn"] == other["drawn"]
        alone = mixture(ALL_WEB, streamed=streamed, stratify=8, lag_steps=one["lag"])
        for step in range(1, 7):
            alone.set_ratios({"web": 1 - step / 8, "chat": step / 8}, step=step)
        assert alone.changes == one["changes"]
        rows = expected(12, 8, alone, streamed=streamed, stratify=8)
        for step, both in enumerate(zip(one["seen"], other["seen"], strict=True)):
            # Each of the two batches of a step is two rows of the one rank, then two of the other.
            together = [both[0][:2], both[1][:2], both[0][2:], both[1][2:]]
            assert [row for part in together for row in part] == rows[step]


def test_one_process_reads_the_same_rows_of_a_step(tmp_path):
    mixed = mixture(ALL_WEB, stratify=8)
    from hf_glm_curriculum import MixtureCallback

    steps, _ = run(
        mixed,
        tmp_path,
        [MixtureCallback(mixed), Schedule(mixed)],
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    assert steps == expected(12, 8, mixed, stratify=8)
