"""A composite loss as the objective of a probe: terms inside the training's own forward pass.

Shape letters: B rows, T positions, S samples.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.losses.context import LossContext
from hf_glm_curriculum.losses.values import SampleWeights
from hf_glm_curriculum.signals.microbatch import spread
from hf_glm_curriculum.signals.observed_pass import ObservedPass


class CompositeObjective:
    """Answers a probe's question which token losses to train on.

    Args:
        composite: the loss.
        tags: sample ids int64 [S] → number of the objective each serves, int64 [S].
        columns: batch columns for functions of the user's own.
        full_logits: make all logits for terms that read them.
    """

    def __init__(
        self,
        composite: CompositeLoss,
        tags: Callable[[Tensor], Tensor] | None,
        columns: tuple[str, ...],
        full_logits: bool,
    ) -> None:
        """Remember the settings."""
        self.composite = composite
        self._tags = tags
        self._columns = columns
        self._full_logits = full_logits

    def columns(self) -> tuple[str, ...]:
        """Names of batch columns that the model must not see."""
        return (*self.composite.columns(), *self._columns)

    def neutral(self) -> bool:
        """Whether the host's own loss is the composite's."""
        return self.composite.neutral()

    def host_summed(self, seen: ObservedPass, summed_loss: Tensor) -> None:
        """Note the host's own loss as the only term's."""
        self.composite.note_plain(self._context(seen, None), summed_loss)

    def token_losses(self, seen: ObservedPass, token_loss: Tensor, weights: Tensor) -> Tensor:
        """[B, T] weighted losses of all terms."""
        composite = self.composite
        context = self._context(seen, token_loss)
        values = composite.term_values(context)
        composite.note(context, values)
        batch = seen.batch
        samples = weights.new_ones(batch.count) if batch.weight is None else batch.weight
        own = spread(samples, batch.segments.index)
        weighing = SampleWeights(weights, own, (batch.target >= 0).to(weights))
        anchor = seen.hidden if _carries_graph(seen.hidden) else seen.logits
        composite.note_shares(values, weighing, anchor)
        total = token_loss.new_zeros(token_loss.shape)
        for value in values:
            total = total + value.contribution(weighing).to(token_loss.device)
        return total

    def _context(self, seen: ObservedPass, token_loss: Tensor | None) -> LossContext:
        if seen.wants_exact:
            self.composite.locked = _EXACT
        inputs = seen.inputs
        return LossContext(
            inputs["labels"],
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            position_ids=inputs.get("position_ids"),
            objective=self._objective_of(seen),
            logits=seen.logits,
            hidden_states=seen.hidden,
            head=seen.head,  # type: ignore[arg-type]  # made when a term first reads it
            model=seen.model,
            token_loss=token_loss,
            targets=seen.shifted_labels(),
            columns=seen.columns,
            step=self.composite.step,
            host=seen.loss_form,
            full_logits=self._full_logits,
        )

    def _objective_of(self, seen: ObservedPass) -> Tensor | None:
        """[B, T] number of the objective that each position's label serves, -1 without label."""
        batch = seen.batch
        if self._tags is not None:
            tags = self._tags(batch.ids)
            if tags.shape != batch.ids.shape:
                raise IncompatibleError(
                    f"objective: must give each of {batch.count} samples one number, got shape "
                    f"{tuple(tags.shape)}."
                )
            return spread(tags.to(batch.ids.device), batch.target, fill=-1)
        column = seen.columns.get("objective")
        if column is None:
            return None
        column = torch.as_tensor(column, device=batch.target.device)
        if column.dim() == 1:
            return column.unsqueeze(1).expand_as(batch.target)
        return torch.nn.functional.pad(column[:, 1:], (0, 1), value=-1)


_EXACT = (
    "another callback measures grad_norm='exact', which knows next-token cross-entropy alone; use "
    "grad_norm='hidden' there to train on other terms"
)


def _carries_graph(hidden: Tensor | None) -> bool:
    return hidden is not None and hidden.requires_grad
