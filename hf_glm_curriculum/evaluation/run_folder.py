"""What a run left in its folder; a part that is missing or torn never stops the reader."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hf_glm_curriculum.errors import HfGlmCurriculumError, StateError
from hf_glm_curriculum.evaluation.report_style import is_number
from hf_glm_curriculum.lifespan.flows import Moment, read_flow
from hf_glm_curriculum.reporting import METRICS_FILE
from hf_glm_curriculum.storage import read_json

if TYPE_CHECKING:
    import pandas as pd

RUN_FILE = "run.json"
EVALUATION = "evaluation"
SAMPLES_FILE = "samples.csv"
POOL_FILE = "observation_pool.jsonl"
FLOW_FILE = "state_flow.csv"
REPORT_FILE = "report.html"

T = TypeVar("T")


@dataclass
class CallbackFolder:
    """Results of one callback: its name, every sample's last figures and the observation pool."""

    name: str
    samples: Any
    """A pandas DataFrame with the columns of `SampleLedger.to_pandas()`."""
    pool: list[dict[str, Any]] = field(default_factory=list)
    flow: list[Moment] = field(default_factory=list)
    """What moved between states, moment by moment."""


@dataclass
class RunFolder:
    """Everything a report can show of a run; an artefact that is not there is None or empty.

    Attributes:
        path: The folder.
        run: ``run.json``: command, status, config, versions, seeds, fingerprints.
        metrics: Lines of ``metrics.jsonl``.
        callbacks: One entry for each folder with a ``samples.csv``.
        generations: Rows of ``evaluation/generations.jsonl``.
        suspicious: Rows of ``evaluation/suspicious.jsonl``: the pool's form, with ``fault``.
        evaluation: Name → content of the JSON files in ``evaluation/``.
        problems: One line for each artefact that is there and cannot be read.
    """

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    callbacks: list[CallbackFolder] = field(default_factory=list)
    generations: list[dict[str, Any]] = field(default_factory=list)
    suspicious: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def series(self, key: str) -> tuple[list[Any], list[float]]:
        """Steps and values of a logged figure, where it was logged as a number."""
        logged = [line for line in self.metrics if is_number(line.get(key))]
        return [line["step"] for line in logged], [line[key] for line in logged]

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints in the folder, ascending."""
        names = (p.name.removeprefix("checkpoint-") for p in self.path.glob("checkpoint-*"))
        return sorted(int(name) for name in names if name.isdigit())


def read_run(path: str | os.PathLike[str]) -> RunFolder:
    """Read a run's folder.

    Raises:
        StateError: There is no such folder, or it holds nothing that a run leaves.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        state = "it is a file" if folder.exists() else "no such folder"
        raise StateError(f"{folder} must be the output folder of a run, {state}; check the path")
    found = RunFolder(folder)
    run = _kept(found, folder / RUN_FILE, read_json, {})
    found.run = run if isinstance(run, dict) else {}
    found.metrics = _kept(found, folder / METRICS_FILE, read_json_lines, [])
    for samples in sorted(folder.glob(f"*/{SAMPLES_FILE}")):
        frame = _kept(found, samples, read_samples, None)
        if frame is not None:
            pool = _kept(found, samples.with_name(POOL_FILE), read_json_lines, [])
            flow = _kept(found, samples.with_name(FLOW_FILE), read_flow, [])
            found.callbacks.append(CallbackFolder(samples.parent.name, frame, pool, flow))
    evaluation = folder / EVALUATION
    found.generations = _kept(found, evaluation / "generations.jsonl", read_json_lines, [])
    found.suspicious = _kept(found, evaluation / "suspicious.jsonl", read_json_lines, [])
    for file in sorted(evaluation.glob("*.json")):
        found.evaluation[file.stem] = _kept(found, file, read_json, None)
    if not (found.run or found.metrics or found.callbacks or found.generations or found.problems):
        raise StateError(
            f"{folder} is not the folder of a run: it holds no {RUN_FILE}, {METRICS_FILE} or "
            f"*/{SAMPLES_FILE}; name the output_dir of a training run"
        )
    return found


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file; a torn last line is left out.

    Raises:
        StateError: The file cannot be read, or a line before the last is not a JSON object.
    """
    try:
        lines = [line for line in path.read_text("utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"cannot read {path}: {error}; restore it or delete it") from error
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise StateError(
                f"{path} line {number} is not JSON ({error}); delete the line or the file"
            ) from error
        if not isinstance(row, dict):
            raise StateError(f"{path} line {number} must be an object; delete the line or the file")
        rows.append(row)
    return rows


def read_samples(path: Path) -> pd.DataFrame:
    """A `samples.csv` with the columns a report needs.

    Raises:
        StateError: The file cannot be read, is not CSV or lacks a column.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(io.BytesIO(path.read_bytes()))
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(f"cannot read {path}: {reason}; restore it or delete it") from error
    missing = {"row", "state", "suspicion", "weight", "loss_mean"} - set(frame.columns)
    if missing:
        raise StateError(
            f"{path}: lacks the columns {', '.join(sorted(missing))}; it is not a samples.csv of "
            "this package"
        )
    return frame


def _kept(found: RunFolder, path: Path, reader: Callable[[Path], T], missing: T) -> T:
    """Read one artefact; one that cannot be read becomes a problem line, an absent one nothing."""
    if not path.exists():
        return missing
    try:
        return reader(path)
    except HfGlmCurriculumError as error:
        found.problems.append(str(error))
        return missing
