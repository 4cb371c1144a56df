"""What a loss term may read of a training forward pass.

Shape letters: B rows, T positions, S samples, H hidden size, V vocabulary size, N label tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.kernels.linear_cross_entropy import linear_cross_entropy
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.kernels.token_map import TokenFunction, map_logits

NEXT, OWN = "next", "own"
"""How token losses are aligned: with the position that predicts, or with the label's own."""


class LossContext:
    """The inputs, labels and results of one forward pass, as loss terms see them.

    Reading a field that the host does not give raises an error that names the term, the field and
    the way to get it; :meth:`has` asks first. Per-token terms return [B, T] losses in which
    position t holds the loss of predicting ``labels[t + 1]``; :meth:`map_tokens`,
    :meth:`log_probs` and :meth:`logsumexp` make such tensors without the [B, T, V] logits where
    the host has none.

    Attributes:
        labels: [B, T] int64 as the collator made them, negative = ignored.
        step: optimizer steps done before this one.
        num_items_in_batch: what the host divides by, where it says so.
        host: who computes the loss: "logits", "chunked", "log_probs" or "alone".
        term: name of the term that reads, for messages.
    """

    def __init__(
        self,
        labels: Tensor,
        *,
        outputs: Any = None,
        logits: Tensor | None = None,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        objective: Tensor | None = None,
        hidden_states: Tensor | None = None,
        head: OutputHead | None = None,
        model: nn.Module | None = None,
        token_loss: Tensor | None = None,
        targets: Tensor | None = None,
        columns: Mapping[str, Any] | None = None,
        num_items_in_batch: Tensor | int | None = None,
        step: int = 0,
        host: str = "alone",
        full_logits: bool = False,
    ) -> None:
        """Collect what is at hand; everything but ``labels`` may be missing.

        Args:
            labels: [B, T] int64.
            outputs: what the model returned; read for ``logits``.
            logits: [B, T, V], where they are not in ``outputs``.
            input_ids: [B, T] int64.
            attention_mask: [B, T].
            position_ids: [B, T] int64.
            objective: [B, T] int64 number of the objective that each position's label serves.
            hidden_states: [B, T, H] last hidden states.
            head: makes logits of ``hidden_states``.
            model: the ``...ForCausalLM``.
            token_loss: [B, T] next-token cross-entropy, if somebody has computed it.
            targets: [B, T] int64 label each position predicts, -100 for none; made from
                ``labels`` by default.
            columns: further columns of the batch by name.
            num_items_in_batch: what the host divides by.
            step: optimizer steps done before this one.
            host: who computes the loss.
            full_logits: make [B, T, V] logits from hidden states for terms that read them.
        """
        self.labels = labels
        self.columns = dict(columns or {})
        self.num_items_in_batch = num_items_in_batch
        self.step = step
        self.host = host
        self.term = "term"
        self._outputs = outputs
        self._full_logits = full_logits
        self._fields: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
            "objective": objective,
            "hidden_states": hidden_states,
            "head": head,
            "model": model,
            "logits": logits if logits is not None else getattr(outputs, "logits", None),
        }
        self._token_loss = token_loss
        self._targets = targets
        # Terms of one pass share these: finding them costs a copy to the host.
        self._rows: tuple[Tensor, Tensor, Tensor] | None = None

    # -- fields ------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a field or batch column can be read."""
        if name == "logits" and self._fields["logits"] is None:
            return self._full_logits and self._can_make_logits()
        return self._fields.get(name) is not None or name in self.columns

    @property
    def input_ids(self) -> Tensor:
        """[B, T] int64 tokens."""
        return self._need("input_ids")

    @property
    def attention_mask(self) -> Tensor:
        """[B, T], 1 for real tokens."""
        return self._need("attention_mask")

    @property
    def position_ids(self) -> Tensor:
        """[B, T] int64."""
        return self._need("position_ids")

    @property
    def objective(self) -> Tensor:
        """[B, T] int64 number of the objective that each position's label serves."""
        return self._need("objective")

    @property
    def hidden_states(self) -> Tensor:
        """[B, T, H] last hidden states, before the head."""
        return self._need("hidden_states")

    @property
    def head(self) -> OutputHead:
        """The model's output head."""
        return self._need("head")

    @property
    def model(self) -> nn.Module:
        """The ``...ForCausalLM`` that is trained."""
        return self._need("model")

    @property
    def logits(self) -> Tensor:
        """[B, T, V] logits, made from hidden states only where that is asked for."""
        if self._fields["logits"] is None and self._full_logits and self._can_make_logits():
            self._fields["logits"] = self.head.logits(self.hidden_states)
        return self._need("logits")

    @property
    def vocabulary(self) -> int:
        """V: how many logits the student has."""
        if self._prefers_logits():
            return self.logits.shape[-1]
        return self.head.weight.shape[0]

    @property
    def outputs(self) -> Any:
        """What the model returned, or a view of this context where it has not returned yet."""
        return _OutputsView(self) if self._outputs is None else self._outputs

    def column(self, name: str) -> Any:
        """A further column of the batch.

        Raises:
            IncompatibleError: if the batch has none of that name.
        """
        if name not in self.columns:
            raise IncompatibleError(
                f"term {self.term!r}: reads the batch column {name!r}, which this batch does not "
                "hold; add it to the data set, let the collator stack it, and set "
                "remove_unused_columns=False."
            )
        return self.columns[name]

    # -- token losses ------------------------------------------------------------------------

    @property
    def targets(self) -> Tensor:
        """[B, T] int64 label that each position predicts, -100 where there is none."""
        if self._targets is None:
            self._targets = functional.pad(self.labels[:, 1:], (0, 1), value=-100)
        return self._targets

    def targets_of(self, alignment: str) -> Tensor:
        """[B, T] int64 labels in the alignment of a term's losses, negative = none."""
        return self.labels if alignment == OWN else self.targets

    @property
    def token_loss(self) -> Tensor:
        """[B, T] next-token cross-entropy in nats, 0 where there is no label."""
        if self._token_loss is None:
            self._token_loss = -self.log_probs()
        return self._token_loss

    def log_probs(self, temperature: float = 1.0) -> Tensor:
        """[B, T] log-probability of the next label under logits / temperature; 0 without label."""
        if self._prefers_logits():
            return -self.cross_entropy(self.targets, temperature)
        return self._scores(temperature).log_probs

    def logsumexp(self) -> Tensor:
        """[B, T] log of the softmax's denominator where there is a next label, else 0."""
        if self._prefers_logits():
            return self.map_tokens(lambda logits: logits.logsumexp(-1))
        return self._scores(1.0).logsumexp

    def cross_entropy(self, targets: Tensor, temperature: float = 1.0) -> Tensor:
        """[B, T] cross-entropy of given labels [B, T] at their positions; 0 where negative."""
        if not self._prefers_logits():
            return -self._scores(temperature, targets).log_probs
        logits = self.logits.float() if self.logits.dtype != torch.float64 else self.logits
        if temperature != 1.0:
            logits = logits / temperature
        flat = functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            targets.clamp(min=-100).reshape(-1).to(logits.device),
            ignore_index=-100,
            reduction="none",
        )
        return flat.view(targets.shape)

    def map_tokens(
        self,
        function: TokenFunction,
        *aligned: Tensor,
        heads: tuple[OutputHead | None, ...] = (),
        targets: Tensor | None = None,
    ) -> Tensor:
        """Apply a function of logits to every label position, chunk by chunk.

        Args:
            function: called with logits [n, V] and the rows of ``aligned``; returns [n].
            aligned: tensors [B, T, ...] whose rows go along.
            heads: one for each of ``aligned``: hidden states whose logits should go along.
            targets: [B, T] labels whose positions count; the next-token labels by default.

        Returns:
            [B, T] values, 0 where there is no label.

        Raises:
            IncompatibleError: if the host gives neither logits nor hidden states.
        """
        targets = self.targets if targets is None else targets
        used, rows = self._label_rows(targets)
        source, head = self._source()
        taken = [t.reshape(-1, *t.shape[2:])[rows.to(t.device)] for t in (source, *aligned)]
        values = map_logits(function, taken[0], taken[1:], heads=(head, *heads))
        keep = used[rows].to(values.device)
        values = torch.where(keep, values, 0.0)
        flat = values.new_zeros(targets.numel()).index_put((rows.to(values.device),), values)
        return flat.view(targets.shape)

    # -- helpers -----------------------------------------------------------------------------

    def _scores(self, temperature: float, targets: Tensor | None = None) -> Any:
        hidden, head = self._source()
        if head is None:
            raise IncompatibleError(f"term {self.term!r}: {_WAYS['logits'].format(self.host)}")
        return linear_cross_entropy(
            hidden,
            head.weight,
            (self.targets if targets is None else targets).to(hidden.device),
            bias=head.bias,
            logit_scale=head.transform.scale,
            softcap=head.transform.cap,
            temperature=temperature,
            distribution=False,
        )

    def _label_rows(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """[B·T] bool and [N] int64: which flattened positions have a label."""
        if self._rows is None or self._rows[0] is not targets:
            used = (targets >= 0).reshape(-1)
            # One token always runs, so that a batch without labels still reaches every parameter.
            rows = used.to(torch.int8).argsort(descending=True, stable=True)
            self._rows = targets, used, rows[: max(int(used.sum()), 1)]
        return self._rows[1:]

    def _source(self) -> tuple[Tensor, OutputHead | None]:
        """Logits, or hidden states and the head that makes logits of them."""
        if self._prefers_logits() or not self._can_make_logits():
            return self.logits, None
        head = self.head
        return self.hidden_states.to(head.weight.device), head

    def _prefers_logits(self) -> bool:
        return self._fields["logits"] is not None

    def _can_make_logits(self) -> bool:
        return all(self._fields[name] is not None for name in ("hidden_states", "head"))

    def _need(self, name: str) -> Any:
        found = self._fields[name]
        if callable(found) and not isinstance(found, nn.Module):
            # Fields that cost something are made when a term first reads them.
            found = self._fields[name] = found()
        if found is None:
            way = _WAYS.get(name, "pass it in, or train with CompositeLossCallback")
            raise IncompatibleError(
                f"term {self.term!r}: reads {name}, which this host does not give; "
                f"{way.format(self.host)}."
            )
        return found


_WAYS = {
    "logits": (
        "this host ({}) computes its loss from hidden states: use context.map_tokens(function), "
        "set loss_type='nll' on TRL 1.12, or pass full_logits=True to CompositeLossCallback"
    ),
    "objective": (
        "put an integer column 'objective' into the batch, or pass objective= to "
        "CompositeLossCallback"
    ),
    "attention_mask": "this batch has none, as padding-free batches do; use position_ids",
    "position_ids": "this batch has none; add them in the collator",
}


class _OutputsView:
    """Stands for a model output that is still being made: fields of the context by name."""

    def __init__(self, context: LossContext) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        context = self.__dict__["_context"]
        if name in ("logits", "hidden_states", "head"):
            return getattr(context, name)
        raise IncompatibleError(
            f"term {context.term!r}: reads outputs.{name}, and the model has not returned when its "
            "loss is computed; read logits or hidden_states."
        )
