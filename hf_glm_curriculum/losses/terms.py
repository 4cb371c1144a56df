"""Loss terms: each turns a context into per-token losses, or into one number.

A term is any callable ``term(context)``. A [B, T] result holds token losses (position t for
``labels[t + 1]``, or each label's own position where ``term.alignment == "own"``); they share the
host's denominator and are multiplied with the weights of samples. A 0-dim result is taken as the
mean over the micro-batch's label tokens, so that accumulation changes nothing; weights of samples
do not reach it.

Shape letters: B rows, T positions, V vocabulary size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.losses.context import NEXT, OWN, LossContext


class Term(Protocol):
    """What a composite loss is made of."""

    def __call__(self, context: LossContext) -> Tensor:
        """Return [B, T] token losses, or a 0-dim mean."""
        ...


class CausalLMLoss:
    """Next-token cross-entropy on the labels, as the host computes it.

    Args:
        only: number of the objective whose labels count; None takes all.
    """

    alignment = NEXT

    def __init__(self, only: int | None = None) -> None:
        """Remember the objective."""
        self.only = only
        self.columns = () if only is None else ("objective",)

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] nats."""
        return _restricted(context.token_loss, context, self.only)


class InstructionLoss:
    """Next-token cross-entropy on responses only.

    Where the labels leave prompts out (−100), they say what the response is. Where they cover
    everything, the response is told by a batch column of 0 and 1 (``mask_column``) or starts after
    the tokens of ``response_template`` (and ends before those of ``prompt_template``).

    Args:
        response_template: token ids that stand before every response.
        prompt_template: token ids that stand before every prompt.
        mask_column: batch column [B, T], 1 on response tokens ("completion_mask",
            "assistant_masks").
        only: number of the objective whose labels count; None takes all.
    """

    alignment = NEXT

    def __init__(
        self,
        response_template: Sequence[int] | None = None,
        prompt_template: Sequence[int] | None = None,
        mask_column: str | None = None,
        only: int | None = None,
    ) -> None:
        """Check that at most one way is named.

        Raises:
            ConfigError: if both a template and a column are given, or an empty template.
        """
        if response_template is not None and mask_column is not None:
            raise ConfigError(
                "response_template, mask_column: give one way to tell responses, got both."
            )
        if response_template is not None and not len(response_template):
            raise ConfigError("response_template: must hold at least one token id, got none.")
        self.response_template = None if response_template is None else list(response_template)
        self.prompt_template = list(prompt_template or [])
        self.mask_column = mask_column
        self.only = only
        names = (mask_column, None if only is None else "objective")
        self.columns = tuple(name for name in names if name is not None)
        self._checked = False

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] nats, 0 outside responses."""
        loss = _restricted(context.token_loss, context, self.only)
        if self.mask_column is not None:
            inside = context.column(self.mask_column).to(loss.device) > 0
        elif self.response_template is not None:
            inside = template_spans(context.input_ids, self.response_template, self.prompt_template)
        else:
            self._check_labels(context)
            return loss
        return torch.where(_shifted(inside).to(loss.device), loss, 0.0)

    def _check_labels(self, context: LossContext) -> None:
        """Once: do the labels tell responses from prompts at all?"""
        if self._checked or self.only is not None:
            return
        self._checked = True
        real = context.attention_mask > 0 if context.has("attention_mask") else None
        labels = context.labels if real is None else context.labels[real]
        if labels.numel() and bool((labels >= 0).all()):
            raise IncompatibleError(
                f"term {context.term!r}: every token of the first batch has a label, so nothing "
                "tells responses from prompts; set the prompt's labels to -100, or give "
                "InstructionLoss response_template=, mask_column= or only=."
            )


class MaskedLMLoss:
    """Cross-entropy of masked tokens at their own position.

    Args:
        labels_column: batch column [B, T] int64 with the tokens behind the masks, negative
            elsewhere; None reads ``labels`` (models trained on masked tokens alone).
    """

    alignment = OWN

    def __init__(self, labels_column: str | None = None) -> None:
        """Remember the column."""
        self.labels_column = labels_column
        self.columns = () if labels_column is None else (labels_column,)

    def targets(self, context: LossContext) -> Tensor:
        """[B, T] int64 tokens behind the masks, negative elsewhere."""
        if self.labels_column is None:
            return context.labels
        return context.column(self.labels_column)

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] nats at the masked positions."""
        return context.cross_entropy(self.targets(context))


