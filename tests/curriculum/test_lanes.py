"""Lanes on a trainer: what a step holds, at which rate and effort, and what is exact."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_glm_curriculum import SampleLifespanCallback
from hf_glm_curriculum.curriculum.lane_build import build_lanes
from hf_glm_curriculum.curriculum.lane_callback import LaneCallback
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.curriculum.lane_data import LaneDataset
from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, StateError
from hf_glm_curriculum.reporting import read_metrics
from tests.curriculum.lane_runs import SAME_NUMBERS, laned, parameters, random_rows, train
from tests.lifespan.runs import add_lora, build_model

HOSTS = pytest.mark.parametrize("sft", [False, True], ids=["trainer", "sft"])
ROWS = random_rows(20)
ONE_LANE = {"fast_batch_factor": 1, "fast_lr_factor": 1.0, "shuffle": False, **SAME_NUMBERS}


# -- what a step holds -----------------------------------------------------------------------------


@HOSTS
def test_steps_hold_one_lane_fast_ones_twice_the_rows(tmp_path, sft):
    """20 rows, 10 fast: batch 2 makes 3 fast steps of 4, 4 and 2 rows and 5 refine steps of 2."""
    seen, trainer = train(tmp_path, laned(ROWS), ROWS, [], sft=sft)
    assert trainer.state.global_step == 2 * 8
    for epoch in (seen.flat[:8], seen.flat[8:]):
        assert sorted(row for step in epoch for row in step) == list(range(20))
        fast = [step for step in epoch if step[0] < 10]
        assert all(max(step) < 10 for step in fast)
        assert sorted(map(len, fast)) == [2, 4, 4]
        assert [len(step) for step in epoch if step[0] >= 10] == [2] * 5
    assert seen.flat[:8] != seen.flat[8:]


@pytest.mark.new_trl
def test_the_newest_trl_reads_lanes(tmp_path):
    seen, _ = train(tmp_path, laned(ROWS), ROWS, [], sft=True, num_train_epochs=1)
    assert sorted(row for step in seen.flat for row in step) == list(range(20))
    assert all(max(step) < 10 or min(step) >= 10 for step in seen.flat)


def test_accumulated_steps_hold_one_lane(tmp_path):
    seen, trainer = train(tmp_path, laned(ROWS), ROWS, [], gradient_accumulation_steps=2)
    assert trainer.state.global_step == 2 * (2 + 3)
    for step, batches in zip(seen.flat, seen.rows, strict=True):
        assert max(step) < 10 or min(step) >= 10
        assert len(batches) == (1 if len(step) == 2 else 2)  # the last refine step is short
    assert sorted(map(len, seen.flat[:5])) == [2, 4, 4, 5, 5]


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [("easy_first", "ffffrrrr"), ("alternating", "frfrfrfr")],
)
def test_schedules(tmp_path, schedule, wanted):
    rows = random_rows(24)
    config = LaneConfig(schedule=schedule, threshold=16.0, **SAME_NUMBERS)
    seen, _ = train(tmp_path, laned(rows, config), rows, [], num_train_epochs=1)
    assert "".join("f" if step[0] < 16 else "r" for step in seen.flat) == wanted


def test_the_mixed_schedule_differs_by_epoch_and_seed(tmp_path):
    orders = [
        train(tmp_path, laned(ROWS, LaneConfig(seed=seed)), ROWS, [], num_train_epochs=1)[0].flat
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_workers_read_the_order_of_their_epoch(tmp_path):
    straight, _ = train(tmp_path, laned(ROWS), ROWS, [])
    seen, _ = train(tmp_path, laned(ROWS), ROWS, [], dataloader_num_workers=2)
    assert seen.rows == straight.rows


def test_an_incomplete_last_batch_may_be_dropped(tmp_path):
    config = LaneConfig(quantile=0.0, **SAME_NUMBERS)
    rows = random_rows(11)
    data = laned(rows, config)
    seen, _ = train(tmp_path, data, rows, [], dataloader_drop_last=True, num_train_epochs=3)
    assert list(map(len, seen.flat)) == [2] * 15


# -- pace ----------------------------------------------------------------------------------------


def test_fast_steps_have_their_own_rate_and_the_scheduler_keeps_its_own(tmp_path):
    rows = random_rows(20)
    model = build_model()
    seen, trainer = train(tmp_path, laned(rows), rows, [], model=model, lr_scheduler_type="cosine")
    plain, _ = train(
        tmp_path, Dataset.from_list(rows), rows, [], max_steps=16, lr_scheduler_type="cosine"
    )
    assert seen.after == plain.after  # to the bit
    for step, used, after in zip(seen.flat, seen.used, [*seen.after], strict=True):
        assert used == after * (1.5 if step[0] < 10 else 1.0)
    groups = trainer.optimizer.param_groups
    assert len(groups) == 2 and groups[0]["lr"] == groups[1]["lr"]


def test_refine_steps_recompute_in_bfloat16_and_nothing_else_does(tmp_path):
    seen, trainer = train(tmp_path, laned(ROWS), ROWS, [], num_train_epochs=1)
    refine = [step[0] >= 10 for step in seen.flat]
    assert seen.checkpointed == refine
    assert not trainer.model.is_activation_checkpointing
    assert not any("gradient_checkpointing" in vars(m) for m in trainer.model.model.layers)
    assert not torch.is_autocast_enabled("cpu")
    # Recomputing stops short of the layer's last output, so each step is seen once.
    assert seen.dtypes == [torch.bfloat16 if r else torch.float32 for r in refine]


def test_checkpointing_changes_no_number(tmp_path):
    runs = []
    for on in (True, False):
        config = LaneConfig(refine_checkpointing=on, **SAME_NUMBERS)
        runs.append(train(tmp_path, laned(ROWS, config), ROWS, []))
    (with_it, one), (without, other) = runs
    assert any(with_it.checkpointed) and not any(without.checkpointed)
    assert torch.equal(parameters(one), parameters(other))


def test_a_users_checkpointing_and_precision_stay(tmp_path, caplog):
    seen, trainer = train(tmp_path, laned(ROWS), ROWS, [], gradient_checkpointing=True, bf16=True)
    assert all(seen.checkpointed) and trainer.model.is_activation_checkpointing
    assert set(seen.dtypes) == {torch.bfloat16}
    assert "gradient_checkpointing is on" in caplog.text


def test_lora_trains_in_both_lanes(tmp_path):
    rows = ROWS
    model = add_lora(build_model())
    before = parameters(type("T", (), {"model": model}))
    callback = LaneCallback(data := laned(rows))
    from transformers import Trainer

    from tests.lifespan.runs import Collator, arguments

    args = arguments(tmp_path, max_steps=8, train_sampling_strategy="sequential")
    Trainer(model, args, train_dataset=data, data_collator=Collator(), callbacks=[callback]).train()
    assert not torch.equal(before, parameters(type("T", (), {"model": model})))


# -- exactness -------------------------------------------------------------------------------------


@HOSTS
@pytest.mark.parametrize("quantile", [0.0, 1.0], ids=["refine", "fast"])
def test_one_lane_with_factors_one_is_the_plain_trainer(tmp_path, quantile, sft):
    rows = random_rows(11)
    config = LaneConfig(quantile=quantile, refine_checkpointing=False, **ONE_LANE)
    settings = {"gradient_accumulation_steps": 2, "sft": sft}
    ours, one = train(tmp_path, laned(rows, config), rows, [], **settings)
    plain, other = train(tmp_path, Dataset.from_list(rows), rows, [], **settings)
    assert ours.rows == plain.rows and ours.used == plain.used
    assert torch.equal(parameters(one), parameters(other))


def test_observe_only_changes_nothing_and_tells_the_lanes_apart(tmp_path):
    data = laned(ROWS, LaneConfig(observe_only=True))
    settings = {"train_sampling_strategy": "random"}
    ours, one = train(tmp_path / "a", data, ROWS, [], **settings)
    plain, other = train(tmp_path / "b", Dataset.from_list(ROWS), ROWS, [], **settings)
    assert ours.rows == plain.rows and torch.equal(parameters(one), parameters(other))
    lines = [m for m in read_metrics(tmp_path / "a") if "lanes/loss_fast" in m]
    assert lines and not any("lanes/steps_fast" in m for m in lines)
    totals = json.loads((tmp_path / "a" / "lanes" / "lanes.json").read_text())["lanes"]
    assert totals["fast"]["samples"] == totals["refine"]["samples"] == 20


@pytest.mark.parametrize(
    ("at", "sft"),
    [(8, False), (11, False), (5, True)],
    ids=["boundary", "second", "first-sft"],
)
def test_resume_equals_a_straight_run(tmp_path, sft, at):
    settings = {"save_strategy": "steps", "save_steps": at, "sft": sft}
    straight, whole = train(tmp_path / "a", laned(ROWS), ROWS, [], **settings)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "b", laned(ROWS), ROWS, [], fail_at=at + 1, **settings)
    resumed, again = train(tmp_path / "b", laned(ROWS), ROWS, [], resume=True, **settings)
    assert resumed.rows == straight.rows[at:] and resumed.used == straight.used[at:]
    assert torch.equal(parameters(again), parameters(whole))
    one, other = (
        json.loads((tmp_path / run / "lanes" / "lanes.json").read_text())["lanes"]
        for run in ("a", "b")
    )
    for lane in ("fast", "refine"):
        assert one[lane]["label_tokens"] == other[lane]["label_tokens"] > 0
        assert one[lane]["steps"] == other[lane]["steps"]


def test_a_run_that_dies_leaves_the_rates_alone(tmp_path):
    rows = random_rows(8)
    data = laned(rows, LaneConfig(quantile=1.0))
    callback = LaneCallback(data)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, data, rows, [callback], fail_at=1)
    callback.detach()
    seen, _ = train(tmp_path, data, rows, [callback])
    assert seen.used[0] == pytest.approx(1.5e-2)


# -- reports ---------------------------------------------------------------------------------------


def test_each_lane_is_reported(tmp_path):
    train(tmp_path, laned(ROWS), ROWS, [], logging_steps=8)
    lines = [m for m in read_metrics(tmp_path) if "lanes/loss_fast" in m]
    assert len(lines) == 2
    for line in lines:
        assert line["lanes/steps_fast"] == 3 and line["lanes/steps_refine"] == 5
        assert line["lanes/token_share_fast"] + line["lanes/token_share_refine"] == pytest.approx(1)
        assert 3 < line["lanes/loss_refine"] < 8
        assert line["lanes/label_tokens_per_second_fast"] > 0
    found = json.loads((tmp_path / "lanes" / "lanes.json").read_text())
    assert found["threshold"] == 9.5 and found["fast"] == 10
    assert (tmp_path / "lanes" / "lanes.png").stat().st_size > 0


def test_lifespan_reads_the_rows_behind_the_lanes(tmp_path):
    data = laned(ROWS)
    lifespan = SampleLifespanCallback()
    train(tmp_path, data, ROWS, [lifespan, LaneCallback(data)])
    frame = lifespan.ledger.to_pandas()
    assert sorted(frame["row"]) == list(range(20)) and set(frame["lifetime"]) == {2}


# -- the data set ----------------------------------------------------------------------------------


def test_the_wrapper_reads_like_the_data():
    data = laned(ROWS)
    assert len(data) == 20 and data[3] == ROWS[3] and list(data) == ROWS
    assert data["input_ids"][1] == ROWS[1]["input_ids"] and data[2:4]["labels"][1]
    assert type(data.unsampled) is Dataset and type(data.select([1, 2])) is Dataset
    assert pickle.loads(pickle.dumps(data)).lanes.tolist() == [0] * 10 + [1] * 10
    assert copy.deepcopy(data).plan is data.plan


def test_preparation_keeps_lanes_with_their_rows():
    data = laned(ROWS)
    kept = data.filter(lambda row, i: i % 3 == 0, with_indices=True)
    assert isinstance(kept, LaneDataset) and kept.lanes.tolist() == [0] * 4 + [1] * 3
    again = kept.map(lambda row: {"n": len(row["input_ids"])}).filter(
        lambda row, i: i != 1, with_indices=True
    )
    assert again.lanes.tolist() == [0] * 3 + [1] * 3
    assert again.remove_columns("labels").lanes.tolist() == again.lanes.tolist()
    with pytest.raises(DataError, match="map: made 40 rows of 20, whose lanes nobody knows"):
        data.map(
            lambda batch: {"input_ids": batch["input_ids"] * 2},
            batched=True,
            remove_columns=["labels"],
        )


def test_filter_after_select_with_repeats():
    rows = Dataset.from_list(ROWS).select([5, 19, 5, 0, 19])
    data = build_lanes(rows, scores=[0.0, 9.0, 0.0, 1.0, 9.0], config=LaneConfig(threshold=5.0))
    assert data.filter(lambda row, i: i != 0, with_indices=True).lanes.tolist() == [1, 0, 0, 1]


def test_text_rows_are_scored_before_sft_tokenises_them(tmp_path):
    class Longest:
        def score(self, texts):
            return [float(len(text)) for text in texts]

    rows = [{"prompt": "q" * (i + 1), "completion": f"answer {i}"} for i in range(8)]
    data = build_lanes(Dataset.from_list(rows), Longest(), config=LaneConfig(shuffle=False))
    assert data.lanes.tolist() == [0] * 4 + [1] * 4
    from trl import SFTConfig, SFTTrainer

    from tests.conftest import build_tokenizer
    from tests.lifespan.runs import arguments

    args = arguments(tmp_path, SFTConfig, max_length=64, train_sampling_strategy="sequential")
    trainer = SFTTrainer(
        build_model(),
        args=args,
        train_dataset=data,
        processing_class=build_tokenizer(),
        callbacks=[LaneCallback(data)],
    )
    assert isinstance(trainer.train_dataset, LaneDataset) and len(trainer.train_dataset) == 6
    trainer.train()
    assert trainer.state.global_step == 3


def test_texts_come_from_instructions_messages_or_tokens():
    from hf_glm_curriculum.curriculum.lane_scores import instruction_texts
    from tests.conftest import build_tokenizer

    chat = [
        {"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "a"}]}
    ]
    assert instruction_texts(Dataset.from_list(chat)) == ["ask"]
    alpaca = [{"instruction": "do", "input": "this", "output": "o"}]
    assert instruction_texts(Dataset.from_list(alpaca)) == ["do"]
    tokenizer = build_tokenizer()
    ask, answer = (tokenizer(text)["input_ids"] for text in ("ask", "answer"))
    tokens = [{"input_ids": ask + answer, "labels": [-100] * len(ask) + answer}]
    assert instruction_texts(Dataset.from_list(tokens), tokenizer=tokenizer) == ["ask"]
    with pytest.raises(DataError, match=r"pass scores=, column=, or tokenizer="):
        instruction_texts(Dataset.from_list(tokens))


# -- refusals --------------------------------------------------------------------------------------


def test_hosts_that_mix_lanes_are_refused(tmp_path):
    for strategy in ("random", "group_by_length"):
        with pytest.raises(IncompatibleError, match=f"'{strategy}' would mix the lanes"):
            train(tmp_path, laned(ROWS), ROWS, [], train_sampling_strategy=strategy)
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    with pytest.raises(IncompatibleError, match="persistent workers keep the first epoch"):
        train(tmp_path, laned(ROWS), ROWS, [], **workers)
    with pytest.raises(IncompatibleError, match="auto_find_batch_size: the rows of a step"):
        train(tmp_path, laned(ROWS), ROWS, [], auto_find_batch_size=True)
    with pytest.raises(IncompatibleError, match="the trainer reads a Dataset and not what build"):
        train(tmp_path, Dataset.from_list(ROWS), ROWS, [LaneCallback(laned(ROWS))])


def test_a_batch_size_given_beforehand_must_be_the_trainers(tmp_path):
    from transformers import Trainer

    from tests.lifespan.runs import Collator, arguments

    def late(batch_size):
        data = laned(ROWS, batch_size=batch_size)
        args = arguments(tmp_path, train_sampling_strategy="sequential")
        trainer = Trainer(build_model(), args, train_dataset=data, data_collator=Collator())
        trainer.add_callback(LaneCallback(data))
        return trainer

    late(2).train()
    with pytest.raises(IncompatibleError, match="the lanes are laid out for Steps\\(batch=4"):
        late(4).train()


def test_settings_data_and_scores_are_checked():
    for setting in ({"quantile": 1.5}, {"fast_batch_factor": 0}, {"fast_lr_factor": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            LaneConfig(**setting)
    with pytest.raises(ConfigError, match="float16 needs the trainer's loss scaling"):
        LaneConfig(refine_autocast=torch.float16)
    assert LaneConfig(refine_autocast=torch.bfloat16).refine_autocast is True
    with pytest.raises(DataError, match="needs one number for each of the 20 rows"):
        laned(ROWS, scores=[1.0])
    with pytest.raises(DataError, match="must be finite, got nan for row 3 and 0 more"):
        laned(ROWS, scores=[math.nan if i == 3 else 0.0 for i in range(20)])
    with pytest.raises(DataError, match="got IterableDataset; samples drawn from a stream"):
        build_lanes(Dataset.from_list(ROWS).to_iterable_dataset(), scores=np.zeros(20))
    with pytest.raises(ConfigError, match="lanes: must be what build_lanes returns"):
        LaneCallback(Dataset.from_list(ROWS))


def test_resume_with_other_lanes_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 4}
    train(tmp_path, laned(ROWS), ROWS, [], num_train_epochs=1, **settings)
    with pytest.raises(StateError, match="belongs to lanes of other rows, settings or batch"):
        train(tmp_path, laned(ROWS, LaneConfig(seed=1)), ROWS, [], resume=True, **settings)


def test_a_laned_set_without_its_callback_says_so(tmp_path, caplog):
    train(tmp_path, laned(ROWS, batch_size=2), ROWS, [SampleLifespanCallback()])
    assert "put LaneCallback(data) into the trainer's callbacks" in caplog.text
