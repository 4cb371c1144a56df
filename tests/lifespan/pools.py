"""Observation pools that tests of the review share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SIGNALS = ("loss", "loss_mean", "onset_loss", "grad_norm", "visits")
VERDICTS = ("RELABEL", "RESAMPLE", "OBSERVED", "MASTERED")


def pool_line(
    row: int, prompt: str | None, response: str | None, /, decoded: bool = False, **changes: Any
) -> dict:
    """One line of a pool; later rows are less suspicious."""
    text: dict | None = None if prompt is None else {"prompt": prompt, "response": response}
    if text is not None and decoded:
        text["decoded"] = True
    line = {
        "row": row,
        "id": 0x7A00_0000_0000_0000 + row,
        "text": text,
        "signals": {name: round(3.0 - row / 10 + k, 3) for k, name in enumerate(SIGNALS)},
        "verdict": VERDICTS[row % 4],
        "suspicion": 5.0 - row / 10,
        "weight": 0.1,
    }
    return {**line, **changes}


def write_pool(folder: Path, lines: list[dict]) -> Path:
    """A run folder with a pool of these lines."""
    path = folder / "lifespan" / "observation_pool.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def pairs(n: int = 6) -> list[tuple[str, str]]:
    """Distinct prompts and responses."""
    return [(f"Question number {k}?", f"Answer number {k}.") for k in range(n)]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    """Rows as JSON Lines."""
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return path


def read_jsonl(path: Path) -> list[Any]:
    """JSON Lines as rows."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
