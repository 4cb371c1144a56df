"""Figures that belong to no window and no global state, written whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from hf_glm_curriculum.storage import atomic_write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float = 7.0, height: float = 4.6) -> Figure:
    """An empty figure that belongs to no window and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=130)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically.

    Raises:
        StateError: if the file cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    atomic_write_bytes(path, buffer.getvalue())
