"""``prefill``: a whole model reads a long prompt, with SDPA and with the position graph.

SmolLM2-135M, float32, on the CPU: the forward pass over 8,192, 16,384 and 32,768 tokens of real
contracts that fills the key-value cache and gives the next token's logits, reading the text, the
graph and all choices included. Every arm and length runs in a process of its own: seconds of the
pass after a short one that warms up, and the highest anonymous memory above the loaded model. Past
8,192 tokens the model is outside its trained length: time and memory are what is measured here,
``beyond_length`` has the quality.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from common import parser, record
from long_context import CONTRACTS, haystack
from memory import MemoryWatch

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.registration import enable_position_graph
from hf_glm_curriculum.models import load_model

ARMS: dict[str, dict[str, Any] | None] = {
    "sdpa": None,
    "hybrid (defaults)": {},
    "content, blocks of 128": {"selection": "content", "block_size": 128, "query_block": 128},
    "position, blocks of 256": {"selection": "position", "block_size": 256, "window": 256},
}
LENGTHS = (8192, 16_384, 32_768)


def prefill(arm: str, length: int, seed: int) -> dict[str, float]:
    """Seconds and MiB of one pass in this process."""
    model, tokenizer = load_model("embedded", dtype=torch.float32)
    settings = ARMS[arm]
    if settings is not None:
        enable_position_graph(model, PositionGraphConfig(**settings), tokenizer)
    ids = haystack(CONTRACTS[0], length, tokenizer, seed).ids
    with torch.no_grad():
        model(ids[:, :4096], use_cache=True, logits_to_keep=1)
        watch = MemoryWatch()
        start = time.perf_counter()
        model(ids, use_cache=True, logits_to_keep=1)
        return {"seconds": time.perf_counter() - start, "mib": watch.highest()["anonymous"]}


def apart(arm: str, length: int, seed: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--seed", str(seed), "--arm", arm, "--length", str(length)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and record."""
    flags = parser(__doc__)
    flags.add_argument("--arm", choices=ARMS, help="measure one arm in this process")
    flags.add_argument("--length", type=int, default=LENGTHS[0])
    args = flags.parse_args()
    if args.arm:
        sys.stdout.write(json.dumps(prefill(args.arm, args.length, args.seed)) + "\n")
        return
    rows = []
    for length in LENGTHS:
        found = {}
        for arm in ARMS:
            found[arm] = apart(arm, length, args.seed)
            sys.stderr.write(f"{length} {arm}: {found[arm]}\n")
        dense = found.pop("sdpa")
        for arm, ours in found.items():
            rows.append(
                {
                    "measure": f"{length:,} tokens, {arm}: SDPA / ours, time; ours / SDPA, memory",
                    "value": f"{dense['seconds'] / ours['seconds']:.2f}, "
                    f"{ours['mib'] / dense['mib']:.2f}",
                    "claim": "memory −63 %" if length == LENGTHS[-1] else "",
                    "note": f"{dense['seconds']:.0f} s and {dense['mib']:.0f} MiB with SDPA, "
                    f"{ours['seconds']:.0f} s and {ours['mib']:.0f} MiB ours",
                }
            )
    record("prefill", rows, args.seed, model="SmolLM2-135M", keys=2048, dtype="float32")


if __name__ == "__main__":
    main()
