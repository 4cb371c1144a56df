"""What every benchmark shares: one result file each, and the table made of all of them."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from claims import claims_table

from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
_VERSIONS = ("torch", "transformers", "trl", "peft", "datasets")


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Flags every benchmark has: ``--seed`` and ``--full``."""
    flags = argparse.ArgumentParser(description=description)
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--full", action="store_true", help="more seeds and sizes")
    flags.set_defaults(**defaults)
    return flags


def environment() -> dict[str, str]:
    """Versions and machine that a result was measured with."""
    import torch

    found = {name: version(name) for name in _VERSIONS}
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"
    return {
        **found,
        "python": platform.python_version(),
        "device": f"{card}, {torch.get_num_threads()} threads",
    }


def record(name: str, rows: Sequence[dict[str, Any]], seed: int, /, **sizes: Any) -> None:
    """Write one benchmark's result and rewrite ``RESULTS.md`` from all of them.

    Args:
        name: of the benchmark, as DESIGN names it.
        rows: table lines with ``measure``, ``value``, and optionally ``target``, ``met``
            (bool), ``claim`` and ``note``.
        seed: the seed, or the first of them.
        sizes: what was measured on.
    """
    command = "python " + shlex.join(["benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]])
    result = {
        "name": name,
        "command": command,
        "seed": seed,
        "sizes": sizes,
        "environment": environment(),
        "rows": list(rows),
    }
    atomic_write_json(RESULTS / f"{name}.json", result)
    write_table()


def write_table() -> None:
    """Rewrite ``RESULTS.md`` from the result files."""
    parts = [
        "# Measured results",
        "",
        "Written by the benchmarks themselves; each section ends with the command that repeats "
        "it. Ratios are of one run on one machine.",
    ]
    results = [json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    parts += ["", "## The articles' claims", ""]
    parts += claims_table({result["name"]: result for result in results})
    for result in results:
        parts += ["", f"## {result['name']}", "", *_table(result["rows"]), ""]
        sizes = ", ".join(f"{k} {v}" for k, v in result["sizes"].items())
        made = ", ".join(f"{k} {v}" for k, v in result["environment"].items())
        parts += [f"Sizes: {sizes}; seed {result['seed']}. {made}.", ""]
        parts += ["```bash", result["command"], "```"]
    atomic_write_text(FOLDER / "RESULTS.md", "\n".join(parts) + "\n")


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    columns = ["measure", "value", "target", "met", "claim", "note"]
    used = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    lines = ["| " + " | ".join(used) + " |", "|" + " --- |" * len(used)]
    lines += ["| " + " | ".join(_cell(row.get(c)) for c in used) + " |" for row in rows]
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "" if value is None else str(value).replace("|", "\\|")


class Timer:
    """Wall-clock seconds of repeated blocks."""

    def __init__(self) -> None:
        """Start with no measurement."""
        self.seconds: list[float] = []

    def __enter__(self) -> Timer:
        """Start the clock."""
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exception: object) -> None:
        """Keep what the clock says."""
        self.seconds.append(time.perf_counter() - self._start)

    @property
    def median(self) -> float:
        """Median of the blocks, seconds."""
        return statistics.median(self.seconds)
