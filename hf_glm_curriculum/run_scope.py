"""Tells hooks whether the training run that installed them is still under way."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FrameType


class RunScope:
    """Alive while the function that entered it is on the calling thread's stack.

    A trainer that dies of an exception tells its callbacks nothing. Its frame is gone all the
    same, so hooks that ask :meth:`active` fall silent with it, and a later forward pass of the
    same model is not taken for training.

    What another callback does with the model inside an event is not the run's own doing, so the
    scope is silent there and the order of callbacks does not matter.
    """

    def __init__(self) -> None:
        """Bind to the training loop that fired the event under way, or to the nearest caller.

        The training loop is whoever called the callback handler; without a handler (events fired
        by hand) it is the nearest function outside this package.
        """
        callers = list(_callers(sys._getframe(1)))
        events = [i for i, frame in enumerate(callers) if _fires_events(frame)]
        if events:
            above = callers[events[0] :]
            self._frame = next((f for f in above if not _fires_events(f)), None)
        else:
            self._frame = next((f for f in callers if not _is_ours(f)), None)

    def active(self) -> bool:
        """Whether the bound function runs on this thread, and not just to fire an event."""
        if self._frame is None:
            return False
        for frame in _callers(sys._getframe(1)):
            if frame is self._frame:
                return True
            if _fires_events(frame):
                return False
        return False

    def over(self) -> bool:
        """Whether the bound function has ended; it runs or waits on some thread otherwise."""
        if self._frame is not None and not _may_go_on(self._frame):
            self._frame = None  # let go of the run's locals
        return self._frame is None

    def close(self) -> None:
        """End the scope."""
        self._frame = None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and everything that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _may_go_on(frame: FrameType) -> bool:
    """Whether a function may still do something: it runs on some thread, or is suspended.

    A finished frame keeps its ``f_back`` for tracebacks, so that tells nothing.
    """
    if frame.f_code.co_flags & _SUSPENDABLE:
        return True
    threads = sys._current_frames().values()
    return any(caller is frame for innermost in threads for caller in _callers(innermost))


_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def _fires_events(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == "transformers.trainer_callback"


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("hf_glm_curriculum.")
