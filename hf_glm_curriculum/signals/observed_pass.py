"""One training forward under way: from token losses to what the host backpropagates.

Shape letters: B rows, T positions, S samples, H hidden size, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.signals.microbatch import Microbatch, segment_sum, spread
from hf_glm_curriculum.signals.subscription import Objective, Subscription
from hf_glm_curriculum.signals.surprisal import UnigramSurprisal


class ObservedPass:
    """What is known of the forward pass under way, and the reduction of its token losses.

    Attributes:
        batch: the samples of the pass.
        inputs: the model's arguments by name.
        columns: what the batch held for the objective alone, by name.
        model: the ``...ForCausalLM``.
        hidden: [B, T, H] last hidden states once the backbone has run; with their graph where
            there is an objective and nobody wants exact norms.
        logits: [B, T, V] where the host makes them.
        loss_form: "logits", "chunked" or "log_probs": how the host computes its loss.
    """

    def __init__(
        self,
        batch: Microbatch,
        inputs: Mapping[str, Any],
        columns: Mapping[str, Any],
        live: list[Subscription],
        surprisal: UnigramSurprisal,
        model: nn.Module,
    ) -> None:
        """Made by the probe as the pass begins."""
        self.batch = batch
        self.inputs = inputs
        self.columns = columns
        self.live = live
        self.model = model
        self.hidden: Tensor | None = None
        self.logits: Tensor | None = None
        self.loss_form = "logits"
        self.settled = False
        """Whether the pass has its loss."""
        self._head: OutputHead | None = None
        self._surprisal = surprisal

    @property
    def objective(self) -> Objective | None:
        """Who chooses the token losses; None leaves them to the host."""
        return next((s.objective for s in self.live if s.objective is not None), None)

    @property
    def wants_samples(self) -> bool:
        """Whether somebody weights or observes samples."""
        return any(s.weigher is not None or s.observes for s in self.live)

    @property
    def wants_exact(self) -> bool:
        """Whether somebody asks for norms over all trainable parameters."""
        return any(s.exact for s in self.live)

    @property
    def awaits_loss(self) -> bool:
        """Whether the pass has no loss yet, in a run that is under way."""
        return not self.settled and any(s.is_live() for s in self.live)

    def head(self) -> OutputHead:
        """The model's output head: as the host multiplied with it, or read off the model.

        Raises:
            IncompatibleError: if its weight alone does not give the model's logits.
        """
        if self._head is None:
            self._head = OutputHead.of(self.model)
        return self._head

    def show(self, loss_form: str, logits: Tensor | None, head: OutputHead | None) -> None:
        """Note how the host computes its loss and from what."""
        self.loss_form, self.logits, self._head = loss_form, logits, head

    def owns(self, hidden: Tensor) -> bool:
        """Whether ``hidden`` are the last hidden states of this pass."""
        seen = self.hidden
        same = seen is not None and hidden.shape == seen.shape
        return same and hidden.data_ptr() == seen.data_ptr()  # type: ignore[union-attr]

    def shifted_labels(self) -> Tensor:
        """[B, T] int64 label each position predicts, -100 where there is none."""
        batch = self.batch
        return torch.where(batch.target >= 0, batch.next_labels(), -100)

    # -- the host's own loss -----------------------------------------------------------------

    def leaves_loss_to_host(self) -> bool:
        """Whether the host's own loss, untouched, is the right one: nobody wants another."""
        objective = self.objective
        return not self.wants_samples and objective is not None and objective.neutral()

    def host_computed(self, loss: Tensor, num_items: Tensor | int | None) -> Tensor:
        """Hand the host's own loss on, and tell the objective its sum."""
        self.settled = True
        objective = self.objective
        if objective is not None:
            summed = loss.detach() * self._denominator(num_items, loss.device)
            objective.host_summed(self, summed)
        return loss

    # -- weighted losses ---------------------------------------------------------------------

    def effective(self, token_loss: Tensor) -> Tensor:
        """Weighted token losses [B, T] of the objective, from the host's own [B, T]."""
        weights = self._weights(token_loss)
        self.settled = True
        objective = self.objective
        if objective is None:
            return token_loss * weights
        return objective.token_losses(self, token_loss, weights)

    def weighted_scalar(self, token_loss: Tensor, num_items: Tensor | int | None) -> Tensor:
        """Reduce [B, T] token losses to the loss the host backpropagates: Σ w·ℓ / N."""
        denominator = self._denominator(num_items, token_loss.device)
        loss = self.effective(token_loss).sum() / denominator
        if loss.requires_grad:
            loss.register_hook(partial(_record_scalar_coefficient, self.batch, denominator))
        return loss

    def reported_like_host(
        self, loss: Tensor, host_sum: Tensor, num_items: Tensor | int | None
    ) -> Tensor:
        """Give a loss whose weights are all 1 the value the host would have reported.

        Under CPU autocast TRL sums token losses in bfloat16. Gradients do not depend on it; the
        reported loss does, by up to 2⁻⁸ of its value, and a neutral run should report the same.
        """
        weight, objective = self.batch.weight, self.objective
        if weight is None or not (objective is None or objective.neutral()):
            return loss
        host = host_sum / self._denominator(num_items, loss.device)
        return loss + torch.where((weight == 1).all(), host - loss.detach(), 0.0)

    def follow_coefficient(self, scaled_log_probs: Tensor) -> None:
        """Read the host's factor on token losses off the gradient of weighted log-probs."""
        if scaled_log_probs.requires_grad:
            scaled_log_probs.register_hook(partial(_record_token_coefficient, self.batch))

    def _weights(self, token_loss: Tensor) -> Tensor:
        """Record token losses [B, T] and return the weight of each position, [B, T] float32."""
        batch = self.batch
        if not self.wants_samples:
            batch.weight = torch.ones_like(batch.n_tokens, dtype=torch.float32)
            return (batch.target >= 0).float()
        with torch.no_grad():
            labels = batch.next_labels()
            self._surprisal.update(labels, batch.target >= 0)
            batch.record_losses(token_loss, self._surprisal(labels))
            batch.weight = torch.ones_like(batch.loss)  # type: ignore[arg-type]
            for subscription in self.live:
                if subscription.weigher is not None:
                    batch.weight = batch.weight * subscription.weigher(batch)
            return spread(batch.weight, batch.target)

    def _denominator(self, num_items: Tensor | int | None, device: torch.device) -> Tensor:
        """N: what the host passes, or the local label tokens (at least 1, for a finite zero)."""
        if num_items is None:
            return self.batch.n_tokens.sum().clamp(min=1)
        return torch.as_tensor(num_items, device=device)


def _record_scalar_coefficient(batch: Microbatch, denominator: Tensor, gradient: Tensor) -> None:
    batch.coefficient = gradient.detach() / denominator


def _record_token_coefficient(batch: Microbatch, gradient: Tensor) -> None:
    used = (batch.target >= 0).to(gradient)
    padded = nn.functional.pad(gradient.detach(), (0, 1)) * used
    total = segment_sum(padded, batch.target, batch.count)
    batch.coefficient = -total / batch.n_tokens.clamp(min=1)
