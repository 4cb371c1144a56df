"""Per-sample losses and gradient norms out of the forward and backward that training does anyway.

Shape letters: B rows, T positions, S samples, H hidden size.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

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
from hf_glm_curriculum.signals.microbatch import (
    EMBEDDING_SIZE,
    Microbatch,
    SampleSignals,
    segment_sum,
    spread,
)
from hf_glm_curriculum.signals.packing import check_samples_are_apart
from hf_glm_curriculum.signals.surprisal import UnigramSurprisal


class Weigher(Protocol):
    """Gives each sample of a micro-batch its loss weight, before the backward pass."""

    def __call__(self, batch: Microbatch) -> Tensor:
        """Return [S] float32 weights ≥ 0; ``batch.loss`` and ``batch.onset_loss`` are known."""
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
    ) -> None:
        """Made by :meth:`SampleProbe.subscribe`."""
        self.weigher = weigher
        self.is_live = is_live
        self.is_over = is_over
        self.wants_embedding = wants_embedding
        self.exact = exact
        self._probe = probe
        self._queue: list[Microbatch] = []

    def push(self, batch: Microbatch) -> None:
        """Queue a micro-batch; its signals are complete once its backward has run."""
        self._queue.append(batch)

    def drain(self) -> list[SampleSignals]:
        """Return the signals of every micro-batch since the last call, in order."""
        queue, self._queue = self._queue, []
        found = (batch.signals(self.exact) for batch in queue)
        return [signals for signals in found if signals is not None]

    def close(self) -> None:
        """Stop listening; the model is untouched again once the last listener has gone."""
        self._probe.unsubscribe(self)


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
        self._current: Microbatch | None = None
        self._live: list[Subscription] = []
        self._ghosts: GhostNorms | None = None
        self._hidden: Tensor | None = None
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
    ) -> Subscription:
        """Start listening; hooks go on with the first subscription.

        Args:
            weigher: gives loss weights; several weighers multiply.
            is_live: asked at every training forward; while it says no, the pass is not observed.
            is_over: asked at training forwards that nobody observes and when a probe is looked
                for; a listener that says yes has gone without closing, and is closed.
            wants_embedding: also compute the projected mean hidden state.
            exact: gradient norms over all trainable parameters instead of the hidden ones.

        Returns:
            A :class:`Subscription` whose ``drain()`` yields :class:`SampleSignals`.

        Raises:
            IncompatibleError: if ``exact`` does not know a trainable parameter's module.
        """
        subscription = Subscription(self, weigher, is_live, is_over, wants_embedding, exact)
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
        self._current = self._hidden = None
        self._live = []
        self._forget_compiled_code()

    def _forget_compiled_code(self) -> None:
        """Have the model compiled anew: dynamo does not notice that hooks came or went."""
        if self.compiled:
            torch.compiler.reset()

    # -- hooks -------------------------------------------------------------------------------

    def _before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict) -> None:
        if module is not self.model:
            return  # a copy of the model took the hooks along
        self._current = self._hidden = None
        if not (module.training and torch.is_grad_enabled()):
            return
        self._live = [s for s in self._subscriptions if s.is_live()]
        if self._ghosts is not None:
            self._ghosts.abandon()
        if not self._live:
            return self.close_ended()
        inputs = {**dict(zip(self._signature, args, strict=False)), **kwargs}
        for name in ("input_ids", "labels"):
            if inputs.get(name) is None:
                raise IncompatibleError(_NOT_SHOWN.format(name=name))
        self._current = Microbatch.from_inputs(
            inputs["input_ids"],
            inputs["labels"],
            inputs.get("attention_mask"),
            inputs.get("position_ids"),
            inputs.get("cu_seq_lens_q"),
        )
        if self._current.count > inputs["input_ids"].shape[0] and not self._knows_packing:
            check_samples_are_apart(self._causal, inputs)
            self._knows_packing = True
        if self._ghosts is not None and any(s.exact for s in self._live):
            flattened = inputs.get("cu_seq_lens_q") is not None
            self._ghosts.begin(self._current, inputs["input_ids"], flattened)

    def _after_backbone(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        batch = self._current
        if batch is None or batch.loss is not None or module is not self._backbone:
            return
        hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
        self._hidden = hidden.detach()
        if any(s.wants_embedding for s in self._live):
            batch.embedding = self._embed(hidden.detach(), batch)
        if hidden.requires_grad:
            hidden.register_hook(batch.record_hidden_gradient)
        else:
            self._say("no trainable parameter lies below the last hidden states: no grad_norm")

    def _after_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict, output: Any
    ) -> None:
        batch = self._current
        if batch is None or module is not self.model:
            return
        if batch.loss is None and getattr(output, "log_probs", None) is not None:
            weight_log_probs(self, output)
        if batch.exact is not None and self._ghosts is not None:
            self._ghosts.finish(self._hidden, self.shifted_labels())
        self._current = self._hidden = None
        if batch.loss is None:
            raise IncompatibleError(
                f"model: {type(self._causal).__name__} returned a loss that went through none of "
                "the known loss functions; use a model of the transformers library."
            )
        for subscription in self._live:
            subscription.push(batch)

    @property
    def is_attached(self) -> bool:
        """Whether anybody listens."""
        return bool(self._subscriptions)

    # -- called by the adapters --------------------------------------------------------------

    @property
    def in_flight(self) -> bool:
        """Whether an observed forward is under way, in a run that is, and has no loss yet."""
        if self._current is None or self._current.loss is not None:
            return False
        return any(subscription.is_live() for subscription in self._live)

    def owns(self, hidden: Tensor) -> bool:
        """Whether ``hidden`` are the last hidden states of the forward under way."""
        seen = self._hidden
        same = seen is not None and hidden.shape == seen.shape
        return same and hidden.data_ptr() == seen.data_ptr()  # type: ignore[union-attr]

    def shifted_labels(self) -> Tensor:
        """[B, T] int64 label each position predicts, -100 where there is none."""
        batch = self._batch()
        return torch.where(batch.target >= 0, batch.next_labels(), -100)

    def weights_for(self, token_loss: Tensor) -> Tensor:
        """Record token losses [B, T] and return the weight of each position, [B, T] float32."""
        batch = self._batch()
        with torch.no_grad():
            labels = batch.next_labels()
            self.surprisal.update(labels, batch.target >= 0)
            batch.record_losses(token_loss, self.surprisal(labels))
            batch.weight = torch.ones_like(batch.loss)  # type: ignore[arg-type]
            for subscription in self._live:
                if subscription.weigher is not None:
                    batch.weight = batch.weight * subscription.weigher(batch)
            return spread(batch.weight, batch.target)

    def weighted_scalar(self, token_loss: Tensor, num_items: Tensor | int | None) -> Tensor:
        """Reduce [B, T] token losses to the loss the host backpropagates: Σ w·ℓ / N."""
        batch = self._batch()
        weights = self.weights_for(token_loss)
        denominator = self._denominator(num_items, token_loss.device)
        loss = (token_loss * weights).sum() / denominator
        if loss.requires_grad:
            loss.register_hook(partial(_record_scalar_coefficient, batch, denominator))
        return loss

    def reported_like_host(
        self, loss: Tensor, host_sum: Tensor, num_items: Tensor | int | None
    ) -> Tensor:
        """Give a loss whose weights are all 1 the value the host would have reported.

        Under CPU autocast TRL sums token losses in bfloat16. Gradients do not depend on it; the
        reported loss does, by up to 2⁻⁸ of its value, and a neutral run should report the same.
        """
        weight = self._batch().weight
        if weight is None:
            return loss
        host = host_sum / self._denominator(num_items, loss.device)
        return loss + torch.where((weight == 1).all(), host - loss.detach(), 0.0)

    def _denominator(self, num_items: Tensor | int | None, device: torch.device) -> Tensor:
        """N: what the host passes, or the local label tokens (at least 1, for a finite zero)."""
        if num_items is None:
            return self._batch().n_tokens.sum().clamp(min=1)
        return torch.as_tensor(num_items, device=device)

    def follow_coefficient(self, scaled_log_probs: Tensor) -> None:
        """Read the host's factor on token losses off the gradient of weighted log-probs."""
        if scaled_log_probs.requires_grad:
            scaled_log_probs.register_hook(partial(_record_token_coefficient, self._batch()))

    def refuse_unknown_loss(self, kwargs: dict, shift_labels: Tensor | None) -> None:
        """Raise if an observed forward asks for a loss this probe cannot weight.

        Raises:
            IncompatibleError: naming the argument.
        """
        if self.in_flight and (kwargs or shift_labels is not None):
            names = sorted(kwargs) + (["shift_labels"] if shift_labels is not None else [])
            raise IncompatibleError(
                f"loss: the host passes {', '.join(names)} to the model's loss function, which "
                "per-sample weights do not know; context or sequence parallelism and custom "
                "loss arguments have to be off."
            )

    # -- helpers -----------------------------------------------------------------------------

    def _batch(self) -> Microbatch:
        if self._current is None:
            raise IncompatibleError("probe: no observed forward is under way.")
        return self._current

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


def _record_scalar_coefficient(batch: Microbatch, denominator: Tensor, gradient: Tensor) -> None:
    batch.coefficient = gradient.detach() / denominator


def _record_token_coefficient(batch: Microbatch, gradient: Tensor) -> None:
    used = (batch.target >= 0).to(gradient)
    padded = nn.functional.pad(gradient.detach(), (0, 1)) * used
    total = segment_sum(padded, batch.target, batch.count)
    batch.coefficient = -total / batch.n_tokens.clamp(min=1)


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
