"""PPO with structured rewards, on TRL's last PPOTrainer (extra ``[ppo]``, TRL 1.9 to 1.12)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_glm_curriculum.ppo.config import StructuredPPOConfig as StructuredPPOConfig
    from hf_glm_curriculum.ppo.trainer import StructuredPPOTrainer as StructuredPPOTrainer

_PUBLIC = {"StructuredPPOConfig": "config", "StructuredPPOTrainer": "trainer"}
__all__ = sorted(_PUBLIC)  # pyright: ignore[reportUnsupportedDunderAll]

import_module(f"{__name__}.host").require_ppo()


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
