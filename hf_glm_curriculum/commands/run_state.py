"""A run's folder as commands manage it: refuse, resume or overwrite, and `run.json`."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hf_glm_curriculum.checkpoints import last_checkpoint
from hf_glm_curriculum.commands.environment import device_name, git_state, versions
from hf_glm_curriculum.commands.reproduction import input_digests
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.evaluation.run_folder import EVALUATION, REPORT_FILE, RUN_FILE
from hf_glm_curriculum.reporting import METRICS_FILE
from hf_glm_curriculum.storage import (
    atomic_write_json,
    ensure_folder,
    read_json,
    sweep_temporaries,
    writing,
)

CALLBACK = "lifespan"
MIGRATION = "migration"
# What a run may leave in its folder: all that overwriting takes away.
_OURS = (
    RUN_FILE,
    METRICS_FILE,
    "metrics.previous.jsonl",
    REPORT_FILE,
    EVALUATION,
    CALLBACK,
    MIGRATION,
    "model",
    "demo_data",
    "rewards",
    "refresh",
    "tuned",
    "completions.jsonl",
    "stages",
    "config.yaml",
    "checkpoint-*",
)


@dataclass(frozen=True)
class FolderPlan:
    """What is to be done with an output folder.

    Attributes:
        folder: The run's folder, perhaps not there yet.
        checkpoint: The checkpoint to go on from; None starts at step 0.
        previous: `run.json` of the run that is gone on with; None for a new one.
        clear: Whether an older run in the folder goes first.
    """

    folder: Path
    checkpoint: Path | None = None
    previous: dict[str, Any] | None = None
    clear: bool = False


def plan_folder(
    output_dir: str | os.PathLike[str], resume: bool, overwrite: bool, callback: str = CALLBACK
) -> FolderPlan:
    """Decide what becomes of an output folder, changing nothing.

    Args:
        output_dir: The folder.
        resume: Go on with the run it holds.
        overwrite: Throw away the run it holds.
        callback: The callback without whose state a checkpoint is not whole.

    Raises:
        StateError: The folder holds a run and neither `resume` nor `overwrite` is set, holds
            files of something else, or cannot be written.
    """
    folder = Path(output_dir).expanduser()
    check_writable(folder)
    if not folder.is_dir() or not any(folder.iterdir()):
        return FolderPlan(folder)
    if not (folder / RUN_FILE).exists():
        if resume or not any(folder.glob("checkpoint-*")):
            return FolderPlan(folder, last_checkpoint(folder, callback) if resume else None)
        # Without run.json nothing says that the files are ours to throw away.
        raise StateError(
            f"output_dir {folder} holds checkpoints of another run; pass --resume to go on from "
            "them, or choose another folder"
        )
    previous = read_json(folder / RUN_FILE)
    if overwrite:
        return FolderPlan(folder, clear=True)
    if resume:
        return FolderPlan(folder, last_checkpoint(folder, callback), previous)
    status = "a finished run" if previous.get("status") == "finished" else "an unfinished run"
    raise StateError(
        f"output_dir {folder} holds {status}; pass --resume to go on with it, --overwrite to throw "
        "it away, or choose another folder"
    )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written, without making it.

    Raises:
        StateError: Naming the first existing part that is no writable folder.
    """
    for place in (folder, *folder.absolute().parents):
        if os.path.lexists(place):
            if not place.is_dir():
                raise StateError(
                    f"output_dir {folder}: {place} is no folder; choose another output_dir"
                )
            if not os.access(place, os.W_OK | os.X_OK):
                raise StateError(
                    f"output_dir {folder}: {place} is not writable; choose another output_dir or "
                    "change its permissions"
                )
            return


@dataclass
class RunRecord:
    """`run.json` of a run under way.

    Attributes:
        folder: The run's folder.
        about: What the file holds.
    """

    folder: Path
    about: dict[str, Any] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _earlier: float = 0.0

    def update(self, **fields: Any) -> None:
        """Change fields and write the file.

        Raises:
            StateError: The file cannot be written.
        """
        self.about.update(fields)
        self.about["seconds"] = round(self._earlier + time.monotonic() - self._began, 1)
        atomic_write_json(self.folder / RUN_FILE, self.about)


@contextlib.contextmanager
def run_record(plan: FolderPlan, about: Mapping[str, Any]) -> Iterator[RunRecord]:
    """Open a run's folder; its status says how the block ended, whatever ended it.

    Args:
        plan: From `plan_folder`.
        about: What the run is: command, argv, title, config, model, data, seed.

    Raises:
        StateError: The folder cannot be written.
    """
    with alone_in(ensure_folder(plan.folder)):
        sweep_temporaries(plan.folder)
        yield from _recorded(plan, about)


def _recorded(plan: FolderPlan, about: Mapping[str, Any]) -> Iterator[RunRecord]:
    """Keep `run.json` while the caller's block runs."""
    if plan.clear:
        clear_run(plan.folder)
    previous = plan.previous or {}
    record = RunRecord(plan.folder)
    record._earlier = float(previous.get("seconds") or 0)
    record.about = {
        "status": "running",
        "started": previous.get("started") or now(),
        "resumed": [*previous.get("resumed", []), now()] if plan.previous else [],
        **about,
        "inputs": input_digests(about.get("config") or {}),
        "versions": versions(),
        "device": device_name(),
        **git_state(),
    }
    record.update()
    try:
        yield record
    except BaseException as error:
        status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # A full disk is no reason to hide what went wrong first.
        with contextlib.suppress(StateError):
            record.update(status=status, error=" ".join(str(error).split())[:500], finished=now())
        raise
    record.update(status="finished", finished=now())


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system lets go of when its owner dies.

    Raises:
        StateError: Another process holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(str(folder / ".lock"))
    with writing(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout as error:  # a kind of OSError
            raise StateError(
                f"output_dir {folder}: another process runs in it; wait for it or choose another"
            ) from error
    try:
        yield
    finally:
        lock.release()


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a run that came to its end.

    Raises:
        StateError: Its `run.json` cannot be read.
    """
    path = folder / RUN_FILE
    return path.is_file() and read_json(path).get("status") == "finished"


def clear_run(folder: Path) -> None:
    """Delete what a run left in its folder, and nothing else.

    Raises:
        StateError: Something cannot be deleted.
    """
    try:
        for pattern in _OURS:
            for path in folder.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    except OSError as error:
        raise StateError(
            f"cannot delete {error.filename or folder}: {error.strerror}; choose another output_dir"
        ) from error


def cached(path: Path, key: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The value of `make`, kept in a file under a key: a run that goes on does not repeat it.

    Raises:
        StateError: The file cannot be written.
    """
    if path.exists():
        with contextlib.suppress(StateError):
            kept = read_json(path)
            if isinstance(kept, dict) and kept.get("key") == key:
                return kept["value"]
    value = make()
    atomic_write_json(path, {"key": key, "value": value})
    return value


def now() -> str:
    """The time in ISO form, to the second, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_main_process() -> bool:
    """Whether this process is the first of all ranks, from the launcher's environment."""
    return int(os.environ.get("RANK", "0") or 0) == 0
