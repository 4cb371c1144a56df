"""A mixture under `Trainer` and `SFTTrainer`: what was asked is what the model sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from hf_glm_curriculum import MixtureCallback
from hf_glm_curriculum.data.collator import SftCollator
from hf_glm_curriculum.errors import IncompatibleError, StateError
from hf_glm_curriculum.reporting import read_metrics
from tests.conftest import build_model, build_tokenizer
from tests.data.mixtures import mixture, names, take
from tests.lifespan.runs import arguments

ALL_WEB = {"web": 1.0, "chat": 0.0}


@dataclass
class Schedule(TrainerCallback):
    """Asks for more of "chat" at every step, as the event says."""

    mixture: Any
    event: str = "on_step_begin"
    first: int = 1

    def _ask(self, state):
        if self.first <= state.global_step <= 6:
            share = state.global_step / 8
            self.mixture.set_ratios({"web": 1 - share, "chat": share}, step=state.global_step)

    def on_step_begin(self, args, state, control, **kwargs):
        if self.event == "on_step_begin":
            self._ask(state)

    def on_step_end(self, args, state, control, **kwargs):
        if self.event == "on_step_end":
            self._ask(state)


@dataclass
class First(TrainerCallback):
    """Asks for ratios before anything is read."""

    mixture: Any
    ratios: dict[str, float]

    def on_train_begin(self, args, state, control, **kwargs):
        self.mixture.set_ratios(self.ratios)


@dataclass
class Seen(TrainerCallback):
    """Keeps the source and row of every sample in the order the model saw them."""

    steps: list[list[tuple[int, int]]] = field(default_factory=list)
    batch: list[tuple[int, int]] = field(default_factory=list)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        def look(module, positional, named):
            if module.training and torch.is_grad_enabled():
                for row in named["input_ids"]:
                    marker = int((row >= 200).nonzero()[0]) if (row >= 200).any() else 0
                    self.batch.append((int(row[marker]) - 200, int(row[marker + 1])))

        self.handle = model.register_forward_pre_hook(look, with_kwargs=True)

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append(self.batch)
        self.batch = []

    def on_train_end(self, args, state, control, **kwargs):
        self.handle.remove()


def run(mixed, folder, callbacks=(), host="trainer", resume=None, stop=None, **settings):
    """Train a tiny model on a mixture; what it saw, and the trainer."""
    seen = Seen()
    common = {
        "model": build_model(),
        "train_dataset": mixed,
        "data_collator": SftCollator(0),
        "callbacks": [*callbacks, seen, *([stop] if stop else [])],
    }
    given = {"max_steps": 12, "per_device_train_batch_size": 2, **settings}
    if host == "trainer":
        trainer = Trainer(args=arguments(folder, **given), **common)
    else:
        from trl import SFTConfig, SFTTrainer

        args = arguments(
            folder,
            SFTConfig,
            dataset_kwargs={"skip_prepare_dataset": True},
            max_length=None,
            **given,
        )
        trainer = SFTTrainer(args=args, processing_class=build_tokenizer(), **common)
    trainer.train(resume_from_checkpoint=resume)
    return seen.steps, trainer


def expected(steps, rows_per_step, mixed, **settings):
    """The rows of the mixture's stream, by step, read from a copy with the same log."""
    again = mixture(ALL_WEB, **settings)
    state = mixed.state_dict(step=steps)
    again.load_state_dict(state, replay=True)
    taken = take(again, steps * rows_per_step)
    pairs = [(row["input_ids"][0] - 200, row["input_ids"][1]) for row in taken]
    return [pairs[i : i + rows_per_step] for i in range(0, len(pairs), rows_per_step)]


