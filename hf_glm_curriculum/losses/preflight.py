"""A new term is looked at before it joins: ten batches without gradients.

Refused are terms that raise, that return NaN or infinity, whose weighted size is more than a
hundred times the running total's, or whose gradient does not reach the model's token embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.losses.context import LossContext
from hf_glm_curriculum.losses.term_table import TermEntry
from hf_glm_curriculum.losses.values import SampleWeights, term_value

PREFLIGHT_BATCHES = 10
"""Micro-batches a new term is evaluated on before it joins."""

LARGEST_RATIO = 100.0
"""How many times the running total a new term's weighted size may be."""


@dataclass
class Candidate:
    """A term on its way in."""

    name: str
    entry: TermEntry
    force: bool = False
    batches: int = 0
    failure: str = ""
    """What the term raised, on this rank."""
    _sums: list[Tensor] = field(default_factory=list)
    _reaches: bool = True

    def look(self, context: LossContext) -> None:
        """Evaluate the term on one micro-batch, without gradients, and note what it says."""
        self.batches += 1
        if self.failure:
            return
        try:
            if self.batches == 1:
                self._reaches = self._finds_embedding(context)
            with torch.no_grad():
                value = term_value(self.name, self.entry.term, self.entry.largest_weight, context)
                labelled = SampleWeights.ones(context).labelled
                self._sums.append(torch.stack([value.total(labelled), labelled.sum().float()]))
        except Exception as error:
            # A user's function may raise anything; the run it would have joined goes on.
            self.failure = " ".join(f"{type(error).__name__}: {error}".split())

    def verdict(self, running: Tensor | None, add_up: Callable[[Tensor], Any] | None) -> str:
        """Why the term is refused, or "" if it may join; the same on every rank.

        Args:
            running: [2] running sums of the composite's loss and of its label tokens.
            add_up: sums a tensor over all ranks in place; None on one process.
        """
        device = self._sums[0].device if self._sums else torch.device("cpu")
        if running is not None:
            device = running.device
        sums = torch.stack(self._sums) if self._sums else torch.zeros(1, 2, device=device)
        own = torch.nan_to_num(sums.float().sum(0), 0.0, 0.0, 0.0)
        bad = (~torch.isfinite(sums[:, 0])).sum().float()
        total = torch.zeros(2, device=device) if running is None else running
        flags = torch.tensor([float(bool(self.failure)), float(not self._reaches)], device=device)
        table = torch.cat([own.to(device), bad.view(1).to(device), flags, total.float()])
        if add_up is not None:
            add_up(table)
        return self._judged(table.tolist())

    def _judged(self, found: list[float]) -> str:
        size, tokens, bad, failed, unreached, total, total_tokens = found
        if failed:
            return f"it raised {self.failure or 'an error on another rank'}"
        if self.force:
            return ""
        if unreached:
            return (
                "its gradient does not reach the trained model's token embedding: it must be "
                "computed from this forward pass's logits or hidden states"
            )
        if bad:
            return f"it returned NaN or infinity on {bad:.0f} of its batches"
        ours = abs(size) / max(tokens, 1.0) * self.entry.largest_weight
        running = abs(total) / max(total_tokens, 1.0)
        if running > 0 and ours > LARGEST_RATIO * running:
            return (
                f"its weighted size {ours:.4g} is {ours / running:.0f} times the running total "
                f"{running:.4g}; a weight below "
                f"{self.entry.largest_weight * LARGEST_RATIO * running / ours:.3g} would pass, "
                "force=True takes it as it is"
            )
        return ""

    def _finds_embedding(self, context: LossContext) -> bool:
        with torch.enable_grad():
            value = term_value(self.name, self.entry.term, 1.0, context)
        return reaches_embedding(value.loss, context)


def reaches_embedding(loss: Tensor, context: LossContext) -> bool:
    """Whether a loss's graph leads to the token embedding of the model that is trained.

    Where the embedding is frozen (LoRA), it is enough to lead to the last hidden states or logits
    that were made from it.
    """
    marks = _marks(context)
    if not marks:
        return True  # used alone, there is no model to look for
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if node in marks or id(getattr(node, "variable", None)) in marks:
            return True
        seen.add(node)
        stack += [following for following, _ in node.next_functions]
    return False


def _marks(context: LossContext) -> set[Any]:
    """Graph nodes and parameters' identities that tell the embedding was passed through."""
    found: set[Any] = set()
    if context.has("model"):
        model: Any = context.model
        weight = model.get_input_embeddings().weight
        if weight.requires_grad and not _is_tied(model):
            return {id(weight)}
    for name in ("hidden_states", "logits"):
        if context.has(name):
            found.add(getattr(context, name).grad_fn)
    return found - {None}


def _is_tied(model: Any) -> bool:
    """A tied head reaches the embedding's weight without passing through the embedding."""
    head = model.get_output_embeddings()
    return head is not None and head.weight is model.get_input_embeddings().weight
