"""What a refine step does more carefully: checkpointed activations, mixed precision.

Both are switched for the forwards of a training step and off again for everything else; the
user's own settings are put back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Checkpointing:
    """Turns gradient checkpointing of a model on and off between two steps.

    A model whose user has it on already keeps it on.
    """

    def __init__(self, model: nn.Module) -> None:
        """Find the modules that can recompute their activations."""
        self._found = [m for m in model.modules() if hasattr(m, "gradient_checkpointing")]
        self.given = any(m.gradient_checkpointing for m in self._found)
        self.possible = bool(self._found) and not self.given
        self._before: list[tuple[nn.Module, dict[str, Any]]] = []

    def set(self, on: bool) -> None:
        """Switch; the numbers are the same either way."""
        if not self.possible or on == bool(self._before):
            return
        names = ("gradient_checkpointing", "_gradient_checkpointing_func")
        if on:
            for module in self._found:
                own = {name: vars(module)[name] for name in names if name in vars(module)}
                self._before.append((module, own))
                values = (True, partial(checkpoint, use_reentrant=False))
                vars(module).update(zip(names, values, strict=True))
            return
        for module, own in self._before:
            for name in names:
                vars(module).pop(name, None)
            vars(module).update(own)
        self._before = []


class Autocast:
    """Runs a model's training forwards under bfloat16 autocast while it is on."""

    def __init__(self, model: nn.Module, is_live: Callable[[], bool]) -> None:
        """Put the hooks on.

        Args:
            model: the model.
            is_live: whether a forward now is one of a training step.
        """
        self.on = False
        self._is_live = is_live
        self._entered: list[Any] = []
        self._handles = [
            model.register_forward_pre_hook(self._enter),
            # Also after a forward that raised: autocast is a state of the thread.
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._leave()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not (self.on and module.training and torch.is_grad_enabled() and self._is_live()):
            return
        device = next(module.parameters()).device.type
        context = torch.autocast(device, torch.bfloat16)
        context.__enter__()
        self._entered.append(context)

    def _leave(self, *unused: Any) -> None:
        while self._entered:
            self._entered.pop().__exit__(None, None, None)
