"""Per-sample losses and gradient norms out of the forward and backward that training does anyway.

Shape letters: B rows, T positions, S samples, H hidden size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import IncompatibleError, ModelError
from hf_glm_curriculum.models import backbone, causal_lm
from hf_glm_curriculum.signals.adapters import (
    ChunkedAdapter,
    LossFunctionAdapter,
    weight_log_probs,
)
from hf_glm_curriculum.signals.exact import GhostNorms
from hf_glm_curriculum.signals.microbatch import EMBEDDING_SIZE, Microbatch, segment_sum
from hf_glm_curriculum.signals.observed_pass import ObservedPass
from hf_glm_curriculum.signals.packing import check_samples_are_apart
from hf_glm_curriculum.signals.subscription import (
    AttachedProbe,
    Objective,
    Subscription,
    Weigher,
)
from hf_glm_curriculum.signals.surprisal import UnigramSurprisal


class SampleProbe:
    """Watches a causal LM train and reports per-sample signals.

    Hooks are installed with the first subscription and gone with the last. Only forward passes in
    training mode with gradients enabled count, so evaluation and generation are never seen, and
    the recomputation of gradient checkpointing is not seen twice.

    Example::

        probe = SampleProbe(model)
        with probe.attach() as signals:
            model(**batch).loss.backward()
            for s in signals.drain():
                print(s.ids, s.loss, s.grad_norm)
    """

    def __init__(self, model: nn.Module) -> None:
        """Prepare a probe for ``model`` (plain, PEFT-wrapped or DDP-wrapped); attaches nothing.

        Raises:
            ModelError: if the model has no decoder with a language-model head.
            IncompatibleError: for encoder-decoder models and prompt-learning adapters.
        """
        _refuse_unsupported(model)
        self.model = model
        self._causal = causal_lm(model)
        self._backbone = backbone(model)
        self._signature = _input_names(self._causal)
        self._subscriptions: list[Subscription] = []
        self._handles: list[Any] = []
        self._loss_adapter = LossFunctionAdapter(self, self._causal)
        self.current: ObservedPass | None = None
        """The observed forward under way."""
        self._ghosts: GhostNorms | None = None
        self._projection: Tensor | None = None
        self._said: set[str] = set()
        self._knows_packing = False
        self.compiled = _is_compiled(model)
        """Whether compiled code runs the model; set it where the trainer does the compiling."""
        vocab = int(self._causal.get_input_embeddings().weight.shape[0])  # pyright: ignore
        self.surprisal = UnigramSurprisal(vocab, next(model.parameters()).device)

    # -- listening ---------------------------------------------------------------------------

    def subscribe(
        self,
        weigher: Weigher | None = None,
        *,
        is_live: Callable[[], bool] = lambda: True,
        is_over: Callable[[], bool] = lambda: False,
        wants_embedding: bool = False,
        exact: bool = False,
        objective: Objective | None = None,
    ) -> Subscription:
        """Start listening; hooks go on with the first subscription.

        Args:
            weigher: gives loss weights; several weighers multiply.
            is_live: asked at every training forward; while it says no, the pass is not observed.
            is_over: asked at training forwards that nobody observes and when a probe is looked
                for; a listener that says yes has gone without closing, and is closed.
            wants_embedding: also compute the projected mean hidden state.
            exact: gradient norms over all trainable parameters instead of the hidden ones.
            objective: chooses the token losses that are trained; its subscription yields no
                signals.

        Returns:
            A :class:`Subscription` whose ``drain()`` yields :class:`SampleSignals`.

        Raises:
            IncompatibleError: if ``exact`` does not know a trainable parameter's module, or
                somebody else gives the probe its objective.
        """
        if objective is not None and any(s.objective for s in self._subscriptions):
            raise IncompatibleError(
                "objective: this model's loss is composed by another callback already; put all "
                "terms into one CompositeLoss."
            )
        subscription = Subscription(
            self, weigher, is_live, is_over, wants_embedding, exact, objective
        )
        if exact and self._ghosts is None:
            self._ghosts = GhostNorms(self.model)
        if not self._subscriptions:
            self._install()
        self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a listener, and the hooks with the last one."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if self._ghosts is not None and not any(s.exact for s in self._subscriptions):
            self._ghosts.remove()
            self._ghosts = None
        if not self._subscriptions:
            self._remove()

    def attach(self, weigher: Weigher | None = None, *, exact: bool = False) -> AttachedProbe:
        """Listen without a trainer: a context manager whose ``drain()`` yields signals."""
        return AttachedProbe(self.subscribe(weigher, exact=exact))

    def detach(self) -> None:
        """Drop every listener and leave the model as it was."""
        for subscription in list(self._subscriptions):
            self.unsubscribe(subscription)

    def close_ended(self) -> None:
        """Drop the listeners whose run died, and the hooks with the last one."""
        for subscription in list(self._subscriptions):
            if subscription.is_over():
                subscription.close()

    def _install(self) -> None:
        self._loss_adapter.attach()
        ChunkedAdapter.attach(self)
        # A compiled model calls its hooks from traced code, which must not look into ours.
        hooks: tuple[Any, Any, Any]
        hooks = (self._before_forward, self._after_forward, self._after_backbone)
        before, after, below = (_outside_compiled_code(hook) for hook in hooks)
        self._handles = [
            self.model.register_forward_pre_hook(before, with_kwargs=True),
            self.model.register_forward_hook(after, with_kwargs=True),
            self._backbone.register_forward_hook(below),
        ]
        self._forget_compiled_code()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._loss_adapter.detach()
        ChunkedAdapter.detach(self)
        self.current = None
        self._forget_compiled_code()

    def _forget_compiled_code(self) -> None:
        """Have the model compiled anew: dynamo does not notice that hooks came or went."""
        if self.compiled:
            torch.compiler.reset()

    # -- hooks -------------------------------------------------------------------------------

    def _before_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict
    ) -> tuple[tuple[Any, ...], dict] | None:
        if module is not self.model:
            return None  # a copy of the model took the hooks along
        self.current = None
        columns = {name: kwargs.pop(name) for name in self._extra_columns() if name in kwargs}
        changed = (args, kwargs) if columns else None
        if not (module.training and torch.is_grad_enabled()):
            return changed
        live = [s for s in self._subscriptions if s.is_live()]
        if self._ghosts is not None:
            self._ghosts.abandon()
        if not live:
            self.close_ended()
            return changed
        inputs = {**dict(zip(self._signature, args, strict=False)), **kwargs}
        self._begin_pass(inputs, columns, live)
        return changed

    def _begin_pass(self, inputs: dict, columns: dict, live: list[Subscription]) -> None:
        for name in ("input_ids", "labels"):
            if inputs.get(name) is None:
                raise IncompatibleError(_NOT_SHOWN.format(name=name))
        batch = Microbatch.from_inputs(
            inputs["input_ids"],
            inputs["labels"],
            inputs.get("attention_mask"),
            inputs.get("position_ids"),
            inputs.get("cu_seq_lens_q"),
        )
        self.current = ObservedPass(batch, inputs, columns, live, self.surprisal, self._causal)
        packed = batch.count > inputs["input_ids"].shape[0]
        if packed and self.current.wants_samples and not self._knows_packing:
            check_samples_are_apart(self._causal, inputs)
            self._knows_packing = True
        if self._ghosts is not None and self.current.wants_exact:
            _refuse_exact_norms_of(self.current.objective)
            flattened = inputs.get("cu_seq_lens_q") is not None
            self._ghosts.begin(batch, inputs["input_ids"], flattened)

    def _extra_columns(self) -> list[str]:
        return [c for s in self._subscriptions if s.objective for c in s.objective.columns()]

    def _after_backbone(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen = self.current
        if seen is None or seen.settled or module is not self._backbone:
            return
        hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
        # Their graph leads through other listeners' hooks back here: it is kept for an objective
        # alone, or a run that dies in mid-forward would never be let go of.
        keeps_graph = seen.objective is not None and not seen.wants_exact
        seen.hidden = hidden if keeps_graph else hidden.detach()
        if any(s.wants_embedding for s in seen.live):
            seen.batch.embedding = self._embed(hidden.detach(), seen.batch)
        if not any(s.observes for s in seen.live):
            return
        if hidden.requires_grad:
            hidden.register_hook(seen.batch.record_hidden_gradient)
        else:
            self._say("no trainable parameter lies below the last hidden states: no grad_norm")

    def _after_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict, output: Any
    ) -> None:
        seen = self.current
        if seen is None or module is not self.model:
            return
        if not seen.settled and getattr(output, "log_probs", None) is not None:
            weight_log_probs(seen, output)
        if seen.batch.exact is not None and self._ghosts is not None:
            hidden = None if seen.hidden is None else seen.hidden.detach()
            self._ghosts.finish(hidden, seen.shifted_labels())
        self.current = None
        if not seen.settled:
            raise IncompatibleError(
                f"model: {type(self._causal).__name__} returned a loss that went through none of "
                "the known loss functions; use a model of the transformers library."
            )
        for subscription in seen.live:
            subscription.push(seen.batch)

    @property
    def is_attached(self) -> bool:
        """Whether anybody listens."""
        return bool(self._subscriptions)

    # -- helpers -----------------------------------------------------------------------------

    def _embed(self, hidden: Tensor, batch: Microbatch) -> Tensor:
        segments = batch.segments.index
        mean = segment_sum(hidden, segments, batch.count)
        if self._projection is None or self._projection.shape[0] != mean.shape[-1]:
            generator = torch.Generator().manual_seed(0)
            shape = (mean.shape[-1], EMBEDDING_SIZE)
            self._projection = torch.randn(shape, generator=generator).to(mean)
        return nn.functional.normalize(mean @ self._projection, dim=-1)

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            warnings.warn(f"hf_glm_curriculum: {message}.", stacklevel=2)


def probe_for(model: nn.Module) -> SampleProbe:
    """Return the probe already attached to ``model``, or a new one.

    All callbacks of a run share one probe, so that ids and token losses are computed once. The
    probe is found through its own hook: a model without listeners carries no trace of it.
    """
    for hook in model._forward_pre_hooks.values():
        owner = getattr(inspect.unwrap(hook), "__self__", None)
        if isinstance(owner, SampleProbe) and owner.model is model:
            owner.close_ended()
            return owner if owner.is_attached else SampleProbe(model)
    return SampleProbe(model)


_NOT_SHOWN = (
    "trainer: per-sample losses need a model called with input_ids and labels, and this host shows "
    "it no {name}. Either the batches have none (add a labels column, or a collator that makes "
    "one), or the loss is computed elsewhere (label_smoothing_factor, compute_loss_func, "
    "inputs_embeds, a preference trainer): switch that off, or use Trainer or SFTTrainer with "
    "their own loss."
)


def _refuse_exact_norms_of(objective: Objective | None) -> None:
    if objective is not None and not objective.neutral():
        raise IncompatibleError(
            "grad_norm: 'exact' knows the gradient of next-token cross-entropy, and a composite "
            "loss trains on another; use grad_norm='hidden'."
        )


def _is_compiled(model: nn.Module) -> bool:
    compiled = (getattr(m, "_compiled_call_impl", None) is not None for m in model.modules())
    return hasattr(model, "_orig_mod") or any(compiled)


def _outside_compiled_code(hook: Any) -> Any:
    return torch.compiler.disable(hook)


def _input_names(model: nn.Module) -> list[str]:
    return list(inspect.signature(type(model).forward).parameters)[1:]


def _refuse_unsupported(model: nn.Module) -> None:
    config = getattr(causal_lm(model), "config", None)
    if config is None:
        raise ModelError(
            f"model: expected a transformers causal LM, got {type(model).__name__}; load it with "
            "AutoModelForCausalLM."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise IncompatibleError(
            f"model: {type(model).__name__} is an encoder-decoder; per-sample signals know "
            "decoder-only models."
        )
    for adapter in getattr(model, "peft_config", {}).values():
        if getattr(adapter, "is_prompt_learning", False):
            raise IncompatibleError(
                f"peft: {adapter.peft_type} adds virtual tokens that belong to no sample; use "
                "LoRA or another adapter without virtual tokens."
            )
