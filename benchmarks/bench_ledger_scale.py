"""``ledger_scale``: what a step's bookkeeping costs with 10⁴ … 10⁷ samples known.

Times ``SampleLife.weigh`` and ``SampleLife.absorb`` on batches of 16 random samples (no model:
everything the callback does in a step but the hooks), and counts the ledger's bytes a sample.
The cost should not grow with the number of samples.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from common import parser, record

from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.signals.microbatch import Microbatch

BATCH, TOKENS = 16, 32


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


def measure(n: int, repeats: int, seed: int) -> tuple[float, float]:
    """Median milliseconds a step and ledger bytes a sample."""
    ids = known_ids(n, seed)
    life = SampleLife(LifespanConfig(neighbours="none"), SampleIndex(ids))
    generator = np.random.default_rng(seed)
    # Half of the reference population has been seen, as in the middle of an epoch.
    life.ledger.column("lifetime")[: n // 2] = 1
    times = []
    for _ in range(repeats):
        rows = generator.integers(0, n, BATCH)
        start = time.perf_counter()
        step(life, rows, ids)
        times.append(time.perf_counter() - start)
    life.flush()
    return 1e3 * float(np.median(times)), life.ledger.nbytes / n


def main() -> None:
    """Measure every size and record the table."""
    args = parser(__doc__).parse_args()
    sizes = (10**4, 10**5, 10**6, 10**7)
    content_ids(torch.zeros(1, 4, dtype=torch.int64))  # warm up
    found = {n: measure(n, 200 if args.full else 60, args.seed) for n in sizes}
    rows = [
        {"measure": f"{n:,} samples: ms a step", "value": ms, "note": f"{size:.0f} bytes a sample"}
        for n, (ms, size) in found.items()
    ]
    ratio = found[sizes[-1]][0] / found[sizes[1]][0]
    rows.append(
        {
            "measure": "10⁷ over 10⁵ samples",
            "value": ratio,
            "target": "≤ 1.5 (flat)",
            "met": ratio <= 1.5,
        }
    )
    record("ledger_scale", rows, args.seed, batch=BATCH)


if __name__ == "__main__":
    main()
