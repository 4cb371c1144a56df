"""``audit_scale``: time and memory of ``audit_records`` on a JSONL file with many rows.

Writes a file of rows built from the sentences of the self-instruct and Chinese sets (see
``planted_faults``), with known shares of copies, near copies, empty, copied and cut answers, and
audits it from the path, as the command does. The file and everything made on the way is deleted.
200,000 rows; a million with ``--full``. Memory is what the audit adds to its process.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import parser, record
from memory import MemoryWatch
from planted_faults import chinese, self_instruct

from hf_glm_curriculum.data.audit import audit_records

ROWS, FULL_ROWS = 200_000, 1_000_000
SHARES = {"exact_duplicate": 0.01, "near_duplicate": 0.01, "empty_answer": 0.005,
          "prompt_copied": 0.005, "truncated_answer": 0.005}  # fmt: skip
_END = re.compile(r"(?<=[。！？])|(?<=[.!?])\s+")


def sentences() -> list[list[str]]:
    """Whole sentences, English and Chinese."""
    pools = (self_instruct(most_words=400, least_answer_words=1), chinese(longest=400))
    parts = ({s.strip() for row in rows for s in _END.split(row.response)} for rows in pools)
    return [sorted(s for s in pool if len(s) > 10 and s[-1] in ".!?。！？") for pool in parts]


def generated(count: int, seed: int) -> Iterator[dict[str, str]]:
    """Rows of an instruction data set; each faulty one is built on a row before it or its own."""
    rng = random.Random(seed)
    pools = sentences()
    recent: list[dict[str, str]] = []
    for number in range(count):
        pool = rng.choice(pools)
        blank = " " if pool is pools[0] else ""
        row = {
            "prompt": f"{rng.choice(pool)}{blank}({number:x}) {rng.choice(pool)}",
            "response": blank.join(rng.choices(pool, k=rng.randint(1, 6))),
        }
        fault = rng.choices([*SHARES, None], [*SHARES.values(), 1 - sum(SHARES.values())])[0]
        row = with_fault(row, fault, rng.choice(recent) if recent else row)
        if fault is None:
            recent = [*recent[-99:], row]
        yield row


def with_fault(row: dict[str, str], fault: str | None, other: dict[str, str]) -> dict[str, str]:
    """A row with one of the planted faults."""
    if fault == "exact_duplicate":
        return other
    if fault == "near_duplicate":
        return {**other, "response": f"{other['response']} Ok."}
    if fault == "empty_answer":
        return {**row, "response": " "}
    if fault == "prompt_copied":
        return {**row, "response": row["prompt"]}
    if fault == "truncated_answer":
        return {**row, "response": f"{row['response']} It is because of the"}
    return row


def measure(count: int, seed: int) -> list[dict[str, Any]]:
    """Table lines of one audit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for row in generated(count, seed):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        audit_records([{"prompt": "a", "response": "b"}])  # warm up
        watch, start, used = MemoryWatch(), time.perf_counter(), time.process_time()
        audit = audit_records(path)
        seconds, busy = time.perf_counter() - start, time.process_time() - used
        memory = watch.highest()
        size = path.stat().st_size
    planted = {kind: round(share * count) for kind, share in SHARES.items()}
    found = ", ".join(
        f"{audit.counts.get(k, 0):,} {k} (~{n:,} planted)" for k, n in planted.items()
    )
    name = f"{count:,} rows"
    return [
        {"measure": f"{name}: seconds", "value": seconds, "note": f"{busy:.0f} s of CPU"},
        {
            "measure": f"{name}: MiB anonymous, highest",
            "value": memory["anonymous"],
            "note": f"{memory['resident']:,.0f} MiB resident; the file has {size / 2**20:,.0f} MiB",
        },
        {"measure": f"{name}: findings", "value": len(audit.issues), "note": found},
    ]


def main() -> None:
    """Measure one size, or two of them, and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, help="this many rows; the table is printed only")
    args = flags.parse_args()
    if args.rows:
        for row in measure(args.rows, args.seed):
            print(row)
        return
    sizes = (ROWS, FULL_ROWS) if args.full else (ROWS,)
    rows = [row for size in sizes for row in measure(size, args.seed)]
    record("audit_scale", rows, args.seed, rows=sizes[-1])


if __name__ == "__main__":
    main()
