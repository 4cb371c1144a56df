"""Sample answers with their scores, for people to read: JSONL, and tables of trackers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_glm_curriculum.ppo.rollout import Rollout
from hf_glm_curriculum.rewards.pipeline import ScoredBatch
from hf_glm_curriculum.storage import append_line, rewind_lines

FILE = "completions.jsonl"
EVALUATION_FILE = "completions_eval.jsonl"


def completion_rows(
    rollout: Rollout, scored: ScoredBatch, kl: Tensor, step: int, count: int
) -> list[dict[str, Any]]:
    """The first `count` answers of a rollout with what was thought of them.

    Args:
        rollout: B rows.
        scored: the same rows.
        kl: sequence KL of each row, [B], nats.
        step: the update.
        count: rows wanted.
    """
    names = scored.dimensions
    return [
        {
            "step": step,
            "prompt": rollout.prompt_texts[i],
            "response": rollout.responses[i],
            "scores": _by_name(names, scored.scores[i]),
            "confidence": _by_name(names, scored.confidence[i]),
            "open": dict(zip(names, scored.mask[i].tolist(), strict=True)),
            "reward": _number(float(scored.reward[i])),
            "kl": float(kl[i]),
            "length": int(rollout.lengths[i]),
            "ended": bool(rollout.ended[i]),
        }
        for i in range(min(count, len(rollout)))
    ]


class CompletionLog:
    """`completions.jsonl` of a run; one line an answer.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def rewind(self, step: int) -> None:
        """Take out what lies after `step`, and a line that a kill tore.

        Raises:
            StateError: if the file cannot be written.
        """
        rewind_lines(self.path, step)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows.

        Raises:
            StateError: if the disk is full or the file not writable.
        """
        for row in rows:
            append_line(self.path, json.dumps(row, ensure_ascii=False))


def send_table(rows: Sequence[dict[str, Any]], report_to: Sequence[str]) -> None:
    """Show the rows as a table in Weights & Biases, where a run is open there."""
    wandb: Any = sys.modules.get("wandb")
    if not rows or "wandb" not in report_to or wandb is None or wandb.run is None:
        return
    flat = [_flat(row) for row in rows]
    columns = list(flat[0])
    table = wandb.Table(columns=columns, data=[[row[c] for c in columns] for row in flat])
    wandb.log({"completions": table}, commit=False)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    nested = ("scores", "confidence", "open")
    plain = {k: v for k, v in row.items() if k not in nested}
    return plain | {f"{kind}/{n}": v for kind in nested for n, v in row[kind].items()}


def _by_name(names: Sequence[str], values: Tensor) -> dict[str, float | None]:
    return {n: _number(v) for n, v in zip(names, values.tolist(), strict=True)}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
