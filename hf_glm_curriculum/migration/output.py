"""What is left in the run folder at the end: pictures, and the numbers behind them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hf_glm_curriculum.migration.plots import layers_png, losses_png, ratios_png
from hf_glm_curriculum.migration.schedule import MigrationSchedule
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.storage import atomic_write_json

METRICS_FILE = "metrics.jsonl"


def write_outputs(
    run_folder: Path, name: str, schedule: MigrationSchedule, blocks: int, totals: dict[str, float]
) -> None:
    """Write ``schedule.json``, ``layers.png``, ``ratios.png`` and ``losses.png``.

    Args:
        run_folder: the trainer's output folder, with its ``metrics.jsonl``.
        name: of the callback; the sub-folder and the prefix of its metrics.
        schedule: of the run.
        blocks: transformer blocks of the model.
        totals: label tokens trained on, by objective.

    Raises:
        StateError: if a file cannot be written.
    """
    folder = run_folder / name
    settings = {
        "config": dataclasses.asdict(schedule.config),
        "window": [schedule.begin, schedule.end],
        "post_ramp": schedule.post_ramp,
        "max_steps": schedule.max_steps,
        "label_tokens": totals,
    }
    atomic_write_json(folder / "schedule.json", settings)
    layers_png(schedule, blocks, folder / "layers.png")
    metrics = read_metrics(run_folder) if (run_folder / METRICS_FILE).exists() else []
    ratios_png(schedule, metrics, f"{name}/", folder / "ratios.png")
    losses_png(schedule, metrics, f"{name}/", folder / "losses.png")
