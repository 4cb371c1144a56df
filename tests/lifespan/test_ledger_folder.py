"""Runs whose ledger lies in files: the same run, resumed the same, refused by name."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleIndex, SampleLedger, SampleLifespanCallback
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.lifespan import life_views, output
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.reporting import read_metrics
from tests.lifespan.runs import random_rows, train
from tests.processes import launch_script

KEPT = {"warmup_visits": 2, "sync_every": 2}


def run(output_dir, folder=None, known=True, fail=None, resume=False, **settings):
    config = LifespanConfig(ledger_folder=folder, index_dataset=known, **KEPT)
    callback = SampleLifespanCallback(config)
    done = train(
        [callback], output_dir=output_dir, max_steps=20, save_strategy="steps", save_steps=7,
        fail=fail, resume=resume, **settings,
    )  # fmt: skip
    return callback, done


def own_metrics(folder):
    """What the callback logged, line by line."""
    lines = ({k: v for k, v in m.items() if "lifespan/" in k} for m in read_metrics(folder))
    return [line for line in lines if line]


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 11:
            raise RuntimeError("killed")


@pytest.mark.parametrize("known", [True, False], ids=["indexed", "streamed"])
def test_a_run_in_files_is_the_run_in_memory_and_resumes_as_one(tmp_path, known):
    memory, plain = run(tmp_path / "a", known=known)
    files = str(tmp_path / "files")
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "b", files, known, fail=Stop)
    disk, resumed = run(tmp_path / "b", files, known, resume=True)
    assert resumed.losses[-9:] == plain.losses[-9:]
    pd.testing.assert_frame_equal(disk.ledger.to_pandas(), memory.ledger.to_pandas())
    folder = tmp_path / "files" / "lifespan" / "rank0"
    opened = SampleLedger.open(folder)
    columns = opened.to_pandas().columns.drop("row")
    pd.testing.assert_frame_equal(opened.to_pandas()[columns], memory.ledger.to_pandas()[columns])
    ours, theirs = (own_metrics(tmp_path / n) for n in "ab")
    assert ours == theirs and len(ours) == 20
    for name in ("samples.csv", "observation_pool.jsonl", "data_map.html"):
        texts = [(tmp_path / n / "lifespan" / name).read_bytes() for n in "ab"]
        assert texts[0] == texts[1], name


def test_files_of_another_run_are_refused_before_the_first_step(tmp_path):
    files = str(tmp_path / "files")
    run(tmp_path / "a", files)
    with pytest.raises(StateError, match=r"rank0: holds the ledger of a run on other data"):
        run(tmp_path / "b", files, rows=random_rows(6, seed=8))
    again, _ = run(tmp_path / "c", files)
    assert again.ledger.column("lifetime").sum() == 40
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "blocked").write_text("")
    with pytest.raises(StateError, match="cannot write"):
        run(tmp_path / "e", str(tmp_path / "d" / "blocked"))


def test_small_blocks_change_no_figure_and_no_file(tmp_path, monkeypatch):
    whole, _ = run(tmp_path / "a")
    monkeypatch.setattr(life_views, "ROWS_PER_BLOCK", 3)
    monkeypatch.setattr(output, "_ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(output, "MAP_DOTS", 4)
    parts, _ = run(tmp_path / "b")
    pd.testing.assert_frame_equal(parts.ledger.to_pandas(), whole.ledger.to_pandas())
    for name in ("samples.csv", "observation_pool.jsonl"):
        texts = [(tmp_path / n / "lifespan" / name).read_bytes() for n in "ab"]
        assert texts[0] == texts[1], name
    pool = [json.loads(line) for line in texts[0].decode().splitlines()]
    known = [row["suspicion"] for row in pool if row["suspicion"] is not None]
    assert known == sorted(known, reverse=True)


def test_cases_and_their_loss_ranks_are_those_of_the_whole_frame():
    life = SampleLife(LifespanConfig(), SampleIndex(torch.arange(9)))
    ledger = life.ledger
    ledger.column("lifetime")[:8] = 2
    ledger.column("loss_sum")[:8] = torch.tensor([2.0, 6, 4, 4, 8, 1, 4, 3])
    ledger.column("state")[torch.tensor([1, 2, 5, 8])] = 1
    frame = ledger.to_pandas()
    frame["loss_rank"] = frame["loss_mean"].rank(pct=True)
    expected = frame[frame["state"] == "OBSERVED"].reset_index(drop=True)
    pd.testing.assert_frame_equal(life.cases(), expected)
    pd.testing.assert_frame_equal(life.spread(3), frame.iloc[::3].reset_index(drop=True))
    assert life.cases()["row"].tolist() == [1, 2, 5]
    assert SampleLife(LifespanConfig()).cases().empty


_TWO_PROCESSES = """
import os, sys
sys.path.insert(0, {root!r})
import torch
torch.set_num_threads(1)
from tests.lifespan.runs import random_rows, train
from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
folder = sys.argv[1]
callback = SampleLifespanCallback(LifespanConfig(ledger_folder=folder + "/files", sync_every=1))
train([callback], rows=random_rows(12), output_dir=folder, max_steps=6, ddp_backend="gloo")
assert torch.distributed.get_world_size() == 2
"""


@pytest.mark.slow
def test_each_of_two_processes_has_files_of_its_own_with_one_content(tmp_path):
    launch_script(_TWO_PROCESSES, tmp_path)
    folders = [tmp_path / "files" / "lifespan" / f"rank{rank}" for rank in (0, 1)]
    first, second = (SampleLedger.open(folder).to_pandas() for folder in folders)
    pd.testing.assert_frame_equal(first, second)
    assert first["lifetime"].sum() == 24
