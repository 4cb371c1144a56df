"""Each verdict changes a real training as stated, and release takes it back."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.lifespan.states import release
from hf_glm_curriculum.signals.ledger import SampleState
from tests.conftest import build_model
from tests.lifespan.runs import Collator, arguments, random_rows, train

VERDICTS = {0: "MASTERED", 1: "RESAMPLE", 2: "RELABEL", 3: "OBSERVED"}
CONFIG = LifespanConfig(
    weighting="none", normalize_weights=False, life_threshold=0.0, suspicion_threshold=1e9
)


class Watch(TrainerCallback):
    """One sample a step: records rows, weights and gradients; acts at the end of an epoch."""

    def __init__(self, callback: SampleLifespanCallback, at_end: dict) -> None:
        self.callback, self.at_end = callback, at_end
        self.rows: list[int] = []
        self.gradients: list[torch.Tensor] = []
        self.epochs: list[dict[int, float]] = [{}]

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs) -> None:
        self.gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        ledger = self.callback.ledger
        signals = self.callback._last
        row = int(ledger.lookup(signals.ids)[0])
        self.rows.append(row)
        self.epochs[-1][row] = float(signals.weight[0])

    def on_epoch_end(self, args, state, control, **kwargs) -> None:
        self.at_end.get(round(state.epoch), lambda ledger: None)(self.callback.ledger)
        self.epochs.append({})


class Remembering(SampleLifespanCallback):
    """Keeps the last step's signals."""

    _last = None

    def on_train_begin(self, *args, **kwargs) -> None:
        super().on_train_begin(*args, **kwargs)

        def remember(signals, step) -> None:
            self._last = signals

        self._dump.write = remember


def observe_all(ledger) -> None:
    """Send rows 0..3 to the pool; the run's own thresholds are out of reach here."""
    ledger.column("state")[:4] = SampleState.OBSERVED.value


def run(at_end: dict, epochs: int, tmp_path, learning_rate: float = 0.0) -> Watch:
    """Train on 6 rows, one a step; at rate 0 a sample's gradient is the same in every epoch."""
    judge = lambda cases: [VERDICTS[row] for row in cases["row"]]  # noqa: E731
    callback = Remembering(CONFIG, judge=judge, debug_dir=tmp_path / "debug")
    watch = Watch(callback, at_end)

    class First(TrainerCallback):
        """Stands before the callback: its end of epoch 1 comes before the judge's."""

        def on_epoch_end(self, args, state, control, **kwargs) -> None:
            if round(state.epoch) == 1:
                observe_all(callback.ledger)

    args = arguments(
        tmp_path,
        max_steps=-1,
        num_train_epochs=epochs,
        per_device_train_batch_size=1,
        learning_rate=learning_rate,
        max_grad_norm=0.0,
    )
    Trainer(
        model=build_model(),
        args=args,
        data_collator=Collator(),
        train_dataset=Dataset.from_list(random_rows(6)),
        callbacks=[First(), callback, watch],
    ).train()
    return watch


def test_verdicts_set_the_weights_of_the_next_epoch(tmp_path):
    watch = run({}, 3, tmp_path)
    states = watch.callback.ledger.to_pandas()["state"].tolist()
    assert states == ["MASTERED", "TRAINING", "RELABEL", "OBSERVED", "TRAINING", "TRAINING"]
    assert watch.epochs[0] == dict.fromkeys(range(6), 1.0)
    expected = {0: 0.1, 1: 1.0, 2: 0.0, 3: 0.1, 4: 1.0, 5: 1.0}
    for epoch in (1, 2):
        assert watch.epochs[epoch] == pytest.approx(expected)
    visits = watch.callback.ledger.to_pandas()["visits"].tolist()
    assert visits == [3, 2, 3, 3, 3, 3]  # RESAMPLE counts anew


def test_a_weight_is_what_the_gradient_is_multiplied_with(tmp_path):
    watch = run({}, 2, tmp_path)
    before, after = {}, {}
    for step, row in enumerate(watch.rows):
        (before if step < 6 else after)[row] = watch.gradients[step]
    for row, weight in {0: 0.1, 1: 1.0, 2: 0.0, 3: 0.1, 4: 1.0}.items():
        assert torch.allclose(after[row], weight * before[row], atol=1e-6)
    assert before[2].norm() > 0.1


def test_release_restores_every_state(tmp_path):
    release_all = {2: lambda ledger: release(ledger, torch.arange(6))}
    watch = run(release_all, 3, tmp_path)
    assert watch.epochs[1][2] == 0.0
    assert watch.epochs[2] == dict.fromkeys(range(6), 1.0)
    frame = watch.callback.ledger.to_pandas()
    assert (frame["state"] == "TRAINING").all() and (frame["visits"] == 1).all()
    first = dict(zip(watch.rows[:6], watch.gradients[:6], strict=True))
    last = dict(zip(watch.rows[12:], watch.gradients[12:], strict=True))
    for row in range(6):
        assert torch.allclose(first[row], last[row], atol=1e-6)


def test_a_sample_to_relabel_leaves_no_trace_in_the_model(tmp_path):
    """From its verdict on, training goes on as if a RELABEL row were not there."""
    rows = random_rows(6)

    class Verdict(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs) -> None:
            callback.ledger.column("state")[2] = SampleState.RELABEL.value

    callback = SampleLifespanCallback(CONFIG)
    settings = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 6}
    with_row = train([callback, Verdict()], rows=rows, **settings)
    other = [dict(row) for row in rows]
    tokens = [t + 1 for t in rows[2]["input_ids"]]
    cut = sum(label < 0 for label in rows[2]["labels"])
    other[2] = {"input_ids": tokens, "labels": [-100] * cut + tokens[cut:]}
    callback = SampleLifespanCallback(CONFIG)
    changed = train([callback, Verdict()], rows=other, **settings)
    assert torch.allclose(with_row.grads[0], changed.grads[0], atol=1e-7)


def test_a_spent_resample_counts_as_mastered(tmp_path):
    callback = SampleLifespanCallback(CONFIG, judge=lambda cases: ["RESAMPLE"] * len(cases))

    class Pool(TrainerCallback):
        def on_epoch_end(self, args, state, control, **kwargs) -> None:
            if round(state.epoch) < 4:
                callback.ledger.column("state")[0] = SampleState.OBSERVED.value

    train(
        [Pool(), callback],
        rows=random_rows(4),
        max_steps=-1,
        num_train_epochs=4,
        output_dir=tmp_path,
    )
    frame = callback.ledger.to_pandas()
    assert frame["state"].tolist() == ["MASTERED", "TRAINING", "TRAINING", "TRAINING"]
    assert frame["resamples"][0] == 1
