"""From terms to one tensor of token losses.

Shape letters: B rows, T positions, K terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.losses.context import OWN, LossContext
from hf_glm_curriculum.losses.terms import FunctionTerm


@dataclass
class TermValue:
    """What a term says of one micro-batch."""

    name: str
    weight: float
    loss: Tensor
    """[B, T] token losses, 0 where the term has no label; or a 0-dim mean over label tokens."""
    own: bool
    """Whether losses stand at their label's own position rather than at the predicting one."""

    def contribution(self, weights: SampleWeights) -> Tensor:
        """[B, T] weighted losses at predicting positions; their sum over N is the term's share."""
        if self.loss.dim() == 0:
            # A mean speaks for every label token alike, so that accumulation changes nothing.
            return self.weight * self.loss * weights.labelled
        if not self.own:
            return self.weight * (self.loss * weights.next)
        loss = self.loss * weights.own
        # No position predicts a row's first token: where the host sums predictions, it is left out.
        return self.weight * (
            functional.pad(loss[:, 1:], (0, 1)) if weights.by_prediction else loss
        )

    def total(self, labelled: Tensor) -> Tensor:
        """0-dim, detached: sum over label tokens, neither term nor sample weights applied."""
        loss = self.loss.detach()
        return (loss * labelled.sum() if loss.dim() == 0 else loss.sum()).float()


@dataclass
class SampleWeights:
    """Weights of samples, position by position."""

    next: Tensor
    """[B, T] weight of the sample whose label the position predicts; 0 without label."""
    own: Tensor
    """[B, T] weight of the sample that the position belongs to."""
    labelled: Tensor
    """[B, T] 1 where the position predicts a label, else 0."""
    by_prediction: bool = True
    """Whether the host takes losses at predicting positions only."""

    @classmethod
    def ones(cls, context: LossContext) -> SampleWeights:
        """All samples alike."""
        labelled = (context.targets >= 0).float()
        return cls(labelled, torch.ones_like(labelled), labelled, by_prediction=False)


def term_value(name: str, term: FunctionTerm, weight: float, context: LossContext) -> TermValue:
    """Ask a term and check the form of its answer.

    Raises:
        ConfigError: if the answer is neither [B, T] nor 0-dim; the term is named.
        IncompatibleError: if the term reads what the host does not give.
    """
    context.term = name
    found: Any = term(context)
    shape = tuple(context.labels.shape)
    if not isinstance(found, Tensor):
        raise ConfigError(f"term {name!r}: must return a tensor, got {type(found).__name__}.")
    own = term.alignment == OWN
    if found.dim() == 0:
        return TermValue(name, weight, found, own)
    if not own and tuple(found.shape) == (shape[0], shape[1] - 1):
        found = functional.pad(found, (0, 1))
    if tuple(found.shape) != shape:
        raise ConfigError(
            f"term {name!r}: must return token losses of shape {shape} or a mean of shape (), got "
            f"{tuple(found.shape)}."
        )
    targets = getattr(term, "targets", None)
    labels = context.targets_of(term.alignment) if targets is None else targets(context)
    used = (labels >= 0).to(found.device)
    return TermValue(name, weight, torch.where(used, found, 0.0), own)


def gradient_norms(
    values: list[TermValue], weights: SampleWeights, anchor: Tensor | None
) -> Tensor | None:
    """[K] norms of each weighted term's gradient at ``anchor`` (hidden states or logits)."""
    if anchor is None or not anchor.requires_grad:
        return None
    norms = []
    for value in values:
        part = value.contribution(weights).sum()
        found = (None,)
        if part.requires_grad:
            found = torch.autograd.grad(part, anchor, retain_graph=True, allow_unused=True)
        norm = anchor.new_zeros(()) if found[0] is None else found[0].detach().norm()
        norms.append(norm.float())
    return torch.stack(norms)
