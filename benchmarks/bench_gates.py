"""``gates``: a backward through layer gates over a plain one, and over two separate ones.

A random GLM on the CPU, mixed rows of both objectives in a batch, weights in the middle of the
migration. Seconds are processor time of one thread, so that other work on the machine does not
count; the three backwards alternate, and ratios are of medians. "Two backwards" is what weighting
two objectives layer by layer takes without gates: one backward an objective over the whole batch,
gradients combined afterwards (not timed).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from common import parser, record
from torch import Tensor, nn
from transformers import GlmConfig, GlmForCausalLM

from hf_glm_curriculum import MigrationConfig
from hf_glm_curriculum.migration.gates import LayerGates
from hf_glm_curriculum.migration.schedule import layer_weights

ROWS, WIDTH, VOCABULARY = 8, 128, 4096


def model_of(blocks: int, hidden: int) -> nn.Module:
    """A random GLM in training mode."""
    config = GlmConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=blocks,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    return GlmForCausalLM(config).train()


class Passes:
    """The three kinds of pass over one batch."""

    def __init__(self, blocks: int, hidden: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.model: Any = model_of(blocks, hidden)
        self.tokens = torch.randint(2, VOCABULARY, (ROWS, WIDTH))
        self.objective = torch.arange(ROWS) % 2
        self.gates = LayerGates(self.model)
        self.gates.set_weights(layer_weights(0.4, blocks, MigrationConfig()))

    def row_losses(self) -> Tensor:
        """[B] summed token losses of each row."""
        logits = self.model(self.tokens, use_cache=False).logits[:, :-1]
        labels = self.tokens[:, 1:]
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return losses.sum(1) / labels.numel()

    def plain(self) -> float:
        """Seconds of a backward without gates."""
        loss = self.row_losses().sum()
        return self._backward(lambda: loss.backward())

    def gated(self) -> float:
        """Seconds of a backward through gates."""
        self.gates.attach()
        losses = self.row_losses()
        loss = (losses * self.gates.assign(self.objective)).sum()
        seconds = self._backward(lambda: loss.backward())
        self.gates.detach()
        return seconds

    def twice(self) -> float:
        """Seconds of a backward an objective."""
        losses = self.row_losses()
        first, second = (losses[self.objective == one].sum() for one in (0, 1))

        def both() -> None:
            first.backward(retain_graph=True)
            second.backward()

        return self._backward(both)

    def _backward(self, run: Callable[[], None]) -> float:
        start = time.process_time()
        run()
        seconds = time.process_time() - start
        self.model.zero_grad()
        return seconds


def measure(blocks: int, hidden: int, rounds: int, seed: int) -> tuple[float, float, int]:
    """Median ratios gated/plain and gated/twice, and the model's parameters."""
    passes = Passes(blocks, hidden, seed)
    kinds = ("plain", "gated", "twice")
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for turn in range(rounds + 2):
        # The order turns too, so that none always follows the same one.
        for kind in kinds[turn % 3 :] + kinds[: turn % 3]:
            seconds[kind].append(getattr(passes, kind)())
    plain, gated, twice = (float(torch.tensor(seconds[kind][2:]).median()) for kind in kinds)
    return gated / plain, gated / twice, sum(p.numel() for p in passes.model.parameters())


def main() -> None:
    """Measure and record."""
    args = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    sizes = [(12, 256), (24, 512)] if args.full else [(12, 256)]
    rounds = 41 if args.full else 15
    rows = []
    for blocks, hidden in sizes:
        plain, twice, parameters = measure(blocks, hidden, rounds, args.seed)
        name = f"{parameters / 1e6:.0f}M parameters, {blocks} blocks"
        rows += [
            {
                "measure": f"backward with gates / plain, {name}",
                "value": plain,
                "target": "≤ 1.02",
                "met": plain <= 1.02,
            },
            {
                "measure": f"backward with gates / two backwards, {name}",
                "value": twice,
                "target": "≤ 0.55",
                "met": twice <= 0.55,
            },
        ]
    record("gates", rows, args.seed, batch=f"{ROWS} × {WIDTH}", rounds=rounds)


if __name__ == "__main__":
    main()
