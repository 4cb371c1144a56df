"""What a reproduction compares: the inputs, versions and figures of two runs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_glm_curriculum.evaluation.run_folder import RUN_FILE, read_json_lines
from hf_glm_curriculum.reporting import METRICS_FILE
from hf_glm_curriculum.storage import read_json

CLOSE = 1e-3
"""Largest relative difference of figures that count as close."""

_FIGURE_FILES = ("evaluation/heldout.json", "evaluation/answers.json", "rewards/figures.json")
# A trainer that went on after a kill averages `train_loss` over what it trained itself.
_CLOCKS = ("seconds", "runtime", "per_second", "_time", "flos", "train_loss")
_CLOCK = "last eps"  # TRL's episodes a second; as a part of a name it would catch steps too
_CHUNK = 2**20


def input_digests(config: Any) -> dict[str, str]:
    """SHA-256 of every file that a config names, by its path as it stands there.

    Folders and hub ids are left out; what is written later (an output folder) is no input.
    """
    found = {}
    for name in _texts(config):
        path = Path(name).expanduser()
        if len(name) < 4096 and "\n" not in name and path.is_file():
            found[name] = file_digest(path)
    return found


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def changed_inputs(before: Mapping[str, str]) -> dict[str, str]:
    """Input files that are gone or hold something else now: path → "absent" or "changed"."""
    found = {}
    for name, digest in before.items():
        path = Path(name).expanduser()
        if not path.is_file():
            found[name] = "absent"
        elif file_digest(path) != digest:
            found[name] = "changed"
    return found


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Entries in which two mappings differ: name → (before, now)."""
    names = dict.fromkeys([*before, *now])
    return {n: (before.get(n), now.get(n)) for n in names if before.get(n) != now.get(n)}


def fingerprints_of(run: Path) -> dict[str, str]:
    """The fingerprints of model and data in a run's `run.json`, and in those of its stages."""
    found = {}
    for place, prefix in _places(run):
        about = read_json(place / RUN_FILE)
        for part in ("model", "data"):
            if isinstance(about.get(part), Mapping) and "fingerprint" in about[part]:
                found[f"{prefix}{part}"] = str(about[part]["fingerprint"])
    return found


def _places(run: Path) -> list[tuple[Path, str]]:
    """A run's folder and those of its stages, with what names their figures."""
    stages = sorted(path.parent for path in run.glob(f"stages/*/{RUN_FILE}"))
    return [(run, ""), *((stage, f"{stage.name}: ") for stage in stages)]


def figures_of(run: Path) -> dict[str, float]:
    """Every figure that a run and its stages came to, by name: evaluations, and the last logged.

    Clock times are left out.
    """
    parts = [(prefix, _figures_in(place)) for place, prefix in _places(run)]
    return {f"{prefix}{name}": value for prefix, part in parts for name, value in part.items()}


def _figures_in(run: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for file in _FIGURE_FILES:
        if (run / file).is_file():
            found |= _numbers(read_json(run / file), file.partition("/")[2].removesuffix(".json"))
    path = run / METRICS_FILE
    for line in read_json_lines(path) if path.is_file() else []:
        found |= {f"last {k}": v for k, v in line.items() if _is_number(v) and k != "step"}
    return {name: value for name, value in found.items() if not _is_clock(name)}


def _is_clock(name: str) -> bool:
    return name == _CLOCK or any(part in name for part in _CLOCKS)


def _numbers(tree: Any, prefix: str) -> dict[str, float]:
    if _is_number(tree):
        return {prefix: tree}
    if isinstance(tree, Mapping):
        parts = [_numbers(value, f"{prefix}.{key}") for key, value in tree.items() if key != "key"]
        return {name: value for part in parts for name, value in part.items()}
    return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Figure → before, after and the verdict: "equal", "close", "different" or "missing"."""
    found = {}
    for name in dict.fromkeys([*before, *after]):
        one, two = before.get(name), after.get(name)
        found[name] = {"before": one, "after": two, "verdict": _verdict(one, two)}
    return found


def compare_exactly(
    before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, dict[str, str | None]]:
    """Name → before, after and the verdict: "equal", "different" or "missing"."""
    found = {}
    for name in dict.fromkeys([*before, *after]):
        one, two = before.get(name), after.get(name)
        verdict = "missing" if one is None or two is None else "different"
        found[name] = {"before": one, "after": two, "verdict": "equal" if one == two else verdict}
    return found


def _verdict(one: float | None, two: float | None) -> str:
    if one is None or two is None:
        return "missing"
    if one == two or (math.isnan(one) and math.isnan(two)):
        return "equal"
    close = abs(one - two) <= CLOSE * max(abs(one), abs(two))
    return "close" if close else "different"
