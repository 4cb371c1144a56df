"""Progress bars on a terminal or in a notebook; elsewhere a line a minute of what takes long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


FIRST_LINE, NEXT_LINE = 30.0, 60.0
"""Seconds until a log hears of work under way, and between two lines."""


class ProgressBar:
    """What a `progress` block is given: moves the bar, or does nothing where none is shown."""

    def advance(self, steps: float = 1) -> None:
        """Move the bar on by `steps`."""

    def describe(self, text: str) -> None:
        """Change the words before the bar."""


@contextmanager
def progress(
    total: float | None, description: str, force: bool | None = None
) -> Iterator[ProgressBar]:
    """Show a progress bar for the length of a `with` block.

    Args:
        total: The number of steps, or None for a bar without an end.
        description: The words before the bar.
        force: True shows it on anything, False on nothing; None shows it where standard error is
            a terminal, in a notebook, and wherever `HGC_PROGRESS=1` is set, and writes a line a
            minute elsewhere, the first after half a minute.
    """
    from rich.console import Console

    console = Console(stderr=True, force_terminal=True if force else None)
    shown = os.environ.get("HGC_PROGRESS") == "1" or console.is_jupyter or sys.stderr.isatty()
    if force is False or not (force or shown):
        yield ProgressBar() if force is False else _Lines(total, description)
        return
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
    )
    with rich_progress.Progress(*columns, console=console) as bars:
        yield _RichBar(bars, bars.add_task(description, total=total))


class _Lines(ProgressBar):
    """Lines for a log."""

    def __init__(self, total: float | None, words: str) -> None:
        self._total, self._words, self._done = total, words, 0.0
        self._due = time.monotonic() + FIRST_LINE

    def advance(self, steps: float = 1) -> None:
        """Count, and write a line when one is due."""
        self._done += steps
        if time.monotonic() < self._due or self._done == self._total:
            return
        self._due = time.monotonic() + NEXT_LINE
        of = "" if self._total is None else f" of {self._total:,.0f}"
        sys.stderr.write(f"  {self._words}: {self._done:,.0f}{of}\n")

    def describe(self, text: str) -> None:
        """Change the words of the next line."""
        self._words = text


class _RichBar(ProgressBar):
    """A bar drawn by rich."""

    def __init__(self, bars: Progress, task: TaskID) -> None:
        self._bars = bars
        self._task = task

    def advance(self, steps: float = 1) -> None:
        """Move the bar on by `steps`."""
        self._bars.advance(self._task, steps)

    def describe(self, text: str) -> None:
        """Change the words before the bar."""
        self._bars.update(self._task, description=text)
