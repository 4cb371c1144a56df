"""Who listens to a probe, who weights its samples, and who chooses what they are trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from hf_glm_curriculum.signals.microbatch import Microbatch, SampleSignals

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.observed_pass import ObservedPass
    from hf_glm_curriculum.signals.probe import SampleProbe


class Weigher(Protocol):
    """Gives each sample of a micro-batch its loss weight, before the backward pass."""

    def __call__(self, batch: Microbatch) -> Tensor:
        """Return [S] float32 weights ≥ 0; ``batch.loss`` and ``batch.onset_loss`` are known."""
        ...


class Objective(Protocol):
    """Chooses which token losses are backpropagated in place of next-token cross-entropy.

    Weights of samples multiply whatever it chooses. A probe has one objective at most.
    """

    def columns(self) -> tuple[str, ...]:
        """Names of batch columns that it reads and the model must not see."""
        ...

    def neutral(self) -> bool:
        """Whether the host's own loss is what it wants; asked once a forward pass."""
        ...

    def host_summed(self, seen: ObservedPass, summed_loss: Tensor) -> None:
        """Hear of a pass whose loss the host computed itself.

        Args:
            seen: the pass.
            summed_loss: 0-dim, detached: cross-entropy summed over the label tokens.
        """
        ...

    def token_losses(self, seen: ObservedPass, token_loss: Tensor, weights: Tensor) -> Tensor:
        """Return [B, T] weighted token losses, whose sum over N is backpropagated.

        Args:
            seen: the pass.
            token_loss: [B, T] cross-entropy of the label each position predicts, with gradient.
            weights: [B, T] float32 weight of the sample that the label belongs to; 0 elsewhere.
        """
        ...


class Subscription:
    """One listener's view of a probe: its weigher, its scope and its queue of signals."""

    def __init__(
        self,
        probe: SampleProbe,
        weigher: Weigher | None,
        is_live: Callable[[], bool],
        is_over: Callable[[], bool],
        wants_embedding: bool,
        exact: bool,
        objective: Objective | None = None,
    ) -> None:
        """Made by :meth:`SampleProbe.subscribe`."""
        self.weigher = weigher
        self.is_live = is_live
        self.is_over = is_over
        self.wants_embedding = wants_embedding
        self.exact = exact
        self.objective = objective
        self._probe = probe
        self._queue: list[Microbatch] = []

    @property
    def observes(self) -> bool:
        """Whether it wants signals of samples; an objective alone does not."""
        return self.objective is None

    def push(self, batch: Microbatch) -> None:
        """Queue a micro-batch; its signals are complete once its backward has run."""
        if self.observes:
            self._queue.append(batch)

    def drain(self) -> list[SampleSignals]:
        """Return the signals of every micro-batch since the last call, in order."""
        queue, self._queue = self._queue, []
        found = (batch.signals(self.exact) for batch in queue)
        return [signals for signals in found if signals is not None]

    def close(self) -> None:
        """Stop listening; the model is untouched again once the last listener has gone."""
        self._probe.unsubscribe(self)


class AttachedProbe:
    """A subscription as a context manager, for use without a trainer."""

    def __init__(self, subscription: Subscription) -> None:
        """Made by :meth:`SampleProbe.attach`."""
        self._subscription = subscription
        self.drain = subscription.drain

    def __enter__(self) -> AttachedProbe:
        """Return itself; hooks are on already."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Take the hooks off."""
        self._subscription.close()
