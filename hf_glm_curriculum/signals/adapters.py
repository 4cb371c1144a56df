"""Where each host computes its token losses, and how weights get into them.

Three forms exist. A model called with labels runs its ``loss_function`` on logits (plain
``Trainer``, SFT ``loss_type="nll"``). TRL 1.12's SFT default looks ``_chunked_cross_entropy_loss``
up in its module and hands it hidden states. TRL 1.13 and newer return per-token ``log_probs`` and
sum them outside the model. All three end in the same place: a [B, T] tensor of token losses,
aligned with the position that predicts, goes to the pass under way, which weights it or puts
another objective's in its place. Where nobody wants either, the host computes its own loss.
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
from hf_glm_curriculum.kernels.output_head import LogitTransform, OutputHead
from hf_glm_curriculum.signals.observed_pass import ObservedPass

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
        # What ForCausalLMLoss does not name, it ignores: lengths of packed samples, and whatever
        # else a model hands on of its forward's arguments.
        asked = {n: v for n, v in kwargs.items() if n in self._unknown and v is not None}
        seen = _awaiting(self._probe)
        if seen is not None:
            _refuse_unknown_loss(asked, shift_labels)
        if original is None:
            raise IncompatibleError("model: its loss function was detached in mid-forward.")
        if seen is not None:
            seen.show("logits", logits, None)
        if seen is None or seen.leaves_loss_to_host():
            loss = original(
                logits,
                labels,
                vocab_size,
                num_items_in_batch=num_items_in_batch,
                ignore_index=ignore_index,
                shift_labels=shift_labels,
                **kwargs,
            )
            return loss if seen is None else seen.host_computed(loss, num_items_in_batch)
        shifted = seen.shifted_labels().to(logits.device)
        token_loss = functional.cross_entropy(
            logits.float().view(-1, vocab_size),
            shifted.view(-1),
            ignore_index=ignore_index,
            reduction="none",
        ).view(shifted.shape)
        return seen.weighted_scalar(token_loss, num_items_in_batch)


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
        original = cls._original
        if original is None:
            raise IncompatibleError("trl: the chunked loss was detached in mid-forward.")
        passes = (_awaiting(probe) for probe in cls._probes)
        seen = next((p for p in passes if p is not None and p.owns(hidden_states)), None)
        if not cls._probes:
            cls._restore()  # the last probe went without detaching: its run died
        head = OutputHead(
            lm_head_weight, lm_head_bias, LogitTransform(logit_scale, final_logit_softcapping)
        )
        if seen is not None and shift_labels is None:
            seen.show("chunked", None, head)
            if not seen.leaves_loss_to_host():
                return _weighted_chunks(seen, hidden_states, head, chunk_size, num_items_in_batch)
        found = original(
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
        if seen is not None and shift_labels is None:
            seen.host_computed(found[0], num_items_in_batch)
        return found


def _weighted_chunks(
    seen: ObservedPass,
    hidden: Tensor,
    head: OutputHead,
    chunk_tokens: int,
    num_items: Tensor | int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shifted = seen.shifted_labels()
    scores = linear_cross_entropy(
        hidden,
        head.weight,
        shifted.to(hidden.device),
        bias=head.bias,
        chunk_tokens=chunk_tokens,
        logit_scale=head.transform.scale,
        softcap=head.transform.cap,
    )
    loss = seen.weighted_scalar(-scores.log_probs.float(), num_items)
    loss = seen.reported_like_host(loss, scores.summed_loss, num_items)
    entropy = scores.entropy.detach().sum()
    return loss, scores.is_top1.sum(), entropy, (shifted >= 0).sum()


def weight_log_probs(seen: ObservedPass, outputs: Any) -> None:
    """Scale TRL ≥ 1.13's per-token ``log_probs`` [B, T − 1] in place of a second forward."""
    log_probs = outputs.log_probs
    seen.show("log_probs", None, None)
    if seen.leaves_loss_to_host():
        seen.host_computed(-log_probs.detach().sum(), 1)
        return
    scaled = -seen.effective(-functional.pad(log_probs, (0, 1)))[:, :-1].to(log_probs.dtype)
    seen.follow_coefficient(scaled)
    outputs.log_probs = scaled
    if getattr(outputs, "loss", None) is not None:
        # Keep the output's own loss consistent for hosts that read it instead.
        plain = log_probs.detach().sum()
        ratio = torch.where(plain != 0, scaled.detach().sum() / plain, torch.ones_like(plain))
        outputs.loss = outputs.loss * ratio


def _awaiting(probe: SampleProbe) -> ObservedPass | None:
    """The probe's observed forward under way, if its loss is still to come."""
    seen = probe.current
    return seen if seen is not None and seen.awaits_loss else None


def _refuse_unknown_loss(kwargs: dict, shift_labels: Tensor | None) -> None:
    """Raise if an observed forward asks for a loss that cannot be weighted.

    Raises:
        IncompatibleError: naming the argument.
    """
    if kwargs or shift_labels is not None:
        names = sorted(kwargs) + (["shift_labels"] if shift_labels is not None else [])
        raise IncompatibleError(
            f"loss: the host passes {', '.join(names)} to the model's loss function, which "
            "per-sample weights do not know; context or sequence parallelism and custom "
            "loss arguments have to be off."
        )


def _loaded_sft_module() -> Any | None:
    import sys

    return sys.modules.get(_SFT_MODULE)
