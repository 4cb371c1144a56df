"""What commands write on the terminal: lines, and tables of figures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text


def console() -> Console:
    """A console on the standard output of now (which tests and pipes replace)."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """Write a line; `text` is taken as it is, never as markup."""
    console().print(Text(text), style=style)


@contextmanager
def library_bars() -> Iterator[None]:
    """Other libraries' progress bars as they suit a command, for the length of a block.

    Loading and downloading show theirs on a terminal only; those of small table operations never.
    """
    import datasets
    from transformers.utils import logging as transformers_logging

    loading = transformers_logging.is_progress_bar_enabled()
    tables_off = datasets.are_progress_bars_disabled()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if loading:
            transformers_logging.enable_progress_bar()
        if not tables_off:
            datasets.enable_progress_bars()


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int] = ()
) -> None:
    """Write a table; the first column keeps its lines, `right` lists the columns of numbers."""
    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for place, name in enumerate(columns):
        justify = "right" if place in right else "left"
        fixed = place == 0 or place in right
        table.add_column(escape(name), justify=justify, overflow="fold", no_wrap=fixed)
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    Console(file=sys.stdout, highlight=False).print(table)
