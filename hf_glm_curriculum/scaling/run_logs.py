"""Points of post-training laws out of runs' own logs.

A run is a folder with ``metrics.jsonl``, with ``trainer_state.json`` (its own or its last
checkpoint's), or a line of a table that names such a folder. What was read in it (rows, pairs,
episodes) comes from the table, from ``run.json``, or from the log.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.reporting import METRICS_FILE, read_metrics
from hf_glm_curriculum.scaling.post_forms import INPUTS
from hf_glm_curriculum.scaling.run_table import Table, find_column, read_table
from hf_glm_curriculum.storage import read_json

Array = NDArray[np.float64]

_STATE_FILE, _RUN_FILE = "trainer_state.json", "run.json"
_COUNTS = {
    "sft": "sft_rows",
    "quickstart": "sft_rows",
    "migrate": "sft_rows",
    "reward": "preference_pairs",
}


@dataclass
class PostRuns:
    """Points of a post-training law.

    Attributes:
        inputs: Input → [n].
        values: [n] the metric.
        names: Where each point comes from.
        notes: What was estimated or left out.
    """

    inputs: dict[str, Array]
    values: Array
    names: list[str]
    notes: list[str] = field(default_factory=list)


def read_post_runs(
    sources: Sequence[str | os.PathLike[str]], metric: str, curve: bool = False
) -> PostRuns:
    """Read finished runs.

    Args:
        sources: Folders of runs; or one table with a column for each input, and either a column of
            the metric or a column ``run`` of folders, relative to the table.
        metric: Key in the logs or column, such as "eval_loss", "heldout/loss" or
            "structured/reward".
        curve: Take every line that has the metric, not the last one only; the inputs then grow
            along the run. Points of one run share its schedule and its noise.

    Raises:
        DataError: A folder has no log, a log has no such metric, or an input is unknown.
    """
    paths = [Path(source).expanduser() for source in sources]
    files = [path for path in paths if path.is_file() and path.name != _STATE_FILE]
    if files and (len(paths) > 1 or curve):
        raise DataError(
            f"{files[0]}: a table comes alone and holds one point a run; list its runs' folders "
            "instead"
        )
    if files:
        return _from_table(read_table(files[0]), metric)
    points, notes = [], []
    for path in paths:
        found = _points(path, metric, curve)
        points += [(path.name, *point) for point in found.points]
        notes += found.notes
    return _joined(points, notes)


def _from_table(table: Table, metric: str) -> PostRuns:
    inputs = {name: column for name in INPUTS if (column := find_column(table, [name]))}
    if not inputs:
        raise DataError(
            f"{table.path}: none of its columns ({', '.join(table.columns)}) is an input of a "
            f"post-training law; name at least one of {', '.join(INPUTS)}"
        )
    values = {name: table.numbers(column) for name, column in inputs.items()}
    column, runs = find_column(table, [metric]), find_column(table, ["run"])
    if column is not None:
        names = [f"line {line}" for line in table.lines]
        return PostRuns(values, table.numbers(column), names)
    if runs is None:
        raise DataError(
            f"{table.path}: has neither the metric {metric!r} nor a column `run` of folders to "
            f"read it from; its columns are {', '.join(table.columns)}"
        )
    folders = [table.path.parent / name.strip() for name in table.columns[runs]]
    last = [_value(_log(folder), metric, folder) for folder in folders]
    return PostRuns(values, np.array(last), [folder.name for folder in folders])


@dataclass
class _Found:
    """(inputs, value) of one run, and what was estimated."""

    points: list[tuple[dict[str, float], float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _points(folder: Path, metric: str, curve: bool) -> _Found:
    log, about = _log(folder), _about(folder)
    records = [line for line in log if isinstance(line.get(metric), int | float)]
    figures = about.get("figures")
    if not records and isinstance(figures, dict) and metric in figures:
        records = [{metric: figures[metric]}]
    if not records:
        _value(log, metric, folder)
    found = _Found()
    name, whole = _count(folder, about, log, found)
    size = (about.get("model") or {}).get("parameters")
    epochs = max((float(line.get("epoch") or 0) for line in log), default=0.0)
    for record in records if curve else records[-1:]:
        count = whole
        if curve:
            count = _along(record, name, whole, epochs)
        if count is not None and count > 0:
            inputs = {name: float(count)}
            if isinstance(size, int | float):
                inputs["parameters"] = float(size)
            found.points.append((inputs, float(record[metric])))
    return found


def _along(record: dict[str, Any], name: str, whole: float, epochs: float) -> float | None:
    """What had been read when a line was written."""
    if name == "ppo_episodes":
        return record.get("episode")
    epoch = record.get("epoch")
    if not isinstance(epoch, int | float) or not epochs:
        return None
    return whole * min(1.0, float(epoch))


def _count(
    folder: Path, about: dict[str, Any], log: list[dict[str, Any]], found: _Found
) -> tuple[str, float]:
    """Which input a run stands for, and how much of it."""
    episodes = [line["episode"] for line in log if isinstance(line.get("episode"), int | float)]
    if episodes:
        return "ppo_episodes", float(max(episodes))
    rows = (about.get("data") or {}).get("rows")
    name = _COUNTS.get(str(about.get("command")), "sft_rows")
    if isinstance(rows, int | float):
        return name, float(rows)
    samples, epochs = _samples(log)
    if samples is None:
        raise DataError(
            f"{folder}: neither run.json nor the log says how many rows were trained on; give a "
            "table with the columns run,sft_rows instead"
        )
    found.notes.append(f"{folder.name}: {samples / epochs:,.0f} rows, from its samples a second")
    return name, samples / epochs


def _samples(log: list[dict[str, Any]]) -> tuple[float | None, float]:
    """Samples read and epochs of a run, from the last line of transformers' own log."""
    for line in reversed(log):
        if "train_samples_per_second" in line and "train_runtime" in line:
            samples = float(line["train_samples_per_second"]) * float(line["train_runtime"])
            return samples, max(1.0, float(line.get("epoch") or 1.0))
    return None, 1.0