@pytest.mark.parametrize(
    ("host", "event", "accumulation", "workers", "lag"),
    [
        ("trainer", "on_step_begin", 1, 0, 2),
        ("trainer", "on_step_end", 2, 2, 4),
        ("sft", "on_step_begin", 1, 1, 4),
        ("sft", "on_step_end", 3, 0, 2),
    ],
)
def test_the_model_sees_the_ratios_asked_for_after_the_lag(
    tmp_path, host, event, accumulation, workers, lag
):
    mixed = mixture(ALL_WEB, unit="rows")
    steps, _ = run(
        mixed,
        tmp_path,
        [MixtureCallback(mixed), Schedule(mixed, event)],
        host,
        gradient_accumulation_steps=accumulation,
        dataloader_num_workers=workers,
    )
    rows_per_step = 2 * accumulation
    assert mixed.lag_steps == lag and mixed.rows_per_step == rows_per_step
    assert [change["row"] for change in mixed.changes[1:]] == [
        (step + lag) * rows_per_step for step in range(1, 7)
    ]
    assert len(steps) == 12 and {len(step) for step in steps} == {rows_per_step}
    assert steps == expected(12, rows_per_step, mixed, unit="rows")
    sources = [source for step in steps for source, _ in step]
    assert not any(sources[: (1 + lag) * rows_per_step])
    assert any(sources[(3 + lag) * rows_per_step :])


