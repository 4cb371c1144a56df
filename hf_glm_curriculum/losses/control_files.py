"""The control file of a run and the status that the run answers with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.losses.edits import SECTION, checked_wishes, read_control
from hf_glm_curriculum.storage import atomic_write_text, ensure_folder, locked, read_json

CONTROL_FILE = "control.yaml"
_STATUS_FILE = "control.status.json"
_HEADER = "# Read by the run between two steps; written by `hf-glm-curriculum control`.\n"


def status_path(run: Path) -> Path:
    """Where a run writes what it did with its control file."""
    return run / _STATUS_FILE


def read_status(run: Path) -> dict[str, Any] | None:
    """A run's status, or None if none was written.

    Raises:
        ConfigError: if there is no such folder.
        StateError: if the file is not JSON.
    """
    if not run.is_dir():
        raise ConfigError(f"run {run}: no such folder; name a trainer's output_dir.")
    path = status_path(run)
    return read_json(path) if path.exists() else None


def control_path(run: Path, status: Mapping[str, Any] | None) -> Path:
    """The control file that the run reads."""
    return run / CONTROL_FILE if status is None else Path(status["control_file"])


def with_assignments(section: Mapping[str, Any], assignments: list[str]) -> dict[str, Any]:
    """A ``loss`` section with assignments made: ``loss.NAME=0.3``, ``loss.NAME.active=false``.

    Raises:
        ConfigError: if an assignment cannot be read.
    """
    found = {name: dict(w) if isinstance(w, Mapping) else w for name, w in section.items()}
    for assignment in assignments:
        path, value = _parsed(assignment)
        name, field = path[0], path[1] if len(path) > 1 else "weight"
        wish = found.get(name, {})
        wish = wish if isinstance(wish, dict) else {"weight": wish}
        if len(path) == 1:
            # A bare weight ends a schedule, as set_weight does.
            wish.pop("schedule", None)
        wish[field] = value
        found[name] = wish["weight"] if set(wish) == {"weight"} else wish
    return found


def write_control(path: Path, section: Mapping[str, Any]) -> None:
    """Write a control file, atomically.

    Raises:
        StateError: if the folder is not writable.
    """
    text = yaml.safe_dump({SECTION: dict(section)}, sort_keys=False, allow_unicode=True)
    atomic_write_text(path, _HEADER + text)


def set_terms(run: Path, assignments: list[str]) -> tuple[Path, dict[str, Any], bool]:
    """Write assignments into a run's control file.

    Returns:
        The file, its ``loss`` section, and whether the run has told its terms, so that names
        could be checked.

    Raises:
        ConfigError: if the folder, a name, a field or a value is wrong.
        StateError: if the folder is not writable.
    """
    status = read_status(run)
    path = control_path(run, status)
    # Two people's edits at once: the second is made to the file that the first has written.
    with locked(ensure_folder(path.parent) / f".{path.name}.lock"):
        present = read_control(path) if path.exists() else {}
        section = with_assignments(present, assignments)
        names = section if status is None else status["terms"]
        checked_wishes(section, names)
        write_control(path, section)
    return path, section, status is not None


def _parsed(assignment: str) -> tuple[list[str], Any]:
    """``loss.NAME.FIELD=value`` → ([NAME, FIELD], value read as YAML)."""
    left, equals, right = assignment.partition("=")
    parts = left.strip().split(".")
    if not equals or len(parts) not in (2, 3) or not all(parts):
        raise ConfigError(
            f"assignment: must look like loss.NAME=WEIGHT or loss.NAME.FIELD=VALUE, got "
            f"{assignment!r}."
        )
    if parts[0] != SECTION:
        raise ConfigError(f"assignment {assignment!r}: {nearest(parts[0], [SECTION])}")
    try:
        return parts[1:], yaml.safe_load(right)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"assignment {assignment!r}: not a YAML value ({reason}).") from error
