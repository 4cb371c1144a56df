"""Every host option leaves training as it was and the ledger right, or is refused by name."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    EarlyStoppingCallback,
    TrainerCallback,
)

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.lifespan.texts import DatasetTexts
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import build_tokenizer
from tests.lifespan.hosts import Seen, assert_ledger_holds, assert_same_training, host
from tests.lifespan.runs import Collator, random_rows
from tests.lifespan.test_exactness import NEUTRAL

BEST = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "load_best_model_at_end": True,
    "max_steps": 8,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "grouped": {"train_sampling_strategy": "group_by_length", "max_steps": 5},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True},
    "best_at_end": BEST,
    "save_limit": {**BEST, "save_total_limit": 1},
    "reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "not_reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    },
    "tokens_here": {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2},
    "tokens_everywhere": {"average_tokens_across_devices": True, "gradient_accumulation_steps": 2},
    "short_window": {"gradient_accumulation_steps": 4, "max_steps": 5},
    "workers": {"dataloader_num_workers": 2, "max_steps": 6},
    "all_columns": {"remove_unused_columns": False},
    "noisy_embedding": {"neftune_noise_alpha": 5.0},
    "cache": {"use_cache": True},
    "counted_tokens": {"include_num_input_tokens_seen": "non_padding"},
    "no_clipping": {"max_grad_norm": 0.0},
}


@pytest.mark.parametrize("kind", ["trainer", "sft"])
@pytest.mark.parametrize("option", OPTIONS)
def test_neutral_is_the_plain_trainer_and_the_ledger_is_right(option, kind, tmp_path):
    settings = {"sft": kind == "sft", **OPTIONS[option]}
    rows = [{**row, "note": f"row {i}"} for i, row in enumerate(random_rows())]
    plain = host(tmp_path / "a", [], rows=rows, **settings).train()
    callback = SampleLifespanCallback(NEUTRAL)
    watched = host(tmp_path / "b", [callback], rows=rows, **settings).train()
    assert plain.seen.counts == watched.seen.counts
    assert_same_training(watched, plain)
    assert_ledger_holds(callback, watched.seen)
    # Every checkpoint that is left can be resumed from, and none was left by us alone.
    for folder in (tmp_path / "b").glob("checkpoint-*"):
        assert (folder / "hf_glm_curriculum" / "lifespan.safetensors").exists()
    left = [{f.name for f in (tmp_path / n).glob("checkpoint-*")} for n in "ab"]
    assert left[0] == left[1]


def _formats() -> dict[str, Any]:
    rows = random_rows()
    data = Dataset.from_list(rows)
    return {
        "torch": (rows, data.with_format("torch")),
        "numpy": (rows, data.with_format("numpy")),
        "streamed": (rows, data.to_iterable_dataset(num_shards=2)),
        "selected": (rows, Dataset.from_list([*rows[::-1], rows[0]]).select(range(9, -1, -1))),
    }


class Lists(Collator):
    """Takes rows of any format."""

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return super().__call__([{n: [int(v) for v in c] for n, c in r.items()} for r in rows])


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")  # TRL's own collator
@pytest.mark.parametrize("kind", ["trainer", "sft"])
@pytest.mark.parametrize("form", ["torch", "numpy", "streamed", "selected"])
def test_data_sets_of_any_form(form, kind, tmp_path):
    rows, dataset = _formats()[form]
    callback = SampleLifespanCallback(LifespanConfig(sync_every=1))
    found = host(
        tmp_path,
        [callback],
        sft=kind == "sft",
        rows=rows,
        dataset=dataset,
        collator=Lists() if kind == "trainer" else None,
        max_steps=6,
    ).train()
    frame = callback.ledger.to_pandas()
    assert frame["lifetime"].sum() == sum(found.seen.counts.values()) == 12
    if form != "streamed":
        assert_ledger_holds(callback, found.seen)
        texts = DatasetTexts(dataset, build_tokenizer())
        answer = build_tokenizer().decode(rows[3]["input_ids"][len(rows[3]["input_ids"]) // 3 :])
        assert texts.pair(3) == (texts.pair(3)[0], answer.strip())


def test_a_data_set_without_an_index_lends_no_sample_another_rows_text(tmp_path):
    """Ledger rows are then in order of sight: row 0 of the ledger is no row 0 of the data."""
    config = LifespanConfig(index_dataset=False, sync_every=1, life_threshold=1e9, warmup_visits=2)
    callback = SampleLifespanCallback(config, judge=lambda cases: ["MASTERED"] * len(cases))
    found = host(tmp_path, [callback], sft=True, max_steps=-1, num_train_epochs=3).train()
    assert (callback.ledger.to_pandas()["lifetime"] == 3).all()
    assert sum(found.seen.counts.values()) == 30
    pool = pd.read_json(tmp_path / "lifespan" / "observation_pool.jsonl", lines=True)
    assert len(pool) == 10 and pool["text"].isna().all()


def test_a_collator_that_makes_the_labels_is_enough(tmp_path):
    rows = [{"input_ids": row["input_ids"]} for row in random_rows()]
    callback = SampleLifespanCallback(NEUTRAL)
    collator = DataCollatorForLanguageModeling(build_tokenizer(), mlm=False)
    assert_ledger_holds(
        callback, host(tmp_path, [callback], rows=rows, collator=collator).train().seen
    )


class OutOfMemory(TrainerCallback):
    """A device that holds two rows, and says so from the given step on."""

    def __init__(self, step: int) -> None:
        self.step, self.now, self.asked = step, 0, []

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        if not self.asked:
            model.register_forward_pre_hook(self._refuse, with_kwargs=True)
        self.now = 0

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.now = state.global_step

    def _refuse(self, module: torch.nn.Module, args: Any, kwargs: dict) -> None:
        self.asked.append(len(kwargs["input_ids"]))
        if self.now >= self.step and self.asked[-1] > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("kind", ["trainer", "sft"])
@pytest.mark.parametrize("step", [0, 1])
def test_auto_find_batch_size_starts_the_ledger_anew(step, kind, tmp_path):
    oom, callback = OutOfMemory(step), SampleLifespanCallback()
    found = host(
        tmp_path,
        [callback],
        sft=kind == "sft",
        others=[oom],
        auto_find_batch_size=True,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        max_steps=-1,
    ).train()
    assert max(oom.asked) == 4 and oom.asked[-1] == 2
    assert set(found.seen.counts.values()) == {2}
    assert_ledger_holds(callback, found.seen)
    steps = [m["step"] for m in read_metrics(tmp_path) if "lifespan/weight_mean" in m]
    assert steps == list(range(1, 11))


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_callbacks_restored_from_a_checkpoint_leave_ours_alone(kind, tmp_path):
    """PITFALLS 5: other callbacks are rebuilt and move to the end of the list."""
    settings = {
        **BEST,
        "load_best_model_at_end": True,
        "restore_callback_states_from_checkpoint": True,
        "sft": kind == "sft",
    }

    def others() -> list[TrainerCallback]:
        return [EarlyStoppingCallback(early_stopping_patience=9)]

    whole, second = SampleLifespanCallback(), SampleLifespanCallback()
    straight = host(tmp_path / "a", [whole], others=others(), **settings).train()
    resumed = host(tmp_path / "b", [second], others=others(), **settings)
    before = list(resumed.trainer.callback_handler.callbacks)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-4"))
    after = resumed.trainer.callback_handler.callbacks
    assert second in after and [type(c) for c in before] != [type(c) for c in after]
    pd.testing.assert_frame_equal(second.ledger.to_pandas(), whole.ledger.to_pandas())
    for ours, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Busy(TrainerCallback):
    """Uses the model inside events, in training mode and with gradients."""

    def _use(self, model: Any) -> None:
        random = torch.get_rng_state()
        model.train()
        batch = Collator()(random_rows(3, seed=8))
        assert torch.isfinite(model(**batch).loss)
        torch.set_rng_state(random)

    def on_step_begin(self, args, state, control, model=None, **kwargs) -> None:
        self._use(model)

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs) -> None:
        self._use(model)

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        self._use(model)


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_the_order_of_callbacks_does_not_matter(kind, tmp_path):
    frames = []
    for number, order in enumerate(itertools.permutations(range(3))):
        ours = SampleLifespanCallback()
        found = host(tmp_path / str(number), [], sft=kind == "sft", max_steps=8)
        handler = found.trainer.callback_handler
        three = [ours, Busy(), SampleLifespanCallback(LifespanConfig(observe_only=True), name="b")]
        mine = [three[i] for i in order]
        # Reporters, flow control and witnesses before ours or after.
        theirs = handler.callbacks
        handler.callbacks = [*theirs, *mine] if number % 2 else [*mine, *theirs]
        busy_rows = [c for c in handler.callbacks if isinstance(c, Seen)]
        busy_rows[0].rows = [*busy_rows[0].rows, *random_rows(3, seed=8)]
        found.train()
        frames.append(ours.ledger.to_pandas())
        assert frames[-1]["lifetime"].sum() == 16
    for frame in frames[1:]:
        pd.testing.assert_frame_equal(frame, frames[0])


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_predicting_evaluating_and_training_again(kind, tmp_path):
    callback = SampleLifespanCallback()
    found = host(tmp_path, [callback], sft=kind == "sft", max_steps=5).train()
    assert_ledger_holds(callback, found.seen)
    first = callback.ledger.to_pandas()
    found.trainer.evaluate()
    if kind == "trainer":  # SFTTrainer gives no logits to predict with
        found.trainer.predict(Dataset.from_list(random_rows(4, seed=5)))
    pd.testing.assert_frame_equal(callback.ledger.to_pandas(), first)
    found.train()
    assert_ledger_holds(callback, found.seen)
    other = host(tmp_path / "b", [callback], sft=kind == "sft", rows=random_rows(6, seed=3))
    other.train()
    assert_ledger_holds(callback, other.seen)
    assert not found.model._forward_pre_hooks


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_the_embeddings_own_noise_is_in_the_losses(kind, tmp_path):
    """NEFTune: a sample's loss is that of the noisy pass that trained it."""
    frames = []
    for alpha in (None, 50.0):
        callback = SampleLifespanCallback(NEUTRAL)
        host(
            tmp_path, [callback], sft=kind == "sft", neftune_noise_alpha=alpha, max_steps=1
        ).train()
        frames.append(callback.ledger.to_pandas()["loss"])
    assert not torch.allclose(*(torch.tensor(f.to_numpy()) for f in frames), atol=1e-4)
