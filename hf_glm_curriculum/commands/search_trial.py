"""One trial of a search: a process of the command, watched while it logs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_glm_curriculum.errors import HfGlmCurriculumError, StateError
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.reporting import METRICS_FILE
from hf_glm_curriculum.storage import atomic_write_text, read_json

POLL_SECONDS = 0.5
_LOG = "trial.log"


class TrialFailed(HfGlmCurriculumError):
    """A trial's process ended with an error, or without the objective."""


class TrialCutOff(HfGlmCurriculumError):
    """The search ended while a trial ran."""


def run_trial(
    command: str,
    settings: Mapping[str, Any],
    folder: Path,
    objective: str,
    should_stop: Callable[[int, float], bool],
    stopping: threading.Event,
) -> float | None:
    """Run the command on these settings and read the objective.

    Args:
        command: Name of the command.
        settings: All its settings, but for the output folder.
        folder: The trial's own; its run goes into `run` below it.
        objective: See `SearchConfig.objective`.
        should_stop: Called with every new (step, value) of an objective that is logged; true
            ends the trial.
        stopping: Once set, the trial is ended.

    Returns:
        The objective; None where the trial was stopped.

    Raises:
        TrialFailed: The process failed, or left no objective.
        TrialCutOff: `stopping` was set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    atomic_write_text(config, text)
    words = [sys.executable, "-m", "hf_glm_curriculum.commands.search_child", command]
    words += ["--config", str(config), "--output-dir", str(folder / "run"), "--overwrite"]
    with (folder / _LOG).open("wb") as log:
        # The child is told whose it is: by the time it asks, its parent may be gone.
        about = {**os.environ, "HGC_SEARCH_PROCESS": str(os.getpid())}
        process = subprocess.Popen(words, stdout=log, stderr=log, env=about, start_new_session=True)
        try:
            stopped = _watched(process, folder / "run", objective, should_stop, stopping)
        finally:
            end(process)
    if stopped:
        return None
    if process.returncode != 0:
        raise TrialFailed(_last_line(folder / _LOG) or f"ended with status {process.returncode}")
    return read_objective(folder / "run", objective)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _watched(
    process: subprocess.Popen[bytes],
    run: Path,
    objective: str,
    should_stop: Callable[[int, float], bool],
    stopping: threading.Event,
) -> bool:
    """Wait for the end; whether it was stopped early."""
    seen = -1
    while process.poll() is None:
        if stopping.wait(POLL_SECONDS):
            raise TrialCutOff("the search was ended")
        for step, value in _logged(run, objective):
            if step > seen:
                seen = step
                if should_stop(step, value):
                    return True
    return False


def _logged(run: Path, objective: str) -> Iterator[tuple[int, float]]:
    path = run / METRICS_FILE
    if ":" in objective or not path.is_file():
        return
    try:
        lines = read_json_lines(path)
    except StateError:  # being written
        return
    for line in lines:
        if _is_number(line.get(objective)):
            yield int(line.get("step", 0)), float(line[objective])


def read_objective(run: Path, objective: str) -> float:
    """The objective of a finished run.

    Raises:
        TrialFailed: The run has no such figure.
    """
    file, _, path = objective.rpartition(":")
    if not file:
        values = [value for _, value in _logged(run, objective)]
        if not values:
            known = sorted({k for line in _lines(run) for k in line if "/" in k or "loss" in k})
            told = ", ".join(known) or "none"
            raise TrialFailed(f"objective: the run logged no {objective!r}; it logged {told}")
        return values[-1]
    return _figure(run / file, path)


def _figure(file: Path, path: str) -> float:
    """A number in a JSON file, by its dotted path."""
    try:
        value: Any = read_json(file)
    except StateError as error:
        raise TrialFailed(f"objective: {error}") from error
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise TrialFailed(f"objective: {file} has no {path!r}")
        value = value[key]
    if not _is_number(value):
        raise TrialFailed(f"objective: {path!r} in {file.name} is no number, got {value!r}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lines(run: Path) -> list[dict[str, Any]]:
    path = run / METRICS_FILE
    return read_json_lines(path) if path.is_file() else []


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")]
    return (told or lines or [""])[-1].removeprefix("error: ")
