"""Where each host computes its token losses, and how weights get into them.

Three forms exist. A model called with labels runs its ``loss_function`` on logits (plain
``Trainer``, SFT ``loss_type="nll"``). TRL 1.12's SFT default looks ``_chunked_cross_entropy_loss``
up in its module and hands it hidden states. TRL 1.13 and newer return per-token ``log_probs`` and
sum them outside the model. All three end in the same place: a [B, T] tensor of token losses,
aligned with the position that predicts, goes to the probe, which answers with weights.
"""

from __future__ import annotations

import importlib
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.kernels.linear_cross_entropy import linear_cross_entropy

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.probe import SampleProbe

_SFT_MODULE = "trl.trainer.sft_trainer"
_CHUNKED = "_chunked_cross_entropy_loss"


class LossFunctionAdapter:
    """Stands in for ``model.loss_function`` of a causal LM while attached."""

    def __init__(self, probe: SampleProbe, model: nn.Module) -> None:
        """Remember the model; nothing changes before :meth:`attach`."""
        self._probe = probe
        self._model = model
        self._attached = self._had_own = False
        self._original: Callable[..., Tensor] | None = None
        self._unknown: set[str] = set()

    def attach(self) -> None:
        """Replace the loss function.

        Raises:
            IncompatibleError: if the model's loss is not next-token cross-entropy.
        """
        original = self._own_loss_function()
        name = getattr(original, "__name__", type(original).__name__)
        if name != "ForCausalLMLoss":
            raise IncompatibleError(
                f"model: per-sample losses need transformers' ForCausalLMLoss, "
                f"{type(self._model).__name__} computes {name}; use a ...ForCausalLM model with "
                f"its own loss function."
            )
        known = inspect.signature(self._compute).parameters
        self._unknown = set(inspect.signature(original).parameters) - set(known)  # type: ignore[arg-type]
        self._original, self._attached = original, True
        self._had_own = "_loss_function" in vars(self._model)
        self._model.loss_function = torch.compiler.disable(self._compute)  # type: ignore[assignment]

    def _own_loss_function(self) -> Any:
        """The model's loss function; its original's, where it is a copy of a watched model."""
        found = getattr(self._model, "loss_function", None)
        other = getattr(inspect.unwrap(found), "__self__", None) if callable(found) else None
        copied = isinstance(other, LossFunctionAdapter) and other._model is not self._model
        return other._original if copied else found  # type: ignore[union-attr]

    def detach(self) -> None:
        """Put the model's own loss function back.

        The stand-in still works where a copy of the model took it along: it only passes on.
        """
        if not self._attached:
            return
        self._attached = False
        if self._had_own:
            self._model.loss_function = self._original  # type: ignore[assignment]
        else:
            vars(self._model).pop("_loss_function", None)

    def _compute(
        self,
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        original = self._original
        probe = self._probe
        # What ForCausalLMLoss does not name, it ignores: lengths of packed samples, and whatever
        # else a model hands on of its forward's arguments.
        asked = {n: v for n, v in kwargs.items() if n in self._unknown and v is not None}
        if not probe.in_flight or shift_labels is not None or original is None or asked:
            probe.refuse_unknown_loss(asked, shift_labels)
            if original is None:
                raise IncompatibleError("model: its loss function was detached in mid-forward.")
            return original(
                logits,
                labels,
                vocab_size,
                num_items_in_batch=num_items_in_batch,
                ignore_index=ignore_index,
                shift_labels=shift_labels,
                **kwargs,
            )
        shifted = probe.shifted_labels().to(logits.device)
        token_loss = functional.cross_entropy(
            logits.float().view(-1, vocab_size),
            shifted.view(-1),
            ignore_index=ignore_index,
            reduction="none",
        ).view(shifted.shape)
        return probe.weighted_scalar(token_loss, num_items_in_batch)


class ChunkedAdapter:
    """Stands in for TRL 1.12's chunked cross-entropy for the length of a training run.

    The function is looked up in its module at each call, so one replacement serves every probe;
    a call that belongs to none of them goes to TRL's own function.
    """

    _original: Callable[..., Any] | None = None
    _probes: ClassVar[weakref.WeakSet[SampleProbe]] = weakref.WeakSet()

    @classmethod
    def attach(cls, probe: SampleProbe) -> None:
        """Route chunked losses of ``probe``'s model through it; nothing without TRL 1.12."""
        module = _loaded_sft_module()
        if module is None or not hasattr(module, _CHUNKED):
            return
        if cls._original is None:
            cls._original = getattr(module, _CHUNKED)
            setattr(module, _CHUNKED, torch.compiler.disable(cls._compute))
        cls._probes.add(probe)

    @classmethod
    def detach(cls, probe: SampleProbe) -> None:
        """Stop serving ``probe``; TRL's own function returns with the last one."""
        cls._probes.discard(probe)
        if not cls._probes:
            cls._restore()

    @classmethod
    def _restore(cls) -> None:
        if cls._original is not None:
            setattr(importlib.import_module(_SFT_MODULE), _CHUNKED, cls._original)
            cls._original = None

    @classmethod
    def _compute(
        cls,
        hidden_states: Tensor,
        lm_head_weight: Tensor,
        chunk_size: int,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        logit_scale: float = 1.0,
        final_logit_softcapping: float | None = None,
        lm_head_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        probe = next((p for p in cls._probes if p.in_flight and p.owns(hidden_states)), None)
        original = cls._original
        if original is None:
            raise IncompatibleError("trl: the chunked loss was detached in mid-forward.")
        if not cls._probes:
            cls._restore()  # the last probe went without detaching: its run died
        if probe is None or shift_labels is not None:
            return original(
                hidden_states,
                lm_head_weight,
                chunk_size,
                labels=labels,
                shift_labels=shift_labels,
                num_items_in_batch=num_items_in_batch,
                logit_scale=logit_scale,
                final_logit_softcapping=final_logit_softcapping,
                lm_head_bias=lm_head_bias,
            )
        shifted = probe.shifted_labels()
        scores = linear_cross_entropy(
            hidden_states,
            lm_head_weight,
            shifted.to(hidden_states.device),
            bias=lm_head_bias,
            chunk_tokens=chunk_size,
            logit_scale=logit_scale,
            softcap=final_logit_softcapping,
        )
        loss = probe.weighted_scalar(-scores.log_probs.float(), num_items_in_batch)
        loss = probe.reported_like_host(loss, scores.summed_loss, num_items_in_batch)
        n_valid = (shifted >= 0).sum()
        return loss, scores.is_top1.sum(), scores.entropy.sum(), n_valid


def weight_log_probs(probe: SampleProbe, outputs: Any) -> None:
    """Scale TRL ≥ 1.13's per-token ``log_probs`` [B, T − 1] in place of a second forward."""
    log_probs = outputs.log_probs
    padded = functional.pad(log_probs, (0, 1))
    weights = probe.weights_for(-padded)[:, :-1]
    scaled = log_probs * weights.to(log_probs.dtype)
    probe.follow_coefficient(scaled)
    outputs.log_probs = scaled
    if getattr(outputs, "loss", None) is not None:
        # Keep the output's own loss consistent for hosts that read it instead.
        plain = log_probs.detach().sum()
        ratio = torch.where(plain != 0, scaled.detach().sum() / plain, torch.ones_like(plain))
        outputs.loss = outputs.loss * ratio


def _loaded_sft_module() -> Any | None:
    import sys

    return sys.modules.get(_SFT_MODULE)
