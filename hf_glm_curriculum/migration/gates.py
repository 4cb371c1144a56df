"""Weights per layer and objective in one backward pass.

The loss of a row is multiplied by its objective's weight at the head. On its way down, the
gradient of that row is multiplied by w_l / w_{l+1} where it leaves block l + 1 for layer l, so
that the parameters of layer l see exactly w_l times the row's gradient. One identity at the output
of every block and one at the input of the first do that; the latter has every embedding behind it.

Letters: B rows, T positions, S samples, L blocks, O objectives (the last of them at weight 1).
Layers are numbered as in :mod:`hf_glm_curriculum.migration.schedule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import ConfigError, ModelError
from hf_glm_curriculum.migration.schedule import neutral_weights
from hf_glm_curriculum.models import decoder_layers, unwrap


def gate_factors(weights: Tensor, dtype: torch.dtype, head_dtype: torch.dtype) -> Tensor:
    """What each gate multiplies gradients by: w_l over what has been multiplied on above it.

    Each quotient is rounded to ``dtype`` and the rounded value enters the next one, so that the
    product down to a layer is off its weight by one rounding, however many layers lie above.
    Since weights are at most 1, no gradient gets larger than training without gates has it.
    Where the product has reached 0, it stays 0.

    Args:
        weights: float64 [O, L + 2] weights from the embeddings to the head.
        dtype: of the gradients.
        head_dtype: of the weight that multiplies the loss.

    Returns:
        ``dtype`` [L + 1, O]: row l is applied at the output of block l, row 0 at the first input.
    """
    product = weights[:, -1].to(head_dtype).double()
    most = torch.finfo(dtype).max
    factors = []
    for weight in weights[:, :-1].flip(1).unbind(1):
        quotient = torch.where(product > 0, weight / product.clamp(min=1e-300), 0.0)
        factor = quotient.clamp(max=most).to(dtype)
        factors.append(factor)
        product = product * factor.double()
    return torch.stack(factors[::-1])


class GatedPass:
    """One forward pass and what its backward needs; gates hold on to it."""

    def __init__(self, weights: Tensor) -> None:
        """Remember the weights of the moment, float64 [O, L + 2]; samples come later."""
        self.weights = weights
        self.neutral = bool((weights == 1).all())
        self._objective: Tensor | None = None
        self._segments: Tensor | None = None
        self._head_dtype = torch.float32
        self._factors: dict[torch.dtype, Tensor] = {}

    def assign(self, objective: Tensor, segments: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Say whose samples these are.

        Args:
            objective: [S] int64, number of each sample's objective, below O.
            segments: [B, T] int64 sample of each position where rows hold several (-1 for
                padding); None where sample and row are the same.
            dtype: of the losses.

        Returns:
            [S] weights at the head, of ``dtype``, for the token losses.
        """
        if segments is not None:
            # Padding lies in a last slot of its own, whose weight is 1.
            objective = torch.cat([objective, objective.new_full((1,), len(self.weights) - 1)])
            last = objective.numel() - 1
            segments = torch.where(segments >= 0, segments, last)
        self._objective, self._segments, self._head_dtype = objective, segments, dtype
        self._factors.clear()
        head = self.weights[:, -1].to(objective.device, dtype)[objective]
        return head if segments is None else head[:-1]

    def scale(self, gradient: Tensor, layer: int) -> Tensor:
        """Multiply the gradient at a gate, [B, T, ...], by each position's factor."""
        if self.neutral or self._objective is None:
            return gradient
        factors = self._factors.get(gradient.dtype)
        if factors is None:
            table = gate_factors(self.weights, gradient.dtype, self._head_dtype)
            factors = table.to(self._objective.device)[:, self._objective]
            self._factors[gradient.dtype] = factors
        factor = factors[layer] if self._segments is None else factors[layer][self._segments]
        shape = (*factor.shape, *[1] * (gradient.dim() - factor.dim()))
        return gradient * factor.to(gradient.device).view(shape)


