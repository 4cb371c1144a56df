"""``ledger_scale``: what a step's bookkeeping costs with 10⁴ … 10⁷ samples known.

Times ``SampleLife.weigh`` and ``SampleLife.absorb`` on batches of 16 random samples (no model:
everything the callback does in a step but the hooks), and counts the ledger's bytes a sample.
The cost should not grow with the number of samples.

The largest size once more, in memory and in files (``ledger_folder``), each in a process of its
own: anonymous memory is what the system cannot take back; pages of the ledger's files count as
resident while they are in use, and the system may write them out at any time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import parser, record
from memory import MemoryWatch

from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.signals.microbatch import Microbatch
from hf_glm_curriculum.storage import save_tensors

BATCH, TOKENS = 16, 32
SIZES = (10**4, 10**5, 10**6, 10**7)
PLACES = ("memory", "files")
CONFIG = LifespanConfig(neighbours="none")


def known_ids(n: int, seed: int) -> np.ndarray:
    """``n`` distinct ids that no real sample has."""
    generator = np.random.default_rng(seed)
    return generator.permutation(n).astype(np.int64) * 7919 + 3


def step(life: SampleLife, rows: np.ndarray, ids: np.ndarray) -> None:
    """Weigh and absorb one batch of known samples."""
    tokens = torch.randint(5, 1000, (BATCH, TOKENS))
    batch = Microbatch.from_inputs(tokens, tokens)
    batch.ids = torch.from_numpy(ids[rows])
    losses = torch.rand(BATCH, TOKENS)
    batch.record_losses(losses, torch.zeros_like(losses))
    batch.weight = life.weigh(batch)
    batch.grad_norm = torch.rand(BATCH)
    batch.embedding = torch.nn.functional.normalize(torch.randn(BATCH, 64), dim=1)
    signals = batch.signals()
    if signals is not None:
        life.absorb([signals])


def steps(life: SampleLife, ids: np.ndarray, repeats: int, seed: int) -> float:
    """Median milliseconds of CPU of steps on random samples; others on the machine do not count."""
    generator = np.random.default_rng(seed)
    # Half of the reference population has been seen, as in the middle of an epoch.
    life.ledger.column("lifetime")[: len(ids) // 2] = 1
    times = []
    for _ in range(repeats):
        rows = generator.integers(0, len(ids), BATCH)
        start = time.process_time()
        step(life, rows, ids)
        times.append(time.process_time() - start)
    life.flush()
    return 1e3 * float(np.median(times))


def measure(n: int, repeats: int, seed: int) -> tuple[float, float]:
    """Median milliseconds of CPU a step and ledger bytes a sample."""
    ids = known_ids(n, seed)
    life = SampleLife(CONFIG, SampleIndex(ids))
    return steps(life, ids, repeats, seed), life.ledger.nbytes / n


# -- memory --------------------------------------------------------------------------------------


def one_process(n: int, place: str, repeats: int, seed: int) -> dict[str, Any]:
    """Make a ledger, step, refresh and save a checkpoint, in this process."""
    ids = known_ids(n, seed)
    steps(SampleLife(CONFIG, SampleIndex(ids[:1000])), ids[:1000], 5, seed)  # warm up
    found: dict[str, Any] = {"place": place}
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "ledger" if place == "files" else None
        watch, start = MemoryWatch(), time.perf_counter()
        life = SampleLife(CONFIG, SampleIndex(ids), folder=files)
        found["making"] = {**watch.highest(), "seconds": time.perf_counter() - start}
        start = time.perf_counter()
        milliseconds = steps(life, ids, repeats, seed)
        found["stepping"] = {**watch.highest(), "ms": milliseconds}
        start = time.perf_counter()
        life.refresh()
        life.summary()
        found["refreshing"] = {**watch.highest(), "seconds": time.perf_counter() - start}
        start = time.perf_counter()
        save_tensors(Path(folder) / "checkpoint.safetensors", life.tensors())
        found["saving"] = {**watch.highest(), "seconds": time.perf_counter() - start}
        life.ledger.close()
    return found


def memory_rows(n: int, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Table lines of the largest ledger in memory and in files."""
    rows = []
    for place in PLACES:
        command = [sys.executable, __file__, "--seed", str(seed), "--place", place]
        command += ["--samples", str(n), "--repeats", str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        name = f"{n:,} samples in {place}"
        rows.append({"measure": f"{name}: ms of CPU a step", "value": found["stepping"]["ms"]})
        for doing in ("making", "stepping", "refreshing", "saving"):
            part = found[doing]
            note = f"{part['resident']:,.0f} MiB resident"
            note += f", {part['seconds']:.1f} s" if "seconds" in part else ""
            measured = f"{name}, {doing}: MiB anonymous, highest"
            rows.append({"measure": measured, "value": part["anonymous"], "note": note})
    return rows


def main() -> None:
    """Measure every size and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--place", choices=PLACES, help="measure memory in this process, as JSON")
    flags.add_argument("--samples", type=int, default=SIZES[-1])
    flags.add_argument("--repeats", type=int, default=60)
    args = flags.parse_args()
    if args.place:
        found = one_process(args.samples, args.place, args.repeats, args.seed)
        sys.stdout.write(json.dumps(found))
        return
    repeats = 200 if args.full else 60
    content_ids(torch.zeros(1, 4, dtype=torch.int64))  # warm up
    found = {n: measure(n, repeats, args.seed) for n in SIZES}
    rows = [
        {
            "measure": f"{n:,} samples: ms of CPU a step",
            "value": ms,
            "note": f"{size:.0f} bytes a sample",
        }
        for n, (ms, size) in found.items()
    ]
    ratio = found[SIZES[-1]][0] / found[SIZES[1]][0]
    rows.append(
        {
            "measure": "10⁷ over 10⁵ samples",
            "value": ratio,
            "target": "≤ 1.5 (flat)",
            "met": ratio <= 1.5,
        }
    )
    rows += memory_rows(SIZES[-1], repeats, args.seed)
    record("ledger_scale", rows, args.seed, batch=BATCH)


if __name__ == "__main__":
    main()
