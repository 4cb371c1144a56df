"""``minhash_table``: signatures of every position's window, by sliding minimum and by datasketch.

One million positions, window 128, 128 permutations, both schemes of datasketch. datasketch updates
one signature a position with 257 numbers; it is timed on a few hundred positions spread over the
sequence, whose signatures are compared bit by bit. Memory is what the table adds to its process,
the result itself among it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from common import parser, record
from datasketch import MinHash
from memory import MemoryWatch

from hf_glm_curriculum.attention.encoders import minhash_signatures

POSITIONS, WINDOW, PERMUTATIONS = 1_000_000, 128, 128
SECONDS, MEBIBYTES, FASTER = 10.0, 1024.0, 500.0


def by_datasketch(places: np.ndarray, seed: int, scheme: str) -> tuple[np.ndarray, float]:
    """Signatures of some positions → (uint [places, permutations], seconds a position)."""
    found = []
    start = time.perf_counter()
    for place in places.tolist():
        sketch = MinHash(num_perm=PERMUTATIONS, seed=seed, scheme=scheme)
        for near in range(max(0, place - WINDOW), min(POSITIONS, place + WINDOW + 1)):
            sketch.update(str(near).encode("utf8"))
        found.append(sketch.hashvalues)
    return np.array(found), (time.perf_counter() - start) / len(places)


def measure(scheme: str, places: int, seed: int) -> list[dict[str, Any]]:
    """Table lines of one scheme."""
    chosen = np.linspace(0, POSITIONS - 1, places).astype(int)
    expected, slow = by_datasketch(chosen, seed, scheme)
    minhash_signatures(10_000, WINDOW, PERMUTATIONS, seed, scheme)  # warm up
    watch, start = MemoryWatch(), time.perf_counter()
    found = minhash_signatures(POSITIONS, WINDOW, PERMUTATIONS, seed, scheme)
    seconds = time.perf_counter() - start
    memory = watch.highest()["anonymous"]
    equal = int((found[chosen] == expected).all(1).sum())
    ratio = slow * POSITIONS / seconds
    return [
        {
            "measure": f"{scheme}: seconds for {POSITIONS:,} positions",
            "value": seconds,
            "target": f"≤ {SECONDS:g}",
            "met": seconds <= SECONDS,
        },
        {
            "measure": f"{scheme}: MiB anonymous, highest",
            "value": memory,
            "target": f"≤ {MEBIBYTES:g}",
            "met": memory <= MEBIBYTES,
            "note": f"{found.nbytes / 2**20:,.0f} MiB of them are the table",
            "claim": "about 12 GB",
        },
        {
            "measure": f"{scheme}: times datasketch's speed",
            "value": ratio,
            "target": f"≥ {FASTER:g}",
            "met": ratio >= FASTER,
            "note": f"datasketch: {1000 * slow:.2f} ms a position on {places}",
        },
        {
            "measure": f"{scheme}: positions bit-equal to datasketch",
            "value": equal,
            "target": f"{places} of {places}",
            "met": equal == places,
        },
    ]


def main() -> None:
    """Measure both schemes and record the table."""
    args = parser(__doc__, seed=1).parse_args()
    places = 1000 if args.full else 300
    rows = [row for scheme in ("legacy", "affine32") for row in measure(scheme, places, args.seed)]
    record(
        "minhash_table", rows, args.seed,
        positions=POSITIONS, window=WINDOW, num_perm=PERMUTATIONS,
    )  # fmt: skip


if __name__ == "__main__":
    main()
