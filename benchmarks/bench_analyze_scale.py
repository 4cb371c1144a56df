"""``analyze_scale``: reading a large set of instructions, as ``analyze`` does.

Instructions of about 50 characters, half of them English and half Chinese, drawn from the demo
data and numbered so that no two are the same. Timed is all that ``analyze`` reads off them
(entropies, verbs, languages, templates) and the analysis, without loading the file; one process,
and as many as there are processors.
"""

from __future__ import annotations

import os
import time

from common import parser, record

from hf_glm_curriculum.curriculum.analysis import analyse
from hf_glm_curriculum.curriculum.readings import read_instructions
from hf_glm_curriculum.data.demo import demo_instructions


def instructions(count: int, seed: int) -> list[str]:
    """Different instructions in two languages."""
    rows = [row["prompt"] for row in demo_instructions(2000, seed, fault_share=0.0)]
    return [f"{rows[place % len(rows)]} ({place})" for place in range(count)]


def main() -> None:
    """Measure and record."""
    flags = parser(__doc__)
    flags.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    args = flags.parse_args()
    lines, jobs = [], os.cpu_count() or 1
    for count in args.rows:
        texts = instructions(count, args.seed)
        for processes in sorted({1, jobs} if count <= 100_000 else {jobs}):
            start = time.perf_counter()
            readings = read_instructions(texts, jobs=processes, show_progress=False)
            analyse(texts, readings)
            took = time.perf_counter() - start
            million = count >= 1_000_000
            lines.append(
                {
                    "measure": f"{count:,} rows, processes {processes}: seconds",
                    "value": took,
                    "note": f"{1e6 * took / count:.0f} µs a row, "
                    f"{sum(map(len, texts)) / count:.0f} characters each",
                    **({"target": "minutes", "met": took < 600} if million else {}),
                }
            )
    record("analyze_scale", lines, args.seed, rows=", ".join(f"{n:,}" for n in args.rows))


if __name__ == "__main__":
    main()
