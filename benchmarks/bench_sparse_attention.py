"""``sparse_attention``: dense causal SDPA against position-graph attention, selection included.

One layer on the CPU: 9 query heads, 3 key-value heads, head size 64, float32, 2,048 keys a query,
at 32,768 and 131,072 tokens. Inside the timer is all that a forward pass does for the layer:
reading the sequence, building the graph and ranking its blocks (by position) or summarising keys
and scoring them (by content), and the attention itself. The graph is one that knows no text; what
is read from text is timed apart. Each number is the least of the repetitions of one run, dense and
sparse in turn. Memory is the growth of the resident set over the inputs', each arm in a process of
its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from common import parser, record
from memory import MemoryWatch

from hf_glm_curriculum.attention.backends.gather import GatherBackend
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.plan import ForwardPlan
from hf_glm_curriculum.attention.selector import Selector
from hf_glm_curriculum.attention.sequence_state import SequenceState

HEADS, KV_HEADS, SIZE, TOP_K = 9, 3, 64, 2048
ARMS = {
    "position": {"selection": "position"},
    "position, blocks of 256": {"selection": "position", "block_size": 256, "window": 256},
    "content, blocks of 128": {"selection": "content", "block_size": 128, "query_block": 128},
    "content, 64 queries a choice": {"selection": "content", "query_block": 64},
    "content, 16 queries a choice": {"selection": "content", "query_block": 16, "probe": 4},
    "hybrid (defaults)": {},
}
TARGETS = {32_768: 7.0, 131_072: 28.0}


def inputs(length: int, seed: int, gradients: bool = False) -> list[torch.Tensor]:
    """Random query, key and value."""
    torch.manual_seed(seed)
    shapes = [(1, HEADS, length, SIZE), *[(1, KV_HEADS, length, SIZE)] * 2]
    return [torch.randn(shape).requires_grad_(gradients) for shape in shapes]


def dense(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Causal attention over all keys."""
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(*tensors, is_causal=True, enable_gqa=True)


def sparse(arm: str) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """All that one layer costs with a selection."""
    config = PositionGraphConfig(top_k=TOP_K, **ARMS[arm])  # type: ignore[arg-type]

    def attend(tensors: list[torch.Tensor]) -> torch.Tensor:
        length = tensors[0].shape[2]
        state = SequenceState(1)
        state.extend(torch.zeros(1, length, dtype=torch.int64), None, None)
        plan = ForwardPlan(Selector(config), state, length, keep=False)
        problem = plan.problem(0, tensors[0], tensors[1], SIZE**-0.5, 0.0)
        return GatherBackend()(*tensors, problem)

    return attend


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed(length: int, seed: int, repeats: int) -> dict[str, float]:
    """Least seconds of each arm, taken in turn."""
    tensors = inputs(length, seed)
    best: dict[str, float] = {}
    with torch.no_grad():
        for _ in range(repeats):
            for arm in ("dense", *ARMS):
                attend = dense if arm == "dense" else sparse(arm)
                took = seconds(lambda attend=attend: attend(tensors))
                best[arm] = min(took, best.get(arm, took))
    return best


def trained(length: int, seed: int) -> dict[str, float]:
    """Seconds of forward and backward."""
    tensors = inputs(length, seed, gradients=True)
    return {
        arm: seconds(lambda attend=attend: attend(tensors).sum().backward())
        for arm, attend in {"dense": dense, "position": sparse("position")}.items()
    }


def memory(arm: str, length: int, seed: int) -> float:
    """MiB that an arm adds to its inputs, in a process of its own."""
    command = [sys.executable, __file__, "--seed", str(seed), "--arm", arm, "--length", str(length)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure and record."""
    flags = parser(__doc__)
    flags.add_argument("--arm", help="measure one arm's memory in this process")
    flags.add_argument("--length", type=int)
    flags.add_argument("--repeats", type=int, default=2)
    args = flags.parse_args()
    if args.arm:
        tensors = inputs(args.length, args.seed)
        attend = dense if args.arm == "dense" else sparse(args.arm)
        with torch.no_grad():
            attend([x[:, :, :4096] for x in tensors])  # what is only made once
            watch = MemoryWatch()
            attend(tensors)
        sys.stdout.write(json.dumps(watch.highest()["anonymous"]) + "\n")
        return
    rows = []
    for length, target in TARGETS.items():
        best = timed(length, args.seed, args.repeats if length < 100_000 else 1)
        for arm in ARMS:
            ratio = best["dense"] / best[arm]
            checked = {"target": f"≥ {target:g}", "met": ratio >= target}
            rows.append(
                {
                    "measure": f"{length:,} tokens, {arm}: dense / ours",
                    "value": ratio,
                    **(checked if arm.startswith("position") else {}),
                    "note": f"{best['dense']:.1f} s dense, {best[arm]:.2f} s ours",
                }
            )
        sys.stderr.write(f"{length}: {best}\n")
    step = trained(16_384, args.seed)
    rows.append(
        {
            "measure": "16,384 tokens, position, forward and backward: dense / ours",
            "value": step["dense"] / step["position"],
            "note": f"{step['dense']:.1f} s dense, {step['position']:.2f} s ours",
        }
    )
    grown = {length: memory("position", length, args.seed) for length in TARGETS}
    shorter, longer = grown
    rows.append(
        {
            "measure": f"memory over the inputs', {longer:,} / {shorter:,} tokens",
            "value": grown[longer] / grown[shorter],
            "target": "≤ 4.4 (linear)",
            "met": grown[longer] / grown[shorter] <= 4.4,
            "note": f"{grown[shorter]:.0f} and {grown[longer]:.0f} MiB",
        }
    )
    record(
        "sparse_attention",
        rows,
        args.seed,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_size=SIZE,
        keys=TOP_K,
    )


if __name__ == "__main__":
    main()
