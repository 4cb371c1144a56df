"""Neighbours on real runs: found, given, saved, resumed."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import ConfigError, StateError
from tests.lifespan.runs import random_rows, train


def alike_rows(n: int = 12) -> list[dict[str, list[int]]]:
    """Rows in two groups of like tokens; lengths differ, so no two rows are equal."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for i in range(n):
        first = 10 if i % 2 else 140
        length = 12 + i
        tokens = torch.randint(first, first + 40, (length,), generator=generator).tolist()
        rows.append({"input_ids": tokens, "labels": [-100] * 4 + tokens[4:]})
    return rows


class Die(TrainerCallback):
    """Ends the process's run at a step, as an exception does."""

    at = 0

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.at:
            raise RuntimeError("killed")


def run(config: LifespanConfig, **settings) -> SampleLifespanCallback:
    callback = SampleLifespanCallback(config, **settings.pop("callback", {}))
    train([callback], rows=alike_rows(), **settings)
    return callback


def test_neighbours_by_tokens_are_there_before_the_first_step():
    ledger = run(LifespanConfig(), max_steps=1).ledger
    table = ledger.column("neighbours")
    for row in range(12):
        found = [j for j in table[row].tolist() if j >= 0]
        assert len(found) >= 3
        assert all(j % 2 == row % 2 for j in found)


def test_neighbours_by_embedding_are_there_after_the_first_epoch():
    config = LifespanConfig(neighbours="embedding", neighbour_count=3)
    callback, known = SampleLifespanCallback(config), []

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            known.append(bool((callback.ledger.column("neighbours") >= 0).any()))

    train([callback, Look()], rows=alike_rows(), max_steps=18)
    ledger = callback.ledger
    assert known == [False] * 6 + [True] * 12
    assert (ledger.column("neighbours") >= 0).all()
    assert torch.isfinite(ledger.column("neighbour_distance")).all()
    assert torch.isfinite(ledger.column("drift")).all()


def test_given_neighbours_are_used_and_checked():
    table = [[(row + 1) % 12] for row in range(12)]
    ledger = run(LifespanConfig(), max_steps=1, callback={"neighbours": table}).ledger
    assert ledger.column("neighbours")[:, 0].tolist() == [row[0] for row in table]
    assert (ledger.column("neighbours")[:, 1:] == -1).all()
    with pytest.raises(ConfigError, match=r"neighbours: must be integers \[12, k\]"):
        run(LifespanConfig(), max_steps=1, callback={"neighbours": table[:5]})


def test_drift_without_neighbours_is_the_movement_since_the_last_visit():
    alone = run(LifespanConfig(neighbours="none"), max_steps=12).ledger
    among = run(LifespanConfig(weighting="none", neighbours="minhash"), max_steps=12).ledger
    assert "neighbours" not in alone.tensors()
    assert torch.isfinite(alone.column("drift")).all()
    assert not torch.allclose(alone.column("drift"), among.column("drift"))


def test_a_stream_says_that_it_has_no_neighbours(caplog):
    run(LifespanConfig(index_dataset=False), max_steps=2)
    assert "drift compares a sample with its own last visit only" in caplog.text


@pytest.mark.parametrize("neighbours", ["minhash", "embedding"])
@pytest.mark.parametrize("at", [12, 14], ids=["boundary", "inside"])
def test_resume_equals_a_straight_run(tmp_path, neighbours, at):
    """A checkpoint of an epoch's last step misses that epoch's end, which is made up for."""
    config = LifespanConfig(neighbours=neighbours, warmup_visits=2, life_threshold=9.0)
    settings = {"max_steps": 20, "save_strategy": "steps", "save_steps": at}
    whole = SampleLifespanCallback(config, judge=lambda cases: ["RESAMPLE"] * len(cases))
    straight = train([whole], rows=alike_rows(), output_dir=tmp_path / "a", **settings)
    fail = type("DieHere", (Die,), {"at": at + 1})
    with pytest.raises(RuntimeError, match="killed"):
        train(
            [SampleLifespanCallback(config, judge=whole.judge)],
            rows=alike_rows(),
            output_dir=tmp_path / "b",
            fail=fail,
            **settings,
        )
    second = SampleLifespanCallback(config, judge=whole.judge)
    resumed = train([second], rows=alike_rows(), output_dir=tmp_path / "b", resume=True, **settings)
    assert resumed.losses == straight.losses
    assert (whole.ledger.column("resamples") > 0).any()
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    for name in ("neighbours", "neighbour_distance", "embedding"):
        ours, theirs = second.ledger.column(name), whole.ledger.column(name)
        assert torch.equal(ours.nan_to_num(-9), theirs.nan_to_num(-9))


def test_a_checkpoint_of_another_neighbour_count_is_refused(tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    train([SampleLifespanCallback()], output_dir=tmp_path, rows=random_rows(), **settings)
    other = SampleLifespanCallback(LifespanConfig(neighbours="none"))
    with pytest.raises(StateError, match="keeps 5 neighbours a sample and the config asks for 0"):
        train([other], output_dir=tmp_path / "c", resume=str(tmp_path / "checkpoint-2"), **settings)