@pytest.mark.parametrize(
    ("host", "streamed", "workers", "skips"),
    [
        ("trainer", (), 1, True),
        ("trainer", ("web", "chat"), 0, False),
        ("sft", (), 0, False),
        ("sft", ("web", "chat"), 1, True),
    ],
)
def test_a_resumed_run_is_the_straight_run(tmp_path, host, streamed, workers, skips):
    class Dies(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7:
                raise KeyboardInterrupt

    settings = {
        "gradient_accumulation_steps": 2,
        "dataloader_num_workers": workers,
        "save_strategy": "steps",
        "save_steps": 5,
        "ignore_data_skip": not skips,
    }

    def attempt(folder, **more):
        mixed = mixture(ALL_WEB, streamed=streamed, stratify=4)
        callbacks = [MixtureCallback(mixed), Schedule(mixed)]
        steps, trainer = run(mixed, folder, callbacks, host, **settings, **more)
        weights = [p.detach().clone() for p in trainer.model.parameters()]
        return steps, weights, mixed

    straight, weights, mixed = attempt(tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        attempt(tmp_path / "killed", stop=Dies())
    rest, resumed_weights, resumed = attempt(tmp_path / "killed", resume=True)
    assert rest == straight[5:]
    assert resumed.changes == mixed.changes and resumed.drawn(step=12) == mixed.drawn(step=12)
    for one, other in zip(weights, resumed_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    lines = [
        # The trainer's own count of epochs starts over where it does not skip.
        [
            {key: value for key, value in line.items() if key != "epoch"}
            for line in read_metrics(tmp_path / name)
            if "mixture/chat_drawn" in line
        ]
        for name in ("straight", "killed")
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 12


def test_asked_and_drawn_shares_are_logged(tmp_path):
    mixed = mixture(ALL_WEB, unit="rows")
    steps, _ = run(mixed, tmp_path, [MixtureCallback(mixed), Schedule(mixed)], logging_steps=3)
    lines = [line for line in read_metrics(tmp_path) if "mixture/chat_asked" in line]
    assert [line["step"] for line in lines] == [3, 6, 9, 12]
    # Asked at step k, in effect for step k + 2, so for the last step before 6 it is that of step 3.
    assert [line["mixture/chat_asked"] for line in lines] == [0, 3 / 8, 6 / 8, 6 / 8]
    for number, line in enumerate(lines):
        block = [source for step in steps[3 * number : 3 * number + 3] for source, _ in step]
        assert line["mixture/chat_drawn"] == pytest.approx(sum(block) / len(block))
        assert line["mixture/web_drawn"] == pytest.approx(1 - sum(block) / len(block))


def test_ratios_asked_before_the_first_row_hold_from_it(tmp_path):
    mixed = mixture(ALL_WEB)
    callbacks = [First(mixed, {"chat": 1.0}), MixtureCallback(mixed)]
    steps, _ = run(mixed, tmp_path, callbacks, "sft", max_steps=2)
    assert {source for step in steps for source, _ in step} == {1}


def test_first_steps_may_each_have_their_ratios(tmp_path):
    class Plan(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            for step in range(4):
                mixed.set_ratios({"chat": 1.0} if step % 2 else {"web": 1.0}, step=step)

    mixed = mixture(ALL_WEB)
    for _ in range(2):
        steps, _ = run(mixed, tmp_path, [Plan()], "sft", max_steps=4)
        assert [{source for source, _ in step} for step in steps] == [{0}, {1}, {0}, {1}]


@pytest.mark.parametrize("resumed", [False, True])
def test_what_is_asked_before_the_first_row_does_not_depend_on_who_stands_first(tmp_path, resumed):
    class Plan(TrainerCallback):
        def __init__(self, mixed):
            self.mixture = mixed

        def on_train_begin(self, args, state, control, **kwargs):
            for ahead in (0, 1, 3):
                wanted = {"chat": 0.25 * (ahead + 1)} | {"web": 1 - 0.25 * (ahead + 1)}
                self.mixture.set_ratios(wanted, step=state.global_step + ahead)

    logs = []
    for order in (1, -1):
        mixed, folder = mixture(ALL_WEB, unit="rows"), tmp_path / str(order)
        if resumed:
            saving = {"save_strategy": "steps", "save_steps": 6}
            run(mixed, folder, [MixtureCallback(mixed)], max_steps=6, **saving)
            mixed = mixture(ALL_WEB, unit="rows")
        callbacks = [MixtureCallback(mixed), Plan(mixed)][::order]
        steps, _ = run(mixed, folder, callbacks, resume=resumed or None)
        logs.append((mixed.changes, steps))
    assert logs[0] == logs[1]
    begin = 6 if resumed else 0
    rows = [one["row"] for one in logs[0][0] if one["row"]]
    assert rows == [2 * (begin + ahead) for ahead in ((0, 1, 3) if resumed else (1, 3))]


@pytest.mark.parametrize("alone", [False, True])
def test_a_second_run_begins_anew(tmp_path, alone):
    mixed = mixture(ALL_WEB, unit="rows")
    callbacks = [Schedule(mixed), First(mixed, ALL_WEB) if alone else MixtureCallback(mixed)]
    first, _ = run(mixed, tmp_path / "a", callbacks)
    second, _ = run(mixed, tmp_path / "b", callbacks)
    assert first == second


def test_sft_trainer_may_prepare_a_mixture_and_still_hears_of_changes(tmp_path):
    from trl import SFTConfig, SFTTrainer

    mixed, seen = mixture(ALL_WEB, unit="rows"), Seen()
    args = arguments(
        tmp_path, SFTConfig, max_length=64, max_steps=12, per_device_train_batch_size=2
    )
    trainer = SFTTrainer(
        build_model(),
        args,
        train_dataset=mixed,
        processing_class=build_tokenizer(),
        callbacks=[MixtureCallback(mixed), Schedule(mixed), seen],
    )
    trainer.train()
    assert seen.steps == expected(12, 2, mixed, unit="rows")
    assert {source for step in seen.steps for source, _ in step} == {0, 1}


def test_a_mixture_knows_the_source_of_what_the_model_sees(tmp_path):
    from hf_glm_curriculum.data.content_id import content_ids

    found = []

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            def look(module, positional, named):
                ids = content_ids(named["input_ids"], named["attention_mask"])
                found.extend(mixed.source_index(ids).tolist())

            model.register_forward_pre_hook(look, with_kwargs=True)

    mixed = mixture({"web": 0.5, "chat": 0.5}, streamed=("chat",))
    steps, _ = run(mixed, tmp_path, [MixtureCallback(mixed), Look()], dataloader_num_workers=1)
    assert found == [source for step in steps for source, _ in step]
    assert set(found) == {0, 1}


def test_without_max_steps_the_trainer_refuses(tmp_path):
    with pytest.raises(ValueError, match="max_steps"):
        run(mixture(), tmp_path, max_steps=-1)


def test_a_checkpoint_without_the_mixture_is_refused(tmp_path):
    mixed = mixture(ALL_WEB)
    run(mixed, tmp_path, save_strategy="steps", save_steps=6)
    with pytest.raises(StateError, match="holds no state of 'mixture'"):
        run(mixed, tmp_path, [MixtureCallback(mixed)], resume=True)
    with pytest.raises(IncompatibleError, match="stratify: is 8"):
        mixed = mixture(stratify=8)
        run(mixed, tmp_path, [MixtureCallback(mixed)])


def test_names_of_sources_are_found_in_order():
    assert names(take(mixture({"web": 0.5, "chat": 0.5}, unit="rows"), 4)).count(0) == 2
