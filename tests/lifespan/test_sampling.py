"""Visits by weight: the draw, the wrapper, both trainers, resume, two processes."""

from __future__ import annotations

import copy
import pickle

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import DataError, IncompatibleError, StateError
from hf_glm_curriculum.lifespan.sampling import LifespanSampling, draw_visits
from hf_glm_curriculum.signals.ledger import SampleState
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.runs import Collator, arguments, random_rows

QUIET = LifespanConfig(weighting="none", life_threshold=0.0, suspicion_threshold=1e9)
"""Every weight 1, and no sample leaves TRAINING by itself."""
SEQUENTIAL = {"train_sampling_strategy": "sequential"}


class Seen(TrainerCallback):
    """Records the content ids of every training batch, and changes the ledger on demand."""

    def __init__(self, callback: SampleLifespanCallback, change=None, fail_at: int = 0) -> None:
        self.ids: list[list[int]] = []
        self.weights: list[list[float]] = []
        self.callback, self.change, self.fail_at = callback, change, fail_at

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        def look(module, positional, batch):
            if module.training:
                ids = content_ids(batch["input_ids"], batch.get("attention_mask"))
                self.ids.append(ids.tolist())

        self.hook = model.register_forward_pre_hook(look, with_kwargs=True)

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        if self.change is not None:
            self.change(self.callback.ledger, round(state.epoch))

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == self.fail_at:
            raise RuntimeError("killed")

    def on_train_end(self, args, state, control, **kwargs) -> None:
        self.hook.remove()


def run(
    folder,
    rows,
    *,
    sft: bool = False,
    config: LifespanConfig | None = None,
    change=None,
    fail_at: int = 0,
    seed: int = 0,
    resume: bool = False,
    prepare=lambda data: data,
    **settings,
):
    callback = SampleLifespanCallback(config)
    seen = Seen(callback, change, fail_at)
    data = prepare(LifespanSampling(Dataset.from_list(rows), callback, seed=seed))
    common = {"model": build_model(), "train_dataset": data, "callbacks": [callback, seen]}
    settings = {**SEQUENTIAL, "max_steps": -1, "num_train_epochs": 2, **settings}
    if sft:
        from trl import SFTConfig, SFTTrainer

        args = arguments(folder, SFTConfig, max_length=64, **settings)
        trainer = SFTTrainer(args=args, processing_class=build_tokenizer(), **common)
    else:
        args = arguments(folder, **settings)
        trainer = Trainer(args=args, data_collator=Collator(), **common)
    trainer.train(resume_from_checkpoint=resume or None)
    return callback, seen, trainer


def states(**by_name):
    """A change of the ledger at the end of the first epoch: rows by state."""

    def change(ledger, epoch) -> None:
        if epoch == 1:
            for name, rows in by_name.items():
                ledger.column("state")[torch.tensor(rows)] = SampleState[name].value

    return change


def counts(seen: Seen, callback: SampleLifespanCallback, start: int, stop: int) -> list[int]:
    """Visits of every row in batches start..stop."""
    ids = torch.tensor([i for batch in seen.ids[start:stop] for i in batch])
    rows = callback.ledger.lookup(ids)
    return torch.bincount(rows, minlength=len(callback.ledger)).tolist()


# -- the draw ------------------------------------------------------------------------------------


def test_visits_are_proportional_to_weights():
    weight = torch.tensor([0.0, 0.1, 0.5, 1.0, 2.0, 2.4]).repeat(50)
    expected = len(weight) * weight.double() / weight.sum()
    total = torch.zeros(len(weight))
    for epoch in range(400):
        order = draw_visits(weight, 0, epoch)
        assert len(order) == len(weight)
        visits = torch.bincount(order, minlength=len(weight))
        assert ((visits - expected).abs() < 1).all()  # floor or ceiling of what is expected
        total += visits
    assert (total[::6] == 0).all()
    part = expected % 1
    error = (total / 400 - expected).abs() / (part * (1 - part) + 0.01).sqrt()
    assert error.max() < 5 / 400**0.5  # five standard errors
    by_weight = total.view(50, 6).mean(0) / 400
    assert torch.allclose(by_weight.double(), expected[:6], rtol=0, atol=8e-3)


def test_equal_weights_visit_every_row_once():
    for n in (1, 7, 1000, 100_003):
        order = draw_visits(torch.full((n,), 0.3), 5, 1)
        assert torch.equal(order.sort().values, torch.arange(n))
        assert n < 10 or not torch.equal(order, torch.arange(n))


