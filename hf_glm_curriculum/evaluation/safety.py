"""Refusal, over-refusal and red team: what a model declines, and what it is talked into."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_glm_curriculum.data.record_formats import flatten
from hf_glm_curriculum.evaluation.compliance import refusal_text, verdict
from hf_glm_curriculum.evaluation.measured import Measured, by_group, flag, rates
from hf_glm_curriculum.storage import atomic_write_text

Answer = Callable[[Sequence[Any]], list[str]]
"""Prompts (texts, or turns) → answers."""


def measure_refusals(answer: Answer, rows: Sequence[Mapping[str, Any]]) -> Measured:
    """Refusals of requests to decline, and of harmless ones.

    Args:
        answer: Asks the model.
        rows: id, prompt, category, language and refuse, as `prompt_sets.bundled` gives them.

    Returns:
        ``refusal`` (share of requests to decline that were), ``over_refusal`` (share of harmless
        ones that were declined), by language too, and ``unclear`` (share of answers to requests
        to decline that are neither).
    """
    answers = answer([row["prompt"] for row in rows])
    verdicts = [verdict(text) for text in answers]
    wanted = [bool(row["refuse"]) for row in rows]
    refused = [one == "refused" for one in verdicts]
    languages = [str(row.get("language") or "other") for row in rows]
    declined = [flag(r) if w else None for r, w in zip(refused, wanted, strict=True)]
    over = [None if w else flag(r) for r, w in zip(refused, wanted, strict=True)]
    unclear = [flag(v == "unclear") if w else None for v, w in zip(verdicts, wanted, strict=True)]
    parts = {
        **by_group("refusal", declined, languages),
        **by_group("over_refusal", over, languages),
        "unclear": unclear,
    }
    shown = [
        {**row, "answer": text, "verdict": one, "right": w == (one == "refused")}
        for row, text, one, w in zip(rows, answers, verdicts, wanted, strict=True)
    ]
    return Measured(rates(parts), parts, shown)


def measure_red_team(answer: Answer, rows: Sequence[Mapping[str, Any]]) -> Measured:
    """Attack success: the share of attacks that the model complied with, by category and language.

    In attacks of several turns the model under test gives every answer; the last one counts.

    Args:
        answer: Asks the model.
        rows: id, category, language and turns (the user's), as `prompt_sets.bundled` gives them.

    Returns:
        ``success`` and ``success/<category>``, ``success/<language>``, and ``unclear``.
    """
    dialogues = converse(answer, [row["turns"] for row in rows])
    verdicts = [verdict(turns[-1]["content"]) for turns in dialogues]
    complied = [flag(one == "complied") for one in verdicts]
    parts = {
        **by_group("success", complied, [str(row["category"]) for row in rows]),
        **by_group("success", complied, [str(row["language"]) for row in rows], overall=False),
        "unclear": [flag(one == "unclear") for one in verdicts],
    }
    shown = [
        {
            **{key: value for key, value in row.items() if key != "turns"},
            "messages": turns[:-1],
            "prompt": flatten(turns[:-1]),
            "answer": turns[-1]["content"],
            "verdict": one,
            "right": one == "refused",
        }
        for row, turns, one in zip(rows, dialogues, verdicts, strict=True)
    ]
    return Measured(rates(parts), parts, shown)


def converse(answer: Answer, users: Sequence[Sequence[str]]) -> list[list[dict[str, str]]]:
    """Dialogues in which the model answers each of the user's turns before the next is said."""
    dialogues: list[list[dict[str, str]]] = [[] for _ in users]
    for turn in range(max(map(len, users), default=0)):
        open_rows = [row for row, turns in enumerate(users) if len(turns) > turn]
        for row in open_rows:
            dialogues[row].append({"role": "user", "content": users[row][turn]})
        # A copy: a prompt must not grow while it is being answered.
        answers = answer([list(dialogues[row]) for row in open_rows])
        for row, text in zip(open_rows, answers, strict=True):
            dialogues[row].append({"role": "assistant", "content": text})
    return dialogues


def compliance_preferences(measured: Measured, model: str = "") -> list[dict[str, Any]]:
    """Failures as preferences in the dimension compliance: a refusal of ours over the answer.

    Args:
        measured: Of `measure_red_team` or `measure_refusals`.
        model: Who gave the answers; goes into `source`.

    Returns:
        Records of the kind "dimension_preference" of `data.records.load_records`. Harmless
        requests give none.
    """
    return [
        {
            "prompt": row["prompt"],
            "chosen": refusal_text(row.get("language")),
            "rejected": row["answer"],
            "dimension": "compliance",
            "category": row["category"],
            "language": row.get("language"),
            "attack": row["id"],
            "source": model,
        }
        for row in measured.rows
        if row["verdict"] == "complied" and row.get("refuse", True)
    ]


def write_preferences(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records as JSONL.

    Raises:
        StateError: The file cannot be written.
    """
    lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    atomic_write_text(path, lines.encode("utf-8", "replace").decode("utf-8"))
