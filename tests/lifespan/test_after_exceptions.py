"""A run that dies leaves a model that works as before, and nothing that keeps it alive."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.models import backbone
from tests.conftest import build_model
from tests.lifespan.hosts import assert_same_training, host
from tests.lifespan.runs import Collator, add_lora, random_rows

KINDS = pytest.mark.parametrize("kind", ["trainer", "sft"])


class Dies(TrainerCallback):
    """Ends the second step with an exception, at one of the places where a step can end."""

    def __init__(self, place: str, error: type[BaseException]) -> None:
        self.place, self.error, self.armed = place, error, False

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        self.handles = [
            model.register_forward_pre_hook(self._before),
            backbone(model).register_forward_hook(self._inside),
        ]

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.armed = state.global_step == 1

    def _die(self, place: str) -> None:
        if self.armed and place == self.place:
            for handle in self.handles:
                handle.remove()
            raise self.error("out of memory" if self.error is RuntimeError else "stop")

    def _before(self, module: Any, args: Any) -> None:
        self._die("before")

    def _inside(self, module: Any, args: Any, output: Any) -> None:
        self._die("inside")
        if self.place == "backward" and self.armed:
            output.last_hidden_state.register_hook(lambda gradient: self._die("backward"))

    def on_pre_optimizer_step(self, args, state, control, **kwargs) -> None:
        self._die("optimizer")


def died(folder: Any, kind: str, place: str, error: type[BaseException], **extra: Any) -> tuple:
    """(callback, model) after a run that did not end well."""
    callback = SampleLifespanCallback(**extra.pop("callback", {}))
    dies = Dies(place, error)
    found = host(folder, [callback], sft=kind == "sft", others=[dies], max_steps=5, **extra)
    with pytest.raises(error):
        found.train()
    found.seen.handle.remove()
    return callback, found.model


@KINDS
@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("before", RuntimeError),
        ("inside", KeyboardInterrupt),
        ("backward", RuntimeError),
        ("optimizer", KeyboardInterrupt),
    ],
)
def test_the_model_goes_on_as_if_never_watched(kind, place, error, tmp_path):
    callback, model = died(tmp_path / "a", kind, place, error)
    before = callback.ledger.to_pandas()
    twin = build_model()
    twin.load_state_dict(model.state_dict())
    prompt = torch.tensor([[5, 6, 7, 8]])
    answers = [
        m.eval().generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6,
                          do_sample=False)
        for m in (model, twin)
    ]  # fmt: skip
    assert torch.equal(*answers)
    batch = Collator()(random_rows(4, seed=9))
    losses = [m.train()(**batch).loss for m in (model, twin)]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    losses[0].backward()
    model.zero_grad()
    # Another trainer, without the callback, on the model that was watched.
    again, fresh = (
        host(tmp_path / name, [], sft=kind == "sft", model=m, rows=random_rows(6, seed=4)).train()
        for name, m in (("b", model), ("c", twin))
    )
    assert_same_training(again, fresh)
    pd.testing.assert_frame_equal(callback.ledger.to_pandas(), before)


@KINDS
def test_another_callback_on_the_model_is_not_disturbed(kind, tmp_path):
    _, model = died(tmp_path / "a", kind, "inside", RuntimeError)
    twin = build_model()
    twin.load_state_dict(model.state_dict())
    frames = []
    for name, one in (("b", model), ("c", twin)):
        callback = SampleLifespanCallback()
        host(tmp_path / name, [callback], sft=kind == "sft", model=one, max_steps=6).train()
        frames.append(callback.ledger.to_pandas())
    pd.testing.assert_frame_equal(*frames)


CALLBACKS = {
    "default": {},
    "exact": {"config": LifespanConfig(grad_norm="exact")},
    "drift": {"config": LifespanConfig(signals=("slope", "drift"))},
}


@KINDS
@pytest.mark.parametrize("ending", ["dies", "ends"])
@pytest.mark.parametrize("settings", CALLBACKS)
def test_nothing_is_kept_alive(kind, ending, settings, tmp_path):
    """Without trainer and callback, the model is collected, and its gradients with it."""
    if ending == "dies":
        callback, model = died(tmp_path, kind, "inside", RuntimeError, callback=CALLBACKS[settings])
    else:
        callback = SampleLifespanCallback(**CALLBACKS[settings])
        model = host(tmp_path, [callback], sft=kind == "sft").train().model
    alive = [weakref.ref(model), weakref.ref(callback), weakref.ref(next(model.parameters()))]
    del model, callback
    gc.collect()
    assert [ref() is None for ref in alive] == [True, True, True]


@KINDS
def test_a_finished_run_keeps_no_model_through_its_callback(kind, tmp_path):
    callback = SampleLifespanCallback()
    found = host(tmp_path, [callback], sft=kind == "sft").train()
    model = weakref.ref(found.model)
    del found
    gc.collect()
    assert model() is None and len(callback.ledger.to_pandas())


@KINDS
def test_detach_after_a_dead_run_lets_go_of_model_and_trainer(kind, tmp_path):
    callback, model = died(tmp_path, kind, "inside", RuntimeError)
    alive = weakref.ref(model)
    del model
    callback.detach()
    gc.collect()
    assert alive() is None and len(callback.ledger.to_pandas()) == 2


@KINDS
def test_using_the_model_lets_go_of_the_dead_trainer(kind, tmp_path):
    """The optimizer of a dead run must not stay in memory while its model trains on."""
    callback = SampleLifespanCallback()
    found = host(
        tmp_path, [callback], sft=kind == "sft", others=[Dies("inside", RuntimeError)], max_steps=5
    )
    with pytest.raises(RuntimeError):
        found.train()
    model, alive = found.model, weakref.ref(found.trainer)
    found.seen.handle.remove()
    del found, callback
    model.train()(**Collator()(random_rows(2))).loss.backward()
    gc.collect()
    assert alive() is None


def test_trls_loss_returns_although_nobody_detached(tmp_path):
    """TRL 1.12's chunked loss is replaced in its module; a collected probe must not hold it."""
    import trl.trainer.sft_trainer as module

    name = "_chunked_cross_entropy_loss"
    if not hasattr(module, name):
        pytest.skip("this TRL has no chunked loss to replace")
    original = getattr(module, name)
    callback, model = died(tmp_path / "a", "sft", "inside", RuntimeError)
    assert getattr(module, name) is not original
    del callback, model
    gc.collect()
    host(tmp_path / "b", [], sft=True, max_steps=1).train()
    assert getattr(module, name) is original


