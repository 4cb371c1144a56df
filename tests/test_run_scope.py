"""A run's scope ends with the run, however it ends, and holds nothing afterwards."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import CallbackHandler

from hf_glm_curriculum.run_scope import RunScope


class Local:
    """Something big that a training loop keeps in a local variable."""


class Enters(TrainerCallback):
    """Opens a scope when training begins, and asks it inside an event."""

    def __init__(self) -> None:
        self.scope: RunScope | None = None
        self.inside: list[bool] = []

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.scope = RunScope()

    def on_step_end(self, args, state, control, **kwargs) -> None:
        assert self.scope is not None
        self.inside.append(self.scope.active())


def handler(callback: TrainerCallback) -> CallbackHandler:
    return CallbackHandler([callback], None, None, None, None)


def run(callback: Enters, fail: bool = False) -> tuple[list[bool], weakref.ref]:
    """A training loop that fires its events through transformers' handler."""
    big = Local()
    events = handler(callback)
    events.on_train_begin(None, TrainerState(), TrainerControl())
    seen = [ask(callback)]
    events.on_step_end(None, TrainerState(), TrainerControl())
    if fail:
        raise KeyboardInterrupt(weakref.ref(big))
    return seen, weakref.ref(big)


def ask(callback: Enters) -> bool:
    assert callback.scope is not None
    return callback.scope.active()


def test_alive_below_the_loop_and_silent_in_its_events_and_after_it():
    callback = Enters()
    seen, _ = run(callback)
    assert seen == [True]
    assert callback.inside == [False]  # what callbacks do with the model is not training
    assert not ask(callback)


def test_a_second_run_of_the_same_loop_is_not_the_first():
    first, second = Enters(), Enters()
    with pytest.raises(KeyboardInterrupt):
        run(first, fail=True)

    class Asks(Enters):
        def on_train_begin(self, args, state, control, **kwargs) -> None:
            super().on_train_begin(args, state, control)
            self.inside.append(ask(first))

    assert run(second)[0] == [True]
    assert run(Asks())[0] == [True]
    assert not ask(first)


def test_a_dead_run_lets_go_of_its_locals_when_asked():
    callback = Enters()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(callback, fail=True)
    big = caught.value.args[0]
    del caught
    gc.collect()
    assert callback.scope is not None and big() is not None
    assert not ask(callback) and callback.scope.over()
    gc.collect()
    assert big() is None


def test_close_lets_go_at_once():
    callback = Enters()
    with pytest.raises(KeyboardInterrupt) as caught:
        run(callback, fail=True)
    big = caught.value.args[0]
    del caught
    assert callback.scope is not None
    callback.scope.close()
    gc.collect()
    assert big() is None and not ask(callback)


def test_another_thread_is_not_the_run_and_does_not_end_it():
    callback = Enters()
    handler(callback).on_train_begin(None, TrainerState(), TrainerControl())
    answers: list[bool] = []
    assert callback.scope is not None
    over = callback.scope.over
    worker = threading.Thread(target=lambda: answers.extend([ask(callback), over()]))
    worker.start()
    worker.join()
    assert answers == [False, False] and ask(callback)


def test_events_fired_by_hand_bind_to_their_caller():
    def loop() -> RunScope:
        scope = RunScope()
        assert scope.active()
        return scope

    assert not loop().active() and loop().over()


def test_a_suspended_loop_goes_on():
    def loop():
        scope = RunScope()
        yield scope, scope.active
        yield scope, scope.active()

    steps = loop()
    scope, _ = next(steps)
    assert not scope.active() and not scope.over()
    assert next(steps)[1] is True
