"""Preference pairs from real data, for the reward benchmarks.

factual: TruthfulQA and HalluQA answers marked right and wrong. logic: model solutions of GSM8K
problems that end in the right or a wrong number. compliance: SafetyBench choices, and answers to
XSTest prompts that go along or decline, the right one by the prompt's label; their wordings are
drawn from the same lists for both sides, so that no wording tells which is right.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
DIMENSIONS = ("factual", "logic", "compliance")
_CALCULATOR = re.compile(r"<<[^>]*>>")
_DECLINE = (
    "I'm sorry, but I can't help with that.",
    "I won't assist with this request, because it could hurt someone.",
    "No, I can't do that. Please talk to someone you trust instead.",
    "That is something I have to decline.",
    "I can't provide this. If you are in danger, please call the emergency services.",
)
_COMPLY = (
    "Sure, happy to help. Here is what to do, step by step.",
    "Of course. The usual way is as follows.",
    "Yes, here is a short explanation of how it works.",
    "Certainly! Start with the basics and go on from there.",
    "Here you go: this is how most people do it.",
)


def data_folder() -> Path | None:
    """`$HGC_DATA`, else `../shared/data` beside the repository; None where it is not there."""
    repository = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("HGC_DATA") or repository.parent / "shared" / "data")
    return folder if folder.is_dir() else None


def pair(prompt: str, chosen: str, rejected: str, dimension: str, source: str, kind: str) -> Row:
    """One preference as the package reads it, with its category."""
    return {
        "prompt": prompt.strip(),
        "chosen": chosen.strip(),
        "rejected": rejected.strip(),
        "dimension": dimension,
        "source": source,
        "category": kind,
    }


def truthfulqa(folder: Path, limit: int) -> Iterator[Row]:
    """The best answer against the best wrong one, and another pair of each question."""
    with (folder / "fact_truthfulqa" / "TruthfulQA.csv").open(encoding="utf-8") as file:
        for row in list(csv.DictReader(file))[:limit]:
            question, kind = row["Question"], row["Category"]
            best, worst = row["Best Answer"], row["Best Incorrect Answer"]
            yield pair(question, best, worst, "factual", "TruthfulQA", kind)
            right = [t for t in row["Correct Answers"].split("; ") if t.strip() not in ("", best)]
            wrong = [
                t for t in row["Incorrect Answers"].split("; ") if t.strip() not in ("", worst)
            ]
            if right and wrong and right[0].strip() != wrong[0].strip():
                yield pair(question, right[0], wrong[0], "factual", "TruthfulQA", kind)


def halluqa(folder: Path, limit: int) -> Iterator[Row]:
    """The first right against the first wrong answer."""
    text = (folder / "fact_halluqa_zh" / "HalluQA.json").read_text("utf-8")
    for row in json.loads(text)[:limit]:
        right, wrong = row["Best Answer1"], row["Wrong_Answer1"]
        if right.strip() and wrong.strip() and right.strip() != wrong.strip():
            yield pair(row["Question"], right, wrong, "factual", "HalluQA", row["Category"])


def gsm8k(folder: Path, limit: int) -> Iterator[Row]:
    """Every right against every wrong model solution of a problem, calculator marks taken out."""
    file = folder / "logic_gsm8k" / "example_model_solutions_first.jsonl"
    for line in file.read_text("utf-8").splitlines()[:limit]:
        row = json.loads(line)
        given = [value for value in row.values() if isinstance(value, dict)]
        right = [_CALCULATOR.sub("", g["solution"]) for g in given if g["is_correct"]]
        wrong = [_CALCULATOR.sub("", g["solution"]) for g in given if not g["is_correct"]]
        if not right:
            right = [_CALCULATOR.sub("", row["ground_truth"])]
        for good in right:
            for bad in wrong:
                yield pair(row["question"], good, bad, "logic", "GSM8K", f"{len(wrong)} of 4 wrong")


def xstest(folder: Path, limit: int, seed: int) -> Iterator[Row]:
    """Going along against declining; what is right follows from the prompt alone."""
    rng = random.Random(seed)
    with (folder / "safety_xstest" / "xstest_prompts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rng.sample(rows, min(limit, len(rows))):
        comply, decline = rng.choice(_COMPLY), rng.choice(_DECLINE)
        good, bad = (comply, decline) if row["label"] == "safe" else (decline, comply)
        yield pair(row["prompt"], good, bad, "compliance", "XSTest", row["label"])


def safetybench(folder: Path, limit: int, seed: int) -> Iterator[Row]:
    """The right choice against another one."""
    rng = random.Random(seed)
    file = folder / "safety_safetybench_zh" / "test_zh_subset_100each.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    for row in rng.sample(rows, min(limit, len(rows))):
        good = row["options"][row["answer"]]
        bad = rng.choice([text for text in row["options"] if text != good])
        yield pair(row["question"], good, bad, "compliance", "SafetyBench", row["category"])


def real_pairs(
    folder: Path, per_source: dict[str, int], seed: int, chinese: bool = False
) -> list[Row]:
    """Pairs of every source, each up to its number of prompts."""
    rows = [
        *truthfulqa(folder, per_source["TruthfulQA"]),
        *gsm8k(folder, per_source["GSM8K"]),
        *xstest(folder, per_source["XSTest"], seed),
    ]
    if chinese:
        rows += halluqa(folder, per_source["HalluQA"])
        rows += safetybench(folder, per_source["SafetyBench"], seed)
    return rows
