"""The kinds of module whose per-sample gradient norms are known, and how each is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.signals.ghost_math import (
    accumulation,
    compute_dtype,
    direct_squares,
    gram_squares,
    lookup_squares,
    normalised,
    prefers_gram,
)

if TYPE_CHECKING:
    from hf_glm_curriculum.signals.ghost_sums import ExactNorms

_EPSILON_NAMES = ("variance_epsilon", "eps", "epsilon")


@dataclass
class Watched:
    """A module with trainable parameters of its own; ``measure`` adds its squared norms."""

    name: str
    module: nn.Module
    trainable: tuple[str, ...]
    """Names of the module's own trainable parameters."""
    tied: bool = False
    """Whether the weight is the token embedding's and the head's at once."""

    def measure(self, value: Tensor, gradient: Tensor, norms: ExactNorms) -> None:
        """Add the squared norms of every sample.

        Args:
            value: the module's input, [B, T, ...].
            gradient: gradient of its output, [B, T, ...].
            norms: where they are added.
        """
        raise NotImplementedError


class WatchedLinear(Watched):
    """``nn.Linear`` and GPT-2's ``Conv1D``, whose weight is the transposed one."""

    def measure(self, value: Tensor, gradient: Tensor, norms: ExactNorms) -> None:
        """Add weight and bias; a tied head also leaves its rows for the embedding."""
        x = norms.aligned(value, self.name, 1)
        g = norms.aligned(gradient, self.name, 1)
        if "bias" in self.trainable:
            norms.add_sums(g)
        if "weight" not in self.trainable:
            return
        dtype = compute_dtype(g, x)
        g = g.to(dtype)
        inputs = norms.inputs(x, dtype)
        for number, bucket, x_KLI, g_KLO in inputs.with_gradient(g):
            length, n_in, n_out = *x_KLI.shape[1:], g_KLO.shape[2]
            if prefers_gram(length, n_in, n_out, inputs.knows_gram(number)):
                squares = gram_squares(inputs.gram(number), g_KLO)
            else:
                squares = direct_squares(x_KLI, g_KLO)
            norms.add(bucket, squares)
            if self.tied:
                norms.keep_head_rows(bucket, x_KLI, g_KLO)


class WatchedLookup(Watched):
    """``nn.Embedding`` of tokens or of learned positions."""

    def measure(self, value: Tensor, gradient: Tensor, norms: ExactNorms) -> None:
        """Add the rows' norms, and what they have in common with a tied head's."""
        tokens = norms.aligned(value, self.name, 0)
        g = accumulation(norms.aligned(gradient, self.name, 1))
        padding = getattr(self.module, "padding_idx", None)
        if padding is not None:  # torch gives this row no gradient, real token or not
            g = torch.where((tokens == padding).unsqueeze(-1), 0, g)
        for bucket in norms.buckets():
            rows = norms.take(bucket, tokens), norms.take_gradient(bucket, g)
            norms.add(bucket, lookup_squares(*rows))
        if self.tied:
            norms.add_tied(g)


class WatchedScale(Watched):
    """Norm layers: a weight, and for some a bias, applied to each feature by itself."""

    epsilon: float = 0.0
    centred: bool = False

    def measure(self, value: Tensor, gradient: Tensor, norms: ExactNorms) -> None:
        """Add Σₜ g·x̂ for the weight and Σₜ g for the bias."""
        g = accumulation(gradient)
        if "weight" in self.trainable:
            scaled = g * normalised(value, self.epsilon, self.centred)
            norms.add_sums(norms.aligned(scaled, self.name, None))
        if "bias" in self.trainable:
            norms.add_sums(norms.aligned(g, self.name, None))


def watch(name: str, module: nn.Module, trainable: tuple[str, ...]) -> Watched:
    """Say how a module's norms are measured.

    Raises:
        IncompatibleError: if its kind is not known.
    """
    if _is_linear(module):
        return WatchedLinear(name, module, trainable)
    if _is_lookup(module):
        return WatchedLookup(name, module, trainable)
    scale = _as_scale(name, module, trainable)
    if scale is not None:
        return scale
    raise IncompatibleError(
        f"grad_norm: 'exact' does not know the per-sample gradient of {', '.join(trainable)} in "
        f"{name or 'the model'} ({type(module).__name__}); use grad_norm='hidden', or freeze it."
    )


def _is_linear(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return type(module).forward in (nn.Linear.forward, Conv1D.forward)


def _is_lookup(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding) or type(module).forward is not nn.Embedding.forward:
        return False
    return module.max_norm is None and not module.scale_grad_by_freq


def _as_scale(name: str, module: nn.Module, trainable: tuple[str, ...]) -> WatchedScale | None:
    """Recognise a norm layer by what it does: its own gradient on a small input is ours."""
    parameters = dict(module.named_parameters(recurse=False))
    weight = parameters.get("weight")
    known = set(parameters) <= {"weight", "bias"} and not list(module.children())
    if weight is None or weight.dim() != 1 or not known or list(module.buffers()):
        return None
    epsilon = next((getattr(module, n) for n in _EPSILON_NAMES if hasattr(module, n)), None)
    for centred in (False, True):
        found = WatchedScale(name, module, trainable)
        found.epsilon = torch.finfo(weight.dtype).eps if epsilon is None else float(epsilon)
        found.centred = centred
        if _agrees(found, weight):
            return found
    return None


def _agrees(scale: WatchedScale, weight: Tensor) -> bool:
    """Whether a weight's gradient on random numbers is Σ g·x̂."""
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(2, 3, weight.numel(), generator=generator).to(weight) for _ in range(2))
    copy = weight.detach().clone().requires_grad_()
    parameters = {n: p.detach() for n, p in scale.module.named_parameters(recurse=False)}
    try:
        with torch.enable_grad():
            output = _call(scale.module, {**parameters, "weight": copy}, x + 1)
            theirs = torch.autograd.grad(output, copy, g)[0].float()
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return False
    ours = (g.float() * normalised(x + 1, scale.epsilon, scale.centred)).sum((0, 1))
    tolerance = 1e-3 if weight.dtype in (torch.float32, torch.float64) else 0.05
    return bool((ours - theirs).norm() <= tolerance * theirs.norm())


def _call(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Any:
    return torch.func.functional_call(module, parameters, (x,))
