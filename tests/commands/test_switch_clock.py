"""The clock of a switch: what counts as a pause and what does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hf_glm_curriculum.commands import switch_clock
from hf_glm_curriculum.commands.switch_clock import Stopwatch, SwitchClock


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still unless told to move."""
    time = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(switch_clock.time, "perf_counter", lambda: time.seconds)
    return time


def steps(clock, now, pauses, first=0):
    """Run steps whose pauses have the parts (callbacks, evaluation and saving, next batches)."""
    state = SimpleNamespace(global_step=first, is_world_process_zero=True)
    for callbacks, evaluation, batches in pauses:
        clock.tail.on_step_begin(None, state, None)
        now.seconds += 50  # forward and backward
        clock.on_optimizer_step(None, state, None)
        state.global_step += 1
        now.seconds += callbacks
        clock.on_step_end(None, state, None)
        now.seconds += evaluation
        clock.tail.on_step_end(None, state, None)
        now.seconds += evaluation
        clock.tail.on_log(None, state, None)
        now.seconds += evaluation
        clock.tail.on_save(None, state, None)
        now.seconds += batches
    clock.tail.on_step_begin(None, state, None)


def test_a_pause_is_callbacks_and_batches_without_evaluation_and_saving(now):
    seen = []
    clock = SwitchClock(3, seen.append)
    steps(clock, now, [(1, 9, 1), (2, 0, 1), (5, 7, 4), (1, 0, 1)])
    assert seen == [{"seconds": 9.0, "usual_seconds": 2.5}]
    assert clock.started == 100.0


def test_a_run_that_goes_on_after_the_switch_does_not_see_it(now):
    seen = []
    clock = SwitchClock(3, seen.append)
    steps(clock, now, [(1, 1, 1)], first=3)
    assert seen == [], "the first step after a resume ends no pause"
    steps(clock, now, [(1, 1, 1)] * 2, first=5)
    assert seen == []


def test_parts_add_up(now):
    watch = Stopwatch()
    for seconds in (2, 3):
        with pytest.raises(KeyError), watch.time("load"):
            now.seconds += seconds
            raise KeyError
    with watch.time("save"):
        now.seconds += 1
    assert watch.seconds == {"load": 5.0, "save": 1.0} and watch.total == 6.0