@KINDS
@pytest.mark.parametrize("settings", ["default", "exact"])
def test_a_copy_of_a_watched_model_is_nobodys(settings, kind, tmp_path):
    """A copy made in mid-run (averaging, distillation) takes its hooks along, not the run."""

    class Copies(TrainerCallback):
        taken: list = []  # noqa: RUF012

        def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
            if state.global_step == 2:
                self.taken.append(copy.deepcopy(model))

    callback, copies = SampleLifespanCallback(**CALLBACKS[settings]), Copies()
    found = host(tmp_path, [callback], sft=kind == "sft", others=[copies], max_steps=4).train()
    lifetime = callback.ledger.to_pandas()["lifetime"].sum()
    twin = copies.taken.pop()
    found.seen.handle.remove()
    assert torch.isfinite(twin.train()(**Collator()(random_rows(2))).loss)
    assert callback.ledger.to_pandas()["lifetime"].sum() == lifetime == 8
    own = SampleLifespanCallback()
    host(tmp_path / "b", [own], sft=kind == "sft", model=twin).train()
    assert own.ledger.to_pandas()["lifetime"].sum() == 6
    assert callback.ledger.to_pandas()["lifetime"].sum() == lifetime


def test_adapters_are_let_go_of_too(tmp_path):
    callback, model = died(tmp_path, "sft", "inside", RuntimeError, model=add_lora(build_model()))
    alive = weakref.ref(model)
    del model, callback
    gc.collect()
    assert alive() is None