def _value(log: list[dict[str, Any]], metric: str, folder: Path) -> float:
    """The last value of a metric."""
    for line in reversed(log):
        if isinstance(line.get(metric), int | float):
            return float(line[metric])
    skip = {"epoch", "step", "episode"}
    known = sorted({key for line in log for key in line if "loss" in key or "reward" in key} - skip)
    shown = ", ".join(known[:12]) or "no loss or reward"
    raise DataError(f"{folder}: its log has no {metric!r}; it has {shown}")


def _log(folder: Path) -> list[dict[str, Any]]:
    """A run's lines of metrics, oldest first.

    Raises:
        DataError: The folder holds no log.
    """
    if folder.name == _STATE_FILE:
        return _history(folder)
    if (folder / METRICS_FILE).is_file():
        return read_metrics(folder)
    states = [path for path in folder.glob(f"checkpoint-*/{_STATE_FILE}") if _step(path) >= 0]
    own = folder / _STATE_FILE
    if own.is_file():
        return _history(own)
    if states:
        return _history(max(states, key=_step))
    raise DataError(
        f"{folder}: holds neither {METRICS_FILE} nor {_STATE_FILE}; name the folder of a finished "
        "run"
    )


def _step(path: Path) -> int:
    tail = path.parent.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def _history(path: Path) -> list[dict[str, Any]]:
    history = read_json(path).get("log_history")
    if not isinstance(history, list):
        raise DataError(f"{path}: has no log_history; it is no trainer state of transformers")
    return [line for line in history if isinstance(line, dict)]


def _about(folder: Path) -> dict[str, Any]:
    path = folder / _RUN_FILE
    kept = read_json(path) if path.is_file() else {}
    return kept if isinstance(kept, dict) else {}


def _joined(points: list[tuple[str, dict[str, float], float]], notes: list[str]) -> PostRuns:
    """One table of all points; inputs that only some of the runs have are left out, and said."""
    names = list(dict.fromkeys(name for _, inputs, _ in points for name in inputs))
    shared = [name for name in names if all(name in inputs for _, inputs, _ in points)]
    notes += [
        f"{name} is known of some runs only and left out" for name in names if name not in shared
    ]
    if not shared:
        raise DataError(
            "the runs have no input in common; give a table with a column for each input instead"
        )
    inputs = {name: np.array([one[name] for _, one, _ in points]) for name in shared}
    values = np.array([value if math.isfinite(value) else np.nan for _, _, value in points])
    return PostRuns(inputs, values, [name for name, _, _ in points], notes)
