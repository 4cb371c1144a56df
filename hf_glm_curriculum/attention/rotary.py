"""Keys moved nearer to the query: a rotated key rotated on, with the model's own convention.

Rotary embeddings compose: a key rotated for position p and then by Δ is the key rotated for p + Δ.
Compact positions use this on the selected blocks of a tile, so that they stand next to each other
in front of its own block, whatever text lies between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hf_glm_curriculum.errors import IncompatibleError

UNSTABLE_ROPE = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies change with the length of the text."""


@dataclass(frozen=True)
class KeyShift:
    """Rotates keys on by whole positions.

    Attributes:
        rotate: the model's ``apply_rotary_pos_emb(q, k, cos, sin)``.
        rotary: the model's rotary embedding module.
    """

    rotate: Callable[..., tuple[Tensor, Tensor]]
    rotary: nn.Module

    def __call__(self, keys: Tensor, delta: Tensor) -> Tensor:
        """Rotate keys on, in float32.

        Args:
            keys: [R, K, L, d].
            delta: int64 positions, [R, L] for all heads or [R, K, L].

        Returns:
            Like ``keys``.
        """
        exact = keys.float()
        if delta.dim() == 3:
            exact, delta = exact.flatten(0, 1).unsqueeze(1), delta.flatten(0, 1)
        cos, sin = self.rotary(exact, position_ids=delta)
        gain = float(getattr(self.rotary, "attention_scaling", 1.0))
        moved = self.rotate(exact[:, :0], exact, cos / gain, sin / gain)[1]
        return moved.view(keys.shape).to(keys.dtype)


def key_shift(backbone: nn.Module, attention: nn.Module) -> KeyShift:
    """Find the rotary embedding of a model.

    Args:
        backbone: the model's stack of layers, which owns ``rotary_emb``.
        attention: one of its attention modules; its Python module holds the function.

    Raises:
        IncompatibleError: if the model has learned positions, or frequencies that change.
    """
    rotary: Any = getattr(backbone, "rotary_emb", None)
    rotate = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    name = type(backbone).__name__
    if not isinstance(rotary, nn.Module) or rotate is None:
        raise IncompatibleError(
            f"positions: compact needs rotary positions, and {name} has none; its texts cannot be "
            "longer than its table: use positions='original'."
        )
    kind = getattr(rotary, "rope_type", "default")
    if kind in UNSTABLE_ROPE:
        raise IncompatibleError(
            f"positions: compact needs fixed rotary frequencies, and those of {name} (rope_type "
            f"{kind!r}) change with the length; use positions='original' or another rope_type."
        )
    return KeyShift(rotate, rotary)
