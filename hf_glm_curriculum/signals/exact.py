"""Norm of each sample's gradient over all trainable parameters, out of one ordinary backward.

Every module with trainable parameters gets an identity behind its output that keeps the module's
input. When the backward pass reaches it, input and output gradient are at hand for a moment; the
module's squared norms are added up by sample and both are let go. Under gradient checkpointing
the kept input is recomputed like any other saved tensor.

Shape letters: B rows, T positions, H hidden size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.kernels.output_head import LogitTransform
from hf_glm_curriculum.models import causal_lm
from hf_glm_curriculum.signals.ghost_head import add_fused_head
from hf_glm_curriculum.signals.ghost_modules import Watched, WatchedLinear, WatchedLookup, watch
from hf_glm_curriculum.signals.ghost_sums import ExactNorms
from hf_glm_curriculum.signals.microbatch import Microbatch


class GhostNorms:
    """Watches the modules of a model that own trainable parameters.

    Args:
        model: causal LM, plain or wrapped by PEFT or DDP.

    Raises:
        IncompatibleError: if the per-sample gradient of a trainable parameter is not known, the
            model is compiled, or modules share a parameter other than a tied embedding.
    """

    def __init__(self, model: nn.Module) -> None:
        """Put a hook on every watched module."""
        _refuse_compiled(model)
        self._causal = causal_lm(model)
        _refuse_balancing(self._causal.config)
        self._watched = _watch_all(model)
        self._head = self._find_head()
        self._transform = LogitTransform.of(self._causal.config)
        self._open = False
        self._norms: ExactNorms | None = None
        self._received: set[str] = set()
        self._handles = [
            w.module.register_forward_hook(_Hook(self, w), with_kwargs=True) for w in self._watched
        ]
        self._checks = [
            getattr(w.module, name).register_hook(_Receipt(self._received, w.name))
            for w in self._watched
            for name in w.trainable
        ]

    def remove(self) -> None:
        """Take every hook off."""
        for handle in (*self._handles, *self._checks):
            handle.remove()
        self._handles, self._checks = [], []
        self.abandon()

    def abandon(self) -> None:
        """The forward that begins now, if any, is not observed."""
        self._open, self._norms = False, None

    def begin(self, batch: Microbatch, input_ids: Tensor, flattened: bool) -> None:
        """An observed forward begins.

        Args:
            batch: gets an :class:`ExactNorms`.
            input_ids: [B, T] int64.
            flattened: whether samples are cut out of the flattened batch, across its rows.
        """
        self._norms = batch.exact = ExactNorms(batch, input_ids, self.check, flattened)
        self._open = True

    def finish(self, hidden: Tensor | None, labels: Tensor) -> None:
        """The observed forward is over; a head that was not run as a module is measured here.

        Args:
            hidden: [B, T, H] last hidden states.
            labels: [B, T] int64 label each position predicts, -100 where there is none.
        """
        self._open = False
        norms, head = self._norms, self._head
        if norms is None or head is None or hidden is None or head.name in norms.tapped:
            return
        norms.labels = labels
        weight, bias = _plain(head.module.weight), _plain(head.module.bias)
        with torch.no_grad():
            add_fused_head(
                norms,
                hidden,
                weight,
                bias,
                self._transform,
                trainable=head.trainable,
                tied=head.tied,
            )
        norms.fired.add(head.name)

    def active(self) -> ExactNorms | None:
        """The micro-batch that a module's forward belongs to, also when it is recomputed."""
        recomputing = torch._C._current_graph_task_id() != -1
        return self._norms if self._open or recomputing else None

    def check(self, norms: ExactNorms) -> None:
        """After the first observed backward: did a parameter get a gradient that went unseen?

        Raises:
            IncompatibleError: if it did, because its module was not called as a module.
        """
        if not self._checks or not norms.fired:
            return
        for handle in self._checks:
            handle.remove()
        self._checks = []
        missed = sorted(self._received - norms.fired)
        if missed:
            raise IncompatibleError(
                f"grad_norm: 'exact' saw no call of {', '.join(missed[:3])}, whose parameters are "
                "trained all the same (something multiplies with them directly); use "
                "grad_norm='hidden'."
            )

    def _find_head(self) -> WatchedLinear | None:
        weight = getattr(self._causal.get_output_embeddings(), "weight", None)
        linear = (w for w in self._watched if isinstance(w, WatchedLinear))
        return next((w for w in linear if w.module.weight is weight), None)


