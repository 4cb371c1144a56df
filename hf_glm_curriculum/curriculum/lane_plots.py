"""Picture of the lanes: the scores that part them, and each lane's loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.curriculum.lane_tally import NAMES
from hf_glm_curriculum.figures import new_figure, save_figure

COLOURS = {"fast": "#54a24b", "refine": "#4c78a8", "base": "#8c8c8c"}
"""One colour a lane."""


def lanes_png(
    scores: np.ndarray,
    threshold: float,
    metrics: Sequence[Mapping[str, Any]],
    prefix: str,
    path: Path,
) -> None:
    """Draw the scores' histogram with the threshold, and the loss of each lane.

    Args:
        scores: [N] of the rows.
        threshold: below which a row is fast; may be infinite.
        metrics: lines of ``metrics.jsonl``.
        prefix: of the callback's metrics, such as ``lanes/``.
        path: PNG to write.

    Raises:
        StateError: if the file cannot be written.
    """
    figure = new_figure(7.0, 6.0)
    above, below = figure.subplots(2, 1)
    edges = np.histogram_bin_edges(scores, bins=min(60, max(5, len(scores) // 10)))
    for name, part in (
        ("fast", scores[scores < threshold]),
        ("refine", scores[scores >= threshold]),
    ):
        if len(part):
            above.hist(part, bins=edges.tolist(), color=COLOURS[name], label=f"{name}: {len(part)}")
    if np.isfinite(threshold):
        above.axvline(threshold, color="#333333", lw=1, ls=":")
    above.set_xlabel("instruction score")
    above.set_ylabel("rows")
    above.legend(frameon=False, fontsize=8)
    for name in NAMES:
        key = f"{prefix}loss_{name}"
        points = [(int(m["step"]), float(m[key])) for m in metrics if m.get(key) is not None]
        if points:
            below.plot(*zip(*points, strict=True), ".-", color=COLOURS[name], lw=0.9, label=name)
    below.set_xlabel("optimizer step")
    below.set_ylabel("loss, nats a label token")
    below.grid(alpha=0.25)
    if below.lines:
        below.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