def test_the_draw_is_a_function_of_weights_seed_and_epoch():
    weight = torch.rand(100, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    first = draw_visits(weight, 3, 2)
    torch.manual_seed(2)
    assert torch.equal(first, draw_visits(weight, 3, 2))
    assert not torch.equal(first, draw_visits(weight, 3, 3))
    assert not torch.equal(first, draw_visits(weight, 4, 2))


@pytest.mark.parametrize("bad", [[0.0, 0.0], [1.0, -1.0], [float("nan"), 1.0]])
def test_weights_that_cannot_be_drawn_from_are_named(bad):
    with pytest.raises(DataError, match="weights: must be finite, ≥ 0 and not all 0"):
        draw_visits(torch.tensor(bad), 0, 0)


# -- the wrapper ---------------------------------------------------------------------------------


def test_the_wrapper_reads_like_the_data_until_an_epoch_is_drawn():
    rows = random_rows(6)
    data = Dataset.from_list(rows)
    wrapped = LifespanSampling(data, SampleLifespanCallback())
    assert wrapped[2] == rows[2] and wrapped[-1] == rows[-1] and len(wrapped) == 6
    assert list(wrapped) == rows and wrapped["input_ids"][1] == rows[1]["input_ids"]
    wrapped.plan.order = draw_visits(torch.tensor([0.0, 0, 0, 0, 1, 1]), 0, 0).numpy()
    drawn = [rows[row] for row in wrapped.plan.order]
    assert [wrapped[i] for i in range(6)] == drawn
    wrapped.plan.connected = True
    assert wrapped.__getitems__([0, 3, 5]) == [drawn[i] for i in (0, 3, 5)]
    assert wrapped["input_ids"][1] == rows[1]["input_ids"]
    assert wrapped.unsampled[0] == rows[0] and type(wrapped.unsampled) is Dataset
    assert pickle.loads(pickle.dumps(wrapped))[0] == drawn[0]
    assert copy.deepcopy(wrapped).plan is wrapped.plan


def test_preparation_keeps_the_wrapper():
    wrapped = LifespanSampling(Dataset.from_list(random_rows(6)), SampleLifespanCallback())
    prepared = [
        wrapped.map(lambda row: {"n": len(row["input_ids"])}),
        wrapped.filter(lambda row: True),
        wrapped.remove_columns("labels"),
        wrapped.select_columns(["input_ids"]),
        wrapped.with_format("numpy"),
        wrapped.rename_column("labels", "targets"),
        wrapped.add_column("n", list(range(6))),
    ]
    for data in prepared:
        assert isinstance(data, LifespanSampling) and data.plan is wrapped.plan
    assert prepared[0]["n"][3] == len(wrapped[3]["input_ids"])
    assert type(wrapped.select([1, 2])) is Dataset


def test_other_data_sets_are_refused():
    with pytest.raises(DataError, match=r"a datasets.Dataset or a non-empty list of rows, got set"):
        LifespanSampling({1}, SampleLifespanCallback())
    assert len(LifespanSampling(random_rows(3), SampleLifespanCallback())) == 3


# -- trainers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["trainer", "sft"])
def test_states_set_the_visits_of_the_next_epoch(tmp_path, host):
    """20 rows: 10 mastered, 4 to relabel, 6 in training at equal weights."""
    change = states(MASTERED=list(range(10)), RELABEL=[10, 11, 12, 13])
    callback, seen, trainer = run(
        tmp_path,
        random_rows(20),
        sft=host == "sft",
        config=QUIET,
        change=change,
        num_train_epochs=3,
    )
    assert counts(seen, callback, 0, 10) == [1] * 20
    for epoch in (1, 2):
        visits = counts(seen, callback, 10 * epoch, 10 * epoch + 10)
        assert sum(visits) == 20
        assert sum(visits[10:14]) == 0
        assert all(v in (0, 1) for v in visits[:10])  # 20 · 0.1 / 7 = 0.29 expected
        assert all(v in (2, 3) for v in visits[14:])  # 20 · 1 / 7 = 2.86 expected
    assert trainer.train_dataset.plan.order is None  # in its own order again


def test_the_loss_weight_is_one_unless_a_state_changed_since_the_draw(tmp_path):
    observed = []

    def change(ledger, epoch) -> None:
        if epoch == 1:
            ledger.column("state")[:10] = SampleState.MASTERED.value

    class Weights(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs) -> None:
            if state.global_step == 11:  # after the draw of the second epoch
                callback.ledger.column("state")[15] = SampleState.OBSERVED.value

        def on_log(self, args, state, control, **kwargs) -> None:
            observed.append(dump.signals)

    callback = SampleLifespanCallback(QUIET)
    dump = type("Dump", (), {"signals": None})()
    absorb = callback._life.__class__.absorb

    def remember(self, parts, gather=None):
        dump.signals = absorb(self, parts, gather)
        return dump.signals

    data = LifespanSampling(Dataset.from_list(random_rows(20)), callback)
    seen = Seen(callback, change)
    args = arguments(tmp_path, max_steps=20, **SEQUENTIAL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(callback._life.__class__, "absorb", remember)
        Trainer(
            model=build_model(),
            args=args,
            data_collator=Collator(),
            train_dataset=data,
            callbacks=[callback, seen, Weights()],
        ).train()
    late = [s for s in observed[11:] if s is not None]
    rows = torch.cat([callback.ledger.lookup(s.ids) for s in late])
    weights = torch.cat([s.weight for s in late])
    assert (weights[rows != 15] == 1).all() and (rows < 10).any()
    assert (weights[rows == 15] == 0.1).all() and (rows == 15).any()


@pytest.mark.parametrize("host", ["trainer", "sft"])
@pytest.mark.parametrize("at", [8, 10], ids=["inside", "boundary"])
def test_resume_sees_the_ids_of_a_straight_run(tmp_path, host, at):
    rows = random_rows(10)
    settings = {
        "sft": host == "sft",
        "num_train_epochs": 4,
        "save_strategy": "steps",
        "save_steps": at,
        "change": states(MASTERED=[0, 1, 2], RELABEL=[3]),
    }
    whole, straight, trainer = run(tmp_path / "a", rows, **settings)
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "b", rows, fail_at=at + 1, **settings)
    second, resumed, again = run(tmp_path / "b", rows, resume=True, **settings)
    assert resumed.ids == straight.ids[at:]
    assert counts(straight, whole, 5, 20) != [3] * 10
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    for ours, theirs in zip(again.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_two_seeds_two_orders_and_one_seed_one(tmp_path):
    rows = random_rows(10)
    ids = [run(tmp_path, rows, seed=s, num_train_epochs=1)[1].ids for s in (0, 0, 1)]
    assert ids[0] == ids[1] != ids[2]


def test_sft_preparation_keeps_the_visits(tmp_path):
    """SFTTrainer tokenises and filters text by itself; rows are drawn behind all that."""
    rows = [{"prompt": f"question {i} ", "completion": f"answer {i}"} for i in range(8)]
    change = states(RELABEL=[0, 1, 2, 3])
    callback, seen, _ = run(tmp_path, rows, sft=True, change=change, config=QUIET)
    assert len(callback.ledger) == 8
    assert counts(seen, callback, 0, 4) == [1] * 8
    assert counts(seen, callback, 4, 8) == [0, 0, 0, 0, 2, 2, 2, 2]


def test_packed_rows_are_visited_by_the_mean_of_their_samples():
    from hf_glm_curriculum.lifespan.life import SampleLife
    from hf_glm_curriculum.lifespan.sampling import _row_weights

    rows = [
        {"input_ids": list(range(4, 14)), "seq_lengths": [4, 6]},
        {"input_ids": list(range(20, 30)), "seq_lengths": [10]},
    ]
    index = SampleIndex.from_dataset(Dataset.from_list(rows))
    life = SampleLife(LifespanConfig(), index)
    life.ledger.column("weight")[:] = torch.tensor([0.0, 1.0, 0.25])
    assert _row_weights(life, 2).tolist() == [0.5, 0.25]


def test_workers_read_the_order_of_their_epoch(tmp_path):
    change = states(RELABEL=[0, 1, 2, 3, 4])
    callback, seen, _ = run(
        tmp_path,
        random_rows(10),
        change=change,
        config=QUIET,
        dataloader_num_workers=1,
    )
    assert counts(seen, callback, 5, 10) == [0] * 5 + [2] * 5


def test_persistent_workers_are_refused(tmp_path):
    with pytest.raises(IncompatibleError, match="dataloader_persistent_workers: persistent"):
        run(tmp_path, random_rows(), dataloader_num_workers=1, dataloader_persistent_workers=True)


def test_a_trainer_that_shuffles_is_told_and_still_visits_by_weight(tmp_path, caplog):
    change = states(RELABEL=[0, 1, 2, 3, 4])
    callback, seen, _ = run(
        tmp_path,
        random_rows(10),
        change=change,
        config=QUIET,
        train_sampling_strategy="random",
    )
    assert "train_sampling_strategy='random' shuffles the places" in caplog.text
    assert counts(seen, callback, 5, 10) == [0] * 5 + [2] * 5


def test_a_trainer_with_other_data_is_refused(tmp_path):
    with pytest.raises(IncompatibleError, match="the trainer reads a Dataset; pass the Lifespan"):
        run(tmp_path, random_rows(), prepare=lambda data: data.select(range(4)))


def test_rows_that_are_not_known_beforehand_are_refused(tmp_path):
    with pytest.raises(IncompatibleError, match="index_dataset: visits are drawn row by row"):
        run(tmp_path, random_rows(), config=LifespanConfig(index_dataset=False))


def test_a_wrapper_without_its_callback_says_so(tmp_path, caplog):
    data = LifespanSampling(Dataset.from_list(random_rows()), SampleLifespanCallback())
    args = arguments(tmp_path, **SEQUENTIAL)
    Trainer(model=build_model(), args=args, data_collator=Collator(), train_dataset=data).train()
    assert "put its SampleLifespanCallback into the trainer's callbacks" in caplog.text


def test_resume_with_another_seed_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 3}
    run(tmp_path, random_rows(), num_train_epochs=1, **settings)
    with pytest.raises(StateError, match="seed 0, this run has 10 rows and seed 1"):
        run(tmp_path, random_rows(), num_train_epochs=1, seed=1, resume=True, **settings)