class _Hook:
    """Forward hook of a watched module."""

    def __init__(self, ghosts: GhostNorms, watched: Watched) -> None:
        self._ghosts = ghosts
        self._watched = watched

    def __call__(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        norms = self._ghosts.active()
        if norms is None or not (isinstance(output, Tensor) and output.requires_grad):
            return None
        value = args[0] if args else next(iter(kwargs.values()))
        rows = norms.input_ids.shape[0]
        if isinstance(self._watched, WatchedLookup) and output.shape[0] == 1 < rows:
            # Learned positions are looked up once for all rows; each row gets its own gradient.
            value, output = value.expand(rows, -1), output.expand(rows, -1, -1)
        norms.tapped.add(self._watched.name)
        return _Tap.apply(output, value.detach(), self._watched, norms)


class _Receipt:
    """Parameter hook that notes whose parameters got a gradient."""

    def __init__(self, names: set[str], name: str) -> None:
        self._names = names
        self._name = name

    def __call__(self, gradient: Tensor) -> None:
        self._names.add(self._name)


class _Tap(torch.autograd.Function):
    """Identity that hands a module's input and output gradient to its measure."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, value: Tensor, watched: Watched, norms: ExactNorms
    ) -> Any:
        ctx.save_for_backward(value)
        ctx.watched, ctx.norms, ctx.done = watched, norms, False
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        if not ctx.done:
            ctx.done = True
            ctx.norms.fire(ctx.watched.name)
            with torch.no_grad():
                ctx.watched.measure(*ctx.saved_tensors, gradient, ctx.norms)
        return gradient, None, None, None


def _watch_all(model: nn.Module) -> list[Watched]:
    found = []
    owners: dict[int, list[Watched]] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        trainable = tuple(n for n, p in own.items() if p.requires_grad)
        if not trainable:
            continue
        watched = watch(name, module, trainable)
        found.append(watched)
        for parameter in trainable:
            owners.setdefault(id(own[parameter]), []).append(watched)
    for shared in owners.values():
        if len(shared) > 1:
            _tie(shared)
    return found


def _tie(shared: list[Watched]) -> None:
    kinds = {type(w) for w in shared}
    if len(shared) != 2 or kinds != {WatchedLinear, WatchedLookup}:
        names = " and ".join(w.name for w in shared)
        raise IncompatibleError(
            f"grad_norm: 'exact' knows parameters shared by the token embedding and the head, "
            f"{names} share one too; use grad_norm='hidden'."
        )
    for watched in shared:
        watched.tied = True


def _refuse_compiled(model: nn.Module) -> None:
    for module in model.modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        if compiled or hasattr(module, "_orig_mod"):
            raise IncompatibleError(
                "torch_compile: grad_norm='exact' reads every layer's gradient in Python, which "
                "compiled models do not run; set torch_compile=False or use grad_norm='hidden'."
            )


def _refuse_balancing(config: Any) -> None:
    if getattr(config.get_text_config(), "output_router_logits", False):
        raise IncompatibleError(
            "output_router_logits: the load-balancing loss it adds belongs to no sample, so "
            "grad_norm='exact' could not tell its gradient from theirs; set it to False in the "
            "model's config or use grad_norm='hidden'."
        )


def _plain(parameter: Any) -> Any:
    """A parameter that FSDP2 has sharded, gathered."""
    gather = getattr(parameter, "full_tensor", None)
    return parameter if gather is None else gather()
