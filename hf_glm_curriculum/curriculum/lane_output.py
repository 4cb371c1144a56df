"""What is left of the lanes in the run folder: a picture, and the totals of each lane."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_glm_curriculum.curriculum.lane_data import LanePlan
from hf_glm_curriculum.curriculum.lane_tally import NAMES, LaneTally
from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.reporting import METRICS_FILE, read_metrics
from hf_glm_curriculum.storage import atomic_write_json

COLOURS = {"fast": "#54a24b", "refine": "#4c78a8", "base": "#8c8c8c"}
"""One colour a lane."""


def write_outputs(run_folder: Path, name: str, plan: LanePlan, tally: LaneTally) -> None:
    """Write ``lanes.png`` and ``lanes.json``.

    Args:
        run_folder: the trainer's output folder, with its ``metrics.jsonl``.
        name: of the callback; the sub-folder and the prefix of its metrics.
        plan: of the lanes.
        tally: of the run.

    Raises:
        StateError: if a file cannot be written.
    """
    metrics = read_metrics(run_folder) if (run_folder / METRICS_FILE).exists() else []
    folder, threshold = run_folder / name, plan.threshold
    lanes_png(plan.scores, threshold, metrics, f"{name}/", folder / "lanes.png")
    found = {
        "threshold": threshold if math.isfinite(threshold) else None,
        "fast": int((plan.scores < threshold).sum()),
        "rows": len(plan.scores),
        "lanes": tally.totals(),
    }
    atomic_write_json(folder / "lanes.json", found)


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
