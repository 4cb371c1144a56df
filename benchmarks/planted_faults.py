"""Real instruction data with faults of five kinds planted in it, labelled.

Sources (see ``$HGC_DATA`` or ``../shared/data``): self-instruct seeds and user-oriented tasks,
TruthfulQA questions, and a Chinese instruction set. Kinds:

- ``shuffled``: the answer of another row.
- ``wrong_fact``: a TruthfulQA question with its best *incorrect* answer.
- ``truncated``: the answer cut in the middle of its words.
- ``other_language``: a Chinese answer from the Chinese set under an English instruction.
- ``contradiction``: a near duplicate of another row's prompt with a contradicting answer (the
  other row keeps the right one).
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

KINDS = ("shuffled", "wrong_fact", "truncated", "other_language", "contradiction")
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass
class Row:
    """One instruction row; ``fault`` is None where nothing was planted."""

    prompt: str
    response: str
    fault: str | None = None


def data_folder() -> Path:
    """The folder of the real data sets.

    Raises:
        FileNotFoundError: if it is absent; the message says how to name it.
    """
    folder = Path(os.environ.get("HGC_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        raise FileNotFoundError(f"no real data at {folder}; set HGC_DATA to its folder")
    return folder


def self_instruct(most_words: int = 60, least_answer_words: int = 4) -> list[Row]:
    """Short English rows whose answers are long enough to be cut."""
    rows = []
    for name in ("seed_tasks.jsonl", "user_oriented_instructions.jsonl"):
        path = data_folder() / "instruct_self_instruct" / name
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            first = record["instances"][0]
            prompt = "\n".join(filter(None, (record["instruction"], first["input"].strip())))
            words = len(first["output"].split())
            if words >= least_answer_words and len(prompt.split()) + words <= most_words:
                rows.append(Row(prompt, first["output"].strip()))
    return rows


def truthful() -> list[tuple[str, str, str]]:
    """(question, best answer, best incorrect answer) of TruthfulQA."""
    path = data_folder() / "fact_truthfulqa" / "TruthfulQA.csv"
    with path.open(newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    return [(r["Question"], r["Best Answer"], r["Best Incorrect Answer"]) for r in records]


def chinese(longest: int = 44) -> list[Row]:
    """Short Chinese rows of every topic but code and arithmetic."""
    rows = []
    for path in sorted((data_folder() / "instruct_zh_supplement").glob("*.jsonl")):
        if path.stem in ("code", "arithmetic"):
            continue
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            prompt = record["instruction"] + (record.get("input") or "")
            if len(record["output"]) >= 8 and len(prompt) + len(record["output"]) <= longest:
                rows.append(Row(prompt, record["output"]))
    return rows


def cut_answer(answer: str, rng: random.Random) -> str:
    """The first 40–70 % of an answer's words (characters where there are few), unpunctuated."""
    words = answer.split()
    if len(words) < 4:
        return answer[: max(1, round(len(answer) * rng.uniform(0.4, 0.7)))]
    kept = words[: max(1, round(len(words) * rng.uniform(0.4, 0.7)))]
    return " ".join(kept).rstrip(".,;:!?")


def near_duplicate(prompt: str, rng: random.Random) -> str:
    """The same request with other framing words."""
    frames = ("{} Please answer.", "Question: {}", "{} Be brief.", "Tell me: {}")
    return rng.choice(frames).format(prompt)


def planted(
    n: int = 192,
    per_kind: int = 10,
    seed: int = 0,
    fits: Callable[[Row], bool] = lambda row: True,
) -> list[Row]:
    """A shuffled data set of ``n`` rows with ``per_kind`` faults of each kind.

    Half of the clean rows are TruthfulQA, a twelfth Chinese, the rest self-instruct tasks.

    Args:
        n: rows in all.
        per_kind: faults of each kind.
        seed: of every choice.
        fits: says whether a row is short enough to be used.
    """
    rng = random.Random(seed)
    tasks, foreign = ([r for r in pool if fits(r)] for pool in (self_instruct(), chinese()))
    questions = truthful()
    for pool in (tasks, questions, foreign):
        rng.shuffle(pool)
    rows: list[Row] = []
    donors = [tasks.pop() for _ in range(per_kind)]
    answers = [row.response for row in donors]
    for i, row in enumerate(donors):
        rows.append(Row(row.prompt, answers[(i + 1) % per_kind], "shuffled"))
    for _ in range(per_kind):
        question, _, wrong = questions.pop()
        rows.append(Row(question, wrong, "wrong_fact"))
    for _ in range(per_kind):
        row = tasks.pop()
        rows.append(Row(row.prompt, cut_answer(row.response, rng), "truncated"))
    for _ in range(per_kind):
        rows.append(Row(tasks.pop().prompt, foreign.pop().response, "other_language"))
    for _ in range(per_kind):
        question, right, wrong = questions.pop()
        rows.append(Row(question, right))
        rows.append(Row(near_duplicate(question, rng), wrong, "contradiction"))
    clean = n - len(rows)
    n_foreign, n_questions = clean // 12, clean // 2
    rows += [foreign.pop() for _ in range(n_foreign)]
    rows += [Row(q, right) for q, right, _ in (questions.pop() for _ in range(n_questions))]
    rows += [tasks.pop() for _ in range(clean - n_foreign - n_questions)]
    rng.shuffle(rows)
    return rows
