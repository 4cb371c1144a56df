"""The prompts of a run, batch after batch and pass after pass, resumable in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class PromptStream:
    """Draws batches from a data loader forever.

    The order of a pass follows from random states at its beginning. They are kept, so that a
    resumed run deals the same order again and goes on where it was.

    Args:
        loader: the prepared data loader.
        on_pass: called with True before a pass and with False after it.
    """

    def __init__(self, loader: Any, on_pass: Callable[[bool], None] = lambda begins: None) -> None:
        self.loader, self.on_pass = loader, on_pass
        self.drawn = 0
        self._start: dict[str, Tensor] = {}
        self._batches: Iterator[Any] | None = None

    def draw(self) -> Any:
        """The next batch."""
        while True:
            if self._batches is None:
                self._begin(self._states())
                self.on_pass(True)
            batch = next(self._batches, None)  # pyright: ignore[reportArgumentType, reportCallIssue]
            if batch is not None:
                self.drawn += 1
                return batch
            self._batches = None
            self.on_pass(False)

    def reset(self) -> None:
        """Forget the pass under way; the next batch begins a new one."""
        self._batches = None

    def finish(self) -> None:
        """Say that the pass under way is over: the run is."""
        if self._batches is not None:
            self.on_pass(False)

    def state_dict(self) -> dict[str, Tensor]:
        """Random states at the pass's beginning, and the batches drawn of it."""
        return {**self._start, "drawn": torch.tensor(self.drawn)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Deal the pass of `state_dict` again and skip what had been drawn of it.

        The random states of the process move; restore them afterwards.
        """
        drawn = int(state["drawn"])
        self._begin({name: value for name, value in state.items() if name != "drawn"})
        self.on_pass(True)
        for _ in range(drawn):
            next(self._batches)  # pyright: ignore[reportArgumentType]
        self.drawn = drawn

    def _begin(self, start: dict[str, Tensor]) -> None:
        self._start = start
        torch.set_rng_state(start["cpu"])
        generator = self._generator()
        if generator is not None:
            generator.set_state(start["generator"])
        self._batches, self.drawn = iter(self.loader), 0

    def _states(self) -> dict[str, Tensor]:
        generator = self._generator()
        own = {} if generator is None else {"generator": generator.get_state()}
        return {"cpu": torch.get_rng_state(), **own}

    def _generator(self) -> torch.Generator | None:
        return getattr(self.loader, "synchronized_generator", None)
