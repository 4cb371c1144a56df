"""``linear_cross_entropy``: chunked head and loss against logits kept, memory and time.

Forward and backward of the mean loss over N tokens (hidden size 576, as SmolLM2-135M has; float32)
at vocabularies of 49,152 and 151,936. Each cell is a process of its own: its peak resident memory
less what it held before the loss and less both gradients, which either path has to make. Times are
CPU seconds of the process, all threads. Values and gradients of the two paths are compared on 400
tokens, which take several chunks.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from common import parser, record
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_glm_curriculum.kernels.linear_cross_entropy import summed_cross_entropy

HIDDEN = 576
VOCABULARIES = (49_152, 151_936)
CHECKED = 400
MIB = 2**20


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """All logits at once, as a model's forward and its loss function make them."""
    return cross_entropy((hidden @ weight.t()).float(), labels)


def chunked(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """This library's."""
    return summed_cross_entropy(hidden, weight, labels, denominator=len(labels))


PATHS = {"plain": plain, "chunked": chunked}


def inputs(tokens: int, vocabulary: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [N, H], head [V, H] and labels [N]."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, HIDDEN, generator=generator).requires_grad_()
    weight = torch.empty(vocabulary, HIDDEN)
    weight.normal_(std=0.04, generator=generator).requires_grad_()
    return hidden, weight, torch.randint(0, vocabulary, (tokens,), generator=generator)


def largest_difference(vocabulary: int, seed: int) -> float:
    """Of values and gradients between both paths, relative to the largest entry."""
    found = []
    for path in PATHS.values():
        hidden, weight, labels = inputs(CHECKED, vocabulary, seed)
        loss = path(hidden, weight, labels)
        loss.backward()
        found.append((loss.detach(), hidden.grad, weight.grad))
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*found, strict=True))


def peak() -> int:
    """Peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    """Resident bytes of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def measure(path: str, tokens: int, vocabulary: int, repeats: int, seed: int) -> None:
    """One cell, in a process of its own: peak bytes above the start, and CPU seconds."""
    hidden, weight, labels = inputs(tokens, vocabulary, seed)
    PATHS[path](hidden[:2], weight, labels[:2]).backward()  # libraries' own buffers
    hidden.grad = weight.grad = None
    before, times = resident(), []
    for _ in range(repeats):
        hidden.grad = weight.grad = None
        start = time.process_time()
        PATHS[path](hidden, weight, labels).backward()
        times.append(time.process_time() - start)
    gradients = 4 * HIDDEN * (tokens + vocabulary)
    found = {"bytes": peak() - before - gradients, "seconds": statistics.median(times)}
    print(json.dumps(found))


def cell(path: str, tokens: int, vocabulary: int, repeats: int, seed: int) -> dict[str, float]:
    """Run :func:`measure` in a fresh process."""
    arguments = [path, tokens, vocabulary, repeats, seed]
    command = [sys.executable, __file__, "--cell", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def rows_of(found: dict[tuple[str, int, int], dict[str, float]], lengths: list[int]) -> list[dict]:
    """Table lines: memory and time of every cell, and the ratios the design asks for."""
    rows = []
    for vocabulary in VOCABULARIES:
        for tokens in lengths:
            ours, theirs = (found[path, tokens, vocabulary] for path in ("chunked", "plain"))
            shared = {
                "note": f"plain {theirs['bytes'] / MIB:,.0f} MiB, {theirs['seconds']:.2f} CPU s"
            }
            rows.append(
                {
                    "measure": f"V {vocabulary:,}, {tokens:,} tokens: MiB beyond both gradients",
                    "value": f"{ours['bytes'] / MIB:,.0f}",
                    **shared,
                }
            )
            rows.append(
                {
                    "measure": f"V {vocabulary:,}, {tokens:,} tokens: CPU time over plain",
                    "value": ours["seconds"] / theirs["seconds"],
                    "note": f"{ours['seconds']:.2f} CPU s",
                }
            )
    sizes = [found["chunked", n, v]["bytes"] for n in lengths for v in VOCABULARIES]
    growth = max(sizes) / min(sizes)
    product = lengths[-1] * VOCABULARIES[-1] / (lengths[0] * VOCABULARIES[0])
    rows.append(
        {
            "measure": f"largest over smallest peak (vocabulary × length × {product:.0f})",
            "value": growth,
            "target": "≤ 1.5 (independent)",
            "met": growth <= 1.5,
        }
    )
    return rows


def main() -> None:
    """Measure every cell and record the table."""
    flags = parser(__doc__)
    flags.add_argument("--cell", nargs=5, help="for the processes that this one starts")
    args = flags.parse_args()
    if args.cell:
        path, *numbers = args.cell
        return measure(path, *map(int, numbers))
    lengths = [1024, 2048, 4096] if args.full else [512, 2048]
    repeats = 5 if args.full else 2
    found = {
        (path, tokens, vocabulary): cell(path, tokens, vocabulary, repeats, args.seed)
        for vocabulary in VOCABULARIES
        for tokens in lengths
        for path in PATHS
    }
    difference = max(largest_difference(v, args.seed) for v in VOCABULARIES)
    rows = rows_of(found, lengths)
    rows.append(
        {
            "measure": "largest relative difference of values and gradients",
            "value": difference,
            "target": "≤ 1e-5",
            "met": difference <= 1e-5,
        }
    )
    record("linear_cross_entropy", rows, args.seed, hidden=HIDDEN, tokens=lengths, repeats=repeats)


if __name__ == "__main__":
    main()