class TemperatureLoss:
    """Next-token cross-entropy of logits divided by a temperature.

    Above 1 it presses less on tokens that are right already, below 1 more.

    Args:
        temperature: τ > 0, or a function of the context that returns one number, or [B, T]
            temperatures at the positions that predict (any number where there is no label). They
            are constants to the gradient.
        rescale: multiply a position's loss with its τ. The gradient at the logits is then
            softmax(z/τ) − one-hot, without the factor 1/τ, which would make warm positions count
            less. τ² is for distillation, where both distributions are softened.
    """

    alignment = NEXT

    def __init__(
        self,
        temperature: float | Callable[[LossContext], Tensor | float],
        *,
        rescale: bool = False,
    ) -> None:
        """Check the temperature.

        Raises:
            ConfigError: if it is a number that is not positive.
        """
        if not callable(temperature) and not temperature > 0:
            raise ConfigError(f"temperature: must be positive, got {temperature}.")
        self.temperature = temperature
        self.rescale = rescale

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] nats, times τ with ``rescale``."""
        found = self.temperature(context) if callable(self.temperature) else self.temperature
        if not isinstance(found, Tensor):
            loss = -context.log_probs(found)
            return loss * found if self.rescale else loss
        if found.shape != context.targets.shape:
            raise ConfigError(
                f"temperature of term {context.term!r}: must have the labels' shape "
                f"{tuple(context.targets.shape)}, got {tuple(found.shape)}."
            )
        return context.map_tokens(self._tempered, found.detach(), context.targets)

    def _tempered(self, logits: Tensor, temperatures: Tensor, targets: Tensor) -> Tensor:
        own = temperatures.to(logits)
        loss = torch.nn.functional.cross_entropy(
            logits / own[:, None],
            targets.clamp(min=-100).to(logits.device),
            ignore_index=-100,
            reduction="none",
        )
        return loss * own if self.rescale else loss


class ZLoss:
    """Square of the softmax's log-denominator, which keeps logits from drifting.

    (Chowdhery et al., PaLM, section 5, with weight 1e-4.)
    """

    alignment = NEXT

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] log² Z at positions with a next label."""
        return context.logsumexp().square()


class FunctionTerm:
    """A user's function of ``(context)``, or of ``(outputs, labels)`` as in hand-written loops.

    Args:
        function: the function.
        name: for messages.
    """

    def __init__(self, function: Callable[..., Tensor], name: str) -> None:
        """Find out which form it has.

        Raises:
            ConfigError: if it can be called in neither way.
        """
        if not callable(function):
            raise ConfigError(
                f"term {name!r}: must be a callable of (context) or (outputs, labels), got "
                f"{type(function).__name__}."
            )
        self.function = function
        self.alignment = getattr(function, "alignment", NEXT)
        columns: Any = getattr(function, "columns", ())
        if callable(columns):
            columns = columns()  # a composite within a composite tells them when asked
        self.columns: tuple[str, ...] = tuple(columns)
        self.takes_outputs = required_arguments(function, name) == 2
        targets = getattr(function, "targets", None)
        if callable(targets):
            self.targets = targets

    def __call__(self, context: LossContext) -> Tensor:
        """Whatever the function returns."""
        if self.takes_outputs:
            return self.function(context.outputs, context.labels)
        return self.function(context)


def required_arguments(function: Callable[..., Any], name: str) -> int:
    """1 for ``f(context)``, 2 for ``f(outputs, labels)``.

    Raises:
        ConfigError: if the function needs none, or more than two.
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind in positional]
    names = [p.name for p in parameters]
    # compute_loss_func's own form may give `labels` a default.
    if len(needed) == 1 and names[:2] in (["outputs", "labels"], ["logits", "labels"]):
        return 2
    if len(needed) not in (1, 2):
        raise ConfigError(
            f"term {name!r}: must take (context) or (outputs, labels), got "
            f"({', '.join(p.name for p in needed)})."
        )
    return len(needed)


def template_spans(input_ids: Tensor, start: list[int], end: list[int]) -> Tensor:
    """Which tokens lie after a ``start`` template and before the next ``end`` template.

    Args:
        input_ids: [B, T] int64.
        start: token ids that open a span; they do not belong to it.
        end: token ids that close it; empty leaves spans open to the end of the row.

    Returns:
        [B, T] bool.
    """
    opens = _ends_of(input_ids, start)
    closes = _starts_of(input_ids, end) if end else torch.zeros_like(opens)
    place = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device).expand_as(input_ids)
    # A span opens behind the template's last token and closes at the end template's first.
    opened = torch.where(opens, place + 1, 0).roll(1, dims=1)
    opened[:, 0] = 0
    opened = opened.cummax(dim=1).values
    closed = torch.where(closes, place + 1, 0).cummax(dim=1).values
    return (opened > 0) & (opened > closed)


def _ends_of(input_ids: Tensor, pattern: list[int]) -> Tensor:
    """[B, T] bool: an occurrence of ``pattern`` ends here."""
    found = torch.zeros_like(input_ids, dtype=torch.bool)
    width = len(pattern)
    if input_ids.shape[1] >= width:
        wanted = torch.tensor(pattern, device=input_ids.device)
        found[:, width - 1 :] = (input_ids.unfold(1, width, 1) == wanted).all(-1)
    return found


def _starts_of(input_ids: Tensor, pattern: list[int]) -> Tensor:
    """[B, T] bool: an occurrence of ``pattern`` starts here."""
    return _ends_of(input_ids.flip(1), pattern[::-1]).flip(1)


def _restricted(loss: Tensor, context: LossContext, only: int | None) -> Tensor:
    if only is None:
        return loss
    return torch.where(context.objective.to(loss.device) == only, loss, 0.0)


def _shifted(own: Tensor) -> Tensor:
    """From each token's own position to the position that predicts it."""
    return torch.nn.functional.pad(own[:, 1:], (0, 1), value=False)
