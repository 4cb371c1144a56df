"""``truncation``: how many cut answers the audit's rule finds, and how many whole ones it accuses.

One row in ten of each data set (at least 20) gets its answer cut after 40 to 70 % of its words
(``planted_faults.cut_answer``: the last stop goes too); answers of fewer than 4 words or 8
characters are left alone. Precision and recall of ``truncated_answer`` over five choices of rows,
twenty with ``--full``. Rows are drawn from: self-instruct and the Chinese set, which the rule was
written on, and TruthfulQA, HalluQA and GSM8K, which it was not.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator
from typing import Any

from common import parser, record
from planted_faults import Row, cut_answer, data_folder

from hf_glm_curriculum.data.audit import audit_records
from hf_glm_curriculum.data.records import load_records

WRITTEN_ON = ("instruct_self_instruct", "instruct_zh_supplement")
HELD_OUT = ("fact_truthfulqa", "fact_halluqa_zh", "logic_gsm8k")


def rows_of(name: str) -> list[Row]:
    """Prompt and answer of every row of a data set; its own truncated answers, if any, stay."""
    folder = data_folder() / name
    if name == "fact_truthfulqa":
        with (folder / "TruthfulQA.csv").open(newline="", encoding="utf-8") as file:
            return [Row(r["Question"], r["Best Answer"]) for r in csv.DictReader(file)]
    if name == "fact_halluqa_zh":
        found = json.loads((folder / "HalluQA.json").read_text("utf-8"))
        return [Row(r["Question"], r["Best Answer1"]) for r in found]
    if name == "logic_gsm8k":
        lines = (folder / "test.jsonl").read_text("utf-8").splitlines()
        return [Row(r["question"], r["answer"]) for r in map(json.loads, lines)]
    return [Row(r["prompt"], r["response"]) for r in load_records(folder).to_list()]


def long_enough(answer: str) -> bool:
    """Whether something is missing once an answer is cut."""
    return len(answer.split()) >= 4 or (not answer.isascii() and len(answer) >= 8)


def planted(rows: list[Row], seed: int) -> tuple[list[dict[str, str]], set[int]]:
    """The rows as records, some of them cut, and which."""
    rng = random.Random(seed)
    whole = [i for i, row in enumerate(rows) if long_enough(row.response)]
    cut = set(rng.sample(whole, min(len(whole), max(20, len(rows) // 10))))
    answers = [
        cut_answer(row.response, rng) if i in cut else row.response for i, row in enumerate(rows)
    ]
    return [
        {"prompt": row.prompt, "response": answer}
        for row, answer in zip(rows, answers, strict=True)
    ], cut


def counts(rows: list[Row], seeds: range) -> tuple[int, int, int]:
    """Cut answers, those of them that were found, and whole answers that were accused."""
    planted_number = found = accused = 0
    for seed in seeds:
        records, cut = planted(rows, seed)
        flagged = set(audit_records(records).flagged("truncated_answer"))
        planted_number += len(cut)
        found += len(flagged & cut)
        accused += len(flagged - cut)
    return planted_number, found, accused


def table(names: tuple[str, ...], note: str, seeds: range) -> Iterator[dict[str, Any]]:
    """Table lines of some data sets."""
    for name in names:
        rows = rows_of(name)
        cut, found, accused = counts(rows, seeds)
        detail = f"{found:,} of {cut:,} cut, {accused:,} of {len(rows) * len(seeds) - cut:,} whole"
        yield {"measure": f"{name}: recall", "value": found / cut, "note": f"{detail}; {note}"}
        precision = found / (found + accused) if found else 0.0
        yield {"measure": f"{name}: precision", "value": precision}


def main() -> None:
    """Measure every data set and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--show", action="store_true", help="print the table, record nothing")
    args = flags.parse_args()
    seeds = range(args.seed, args.seed + (20 if args.full else 5))
    rows = [*table(WRITTEN_ON, "written on", seeds), *table(HELD_OUT, "held out", seeds)]
    if args.show:
        for row in rows:
            print(f"{row['value']:.3f}  {row['measure']}  {row.get('note', '')}")
        return
    record("truncation", rows, args.seed, seeds=len(seeds))


if __name__ == "__main__":
    main()
