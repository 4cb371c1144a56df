"""Settings of the two lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hf_glm_curriculum.errors import ConfigError

LANES = ("fast", "refine")
"""Names of the lanes, in the order of their numbers."""

FAST, REFINE = 0, 1
BASE = -1
"""Lane number of rows and windows of the base pool, which belong to neither lane."""


@dataclass
class LaneConfig:
    """Which instructions are trained at which pace; see ``docs/methods/curriculum.md``."""

    threshold: float | None = None
    """Score below which a row goes to the fast lane; null takes the quantile."""

    quantile: float = 0.5
    """Share of the rows in the fast lane where there is no threshold; 0 puts all in the refine
    lane, 1 all in the fast lane."""

    fast_batch_factor: int = 2
    """Rows of a fast step over those of a plain one."""

    fast_lr_factor: float = 1.5
    """What the learning rate of a fast step is multiplied with."""

    refine_checkpointing: bool = True
    """Recompute activations in the backward pass of refine steps; the numbers stay the same."""

    refine_autocast: bool | str = True
    """Mixed precision of refine steps: true or bfloat16 (which changes their rounding), or false;
    left to the trainer where it trains in mixed precision anyway."""

    schedule: Literal["mixed", "easy_first", "alternating"] = "mixed"
    """Order of the lanes' steps in an epoch: by lot, all fast ones first, or evenly in turn."""

    shuffle: bool = True
    """Draw each lane's rows in a new order every epoch; false keeps the data set's order."""

    seed: int = 0
    """Seed of both orders."""

    observe_only: bool = False
    """Report each lane's loss, change nothing in training."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        if not 0.0 <= self.quantile <= 1.0:
            raise ConfigError(f"quantile: must lie in [0, 1], got {self.quantile}.")
        if self.fast_batch_factor < 1:
            raise ConfigError(
                f"fast_batch_factor: must be at least 1, got {self.fast_batch_factor}."
            )
        if not self.fast_lr_factor > 0:
            raise ConfigError(f"fast_lr_factor: must be above 0, got {self.fast_lr_factor}.")
        if self.schedule not in ("mixed", "easy_first", "alternating"):
            raise ConfigError(
                f"schedule: must be mixed, easy_first or alternating, got {self.schedule!r}."
            )
        self.refine_autocast = _autocast(self.refine_autocast)

    @classmethod
    def plain(cls, seed: int = 0) -> LaneConfig:
        """One lane at the trainer's own pace."""
        return cls(quantile=0.0, refine_checkpointing=False, refine_autocast=False, seed=seed)


def _autocast(given: Any) -> bool:
    """Whether refine steps run under bfloat16 autocast.

    Raises:
        ConfigError: for another type.
    """
    if given in (True, False):
        return bool(given)
    name = str(given).removeprefix("torch.")
    if name not in ("bfloat16", "bf16"):
        raise ConfigError(
            f"refine_autocast: must be true, false or bfloat16, got {name!r}; float16 needs the "
            "trainer's loss scaling: set fp16=True in its arguments, for all steps."
        )
    return True