class _Gate(torch.autograd.Function):
    """The identity; scales what comes back."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gated: GatedPass, layer: int) -> Tensor:
        ctx.gated, ctx.layer = gated, layer
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gated.scale(gradients[0], ctx.layer), None, None


class LayerGates:
    """Gates at the block boundaries of a decoder, from :meth:`attach` to :meth:`detach`.

    Forward values do not change. Only forward passes of the whole model in training mode count.

    Example::

        gates = LayerGates(model)
        gates.attach()
        gates.set_weights(layer_weights(p, gates.blocks, config))
        logits = model(input_ids).logits
        head = gates.assign(objective)                 # [B] weights for the rows' losses
        (row_losses(logits) * head).sum().backward()
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the blocks of ``model`` (plain, PEFT-wrapped or sharded); attaches nothing.

        Raises:
            ModelError: if the model's blocks are not found, or not each of them runs once.
        """
        self.model = model
        self._layers = _running_blocks(model)
        self._weights = self._with_other(neutral_weights(self.blocks))
        self._handles: list[Any] = []
        self._pass: GatedPass | None = None
        self._inside = False
        self._is_live: Callable[[], bool] = lambda: True
        self._is_over: Callable[[], bool] = lambda: False

    @property
    def blocks(self) -> int:
        """L, the number of transformer blocks."""
        return len(self._layers)

    @property
    def attached(self) -> bool:
        """Whether the hooks are on."""
        return bool(self._handles)

    def attach(
        self,
        is_live: Callable[[], bool] = lambda: True,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Put the hooks on.

        Args:
            is_live: asked at every training forward; while it says no, there are no gates.
            is_over: asked where a block runs outside its model; once it says yes, there are none.
        """
        self.detach()
        self._is_live, self._is_over = is_live, is_over
        # Compiled code must not look into hooks; and a copy of the model copies no such function.
        outside: Any = torch.compiler.disable
        first = self._layers[0]
        self._handles = [
            self.model.register_forward_pre_hook(outside(self._before)),
            self.model.register_forward_hook(outside(self._after), always_call=True),
            first.register_forward_pre_hook(outside(self._first_input), with_kwargs=True),
        ]
        for number, layer in enumerate(self._layers, start=1):
            hook = outside(self._output_hook(number, layer))
            self._handles.append(layer.register_forward_hook(hook))

    def detach(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._pass, self._inside = [], None, False

    def set_weights(self, weights: Tensor) -> None:
        """Set the weights of forward passes from now on.

        Args:
            weights: float64 [O, L + 2] in [0, 1]; samples of objective O have weight 1.

        Raises:
            ConfigError: if the shape does not fit, a weight is outside [0, 1], or a layer of
                weight 0 lies above one that has weight.
        """
        weights = weights.detach().double().cpu()
        if weights.dim() != 2 or weights.shape[1] != self.blocks + 2:
            raise ConfigError(
                f"weights: must be [objectives, {self.blocks + 2}] for a model of {self.blocks} "
                f"blocks, got {list(weights.shape)}."
            )
        if not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ConfigError(
                f"weights: must be at least 0 and at most 1, got {float(weights.min()):g} to "
                f"{float(weights.max()):g}."
            )
        if bool(((weights[:, 1:] == 0) & (weights[:, :-1] > 0)).any()):
            raise ConfigError(
                "weights: a layer of weight 0 stops the gradient of all layers below it; give it "
                "a small weight such as 1e-4, or 0 to those below too."
            )
        self._weights = self._with_other(weights)

    def assign(
        self,
        objective: Tensor,
        segments: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Say whose samples the last forward pass holds; see :meth:`GatedPass.assign`.

        Raises:
            ModelError: if no forward pass of the model has gone through the gates.
        """
        if self._pass is None:
            raise ModelError("gates: no training forward of the model is under way; run it first.")
        return self._pass.assign(objective, segments, dtype)

    def forget(self) -> None:
        """Forget the last forward pass; call it when its backward has run."""
        self._pass, self._inside = None, False

    @staticmethod
    def _with_other(weights: Tensor) -> Tensor:
        return torch.cat([weights, torch.ones_like(weights[:1])])

    # -- hooks -------------------------------------------------------------------------------

    def _before(self, module: nn.Module, args: Any) -> None:
        if module is not self.model:
            return  # a copy of the model took the hooks along
        self.forget()
        if module.training and torch.is_grad_enabled() and self._is_live():
            self._pass, self._inside = GatedPass(self._weights), True

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is self.model:
            self._inside = False

    def _first_input(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        gated = self._current()
        if gated is None or module is not self._layers[0]:
            return None
        if args:
            return (_gated(args[0], gated, 0), *args[1:]), kwargs
        name = "hidden_states"
        if name not in kwargs:
            raise ModelError(
                f"{type(module).__name__}: takes no hidden_states where they are looked for (first "
                "argument, or by name); its layers cannot be weighted."
            )
        return args, {**kwargs, name: _gated(kwargs[name], gated, 0)}

    def _output_hook(self, number: int, layer: nn.Module) -> Callable[..., Any]:
        def after(module: nn.Module, args: Any, output: Any) -> Any:
            gated = self._current()
            if gated is None or module is not layer:
                return None
            if isinstance(output, tuple):
                return (_gated(output[0], gated, number), *output[1:])
            return _gated(output, gated, number)

        return after

    def _current(self) -> GatedPass | None:
        """The pass a block belongs to: the model's own, or one that is being recomputed."""
        if self._pass is None or not torch.is_grad_enabled():
            return None
        if self._inside:
            return self._pass
        # Checkpointing of transformers before 5.24 runs the hooks again in the backward.
        recomputed = torch._C._current_graph_task_id() != -1
        return self._pass if recomputed and not self._is_over() else None


def _gated(hidden: Any, gated: GatedPass, layer: int) -> Any:
    if not isinstance(hidden, Tensor):
        raise ModelError(
            f"model: a block hands on a {type(hidden).__name__} where hidden states are expected; "
            "its layers cannot be weighted."
        )
    return _Gate.apply(hidden, gated, layer) if hidden.requires_grad else hidden


def _running_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that hidden states go through, one after the other.

    Raises:
        ModelError: if they are not found, or a pass may leave one out or take one twice.
    """
    layers, name = list(decoder_layers(model)), type(unwrap(model)).__name__
    config: Any = getattr(unwrap(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    # Models that carry blocks for multi-token prediction keep them behind the last one that runs.
    layers = layers[: getattr(text, "num_hidden_layers", len(layers))]
    if len({id(layer) for layer in layers}) != len(layers):
        raise ModelError(
            f"model: {name} shares one block between several layers, which then have no weight of "
            "their own; use a model whose blocks are distinct."
        )
    if getattr(text, "layerdrop", 0):
        raise ModelError(
            f"layerdrop: {name} leaves blocks out at random, and their weight with them, got "
            f"{text.layerdrop}; set it to 0."
        )
    return layers
