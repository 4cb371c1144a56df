"""Settings of the objective migration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hf_glm_curriculum.errors import ConfigError


@dataclass
class MigrationConfig:
    """When instructions come in and how fast each layer follows; see ``docs/methods/migration.md``.

    All steps are optimizer steps.
    """

    window: float = 0.1
    """Share of the pre-training steps, counted from their end, in which the objective migrates."""

    pretrain_steps: int | None = None
    """Steps of the pre-training phase; what is left of the run is instruction tuning. Without it
    the whole run is pre-training, and the window ends with the run."""

    start_ratio: float = 0.005
    """Share of instructions among the label tokens drawn, at the start of the window."""

    increment: float = 0.003
    """What the share grows by, every ``increment_every`` steps of the window."""

    increment_every: float | None = None
    """Steps between two increments; a hundredth of the window where it is not given."""

    sft_ratio: float = 1.0
    """Share of instructions among the label tokens once the run is instruction tuning."""

    post_ramp: int | None = None
    """Steps after the window in which the share grows, linearly, to ``sft_ratio``. Where it is not
    given, as many as give pre-training back what the window took from it (or what is left of the
    run), so that a run holds as much of both as one that switches at ``pretrain_steps``."""

    gamma_bottom: float = 0.3
    """Exponent of the progress at the embeddings; the larger, the later they follow."""

    gamma_top: float = 0.1
    """Exponent of the progress at the head; the smaller, the earlier it follows."""

    pretrain_floor: float = 0.2
    """Weight of the pre-training objective, in every layer, at the end of the window."""

    instruction_floor: float = 1e-4
    """Least weight of the instruction objective in any layer."""

    gates: bool = True
    """Weight the objectives layer by layer; without it the mixture alone migrates (replay)."""

    observe_only: bool = False
    """Tell the objectives apart and report on them, change nothing in training."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        for name, (low, high, open_low) in _RANGES.items():
            _in_range(name, getattr(self, name), low, high, open_low)
        if self.pretrain_steps is not None:
            _in_range("pretrain_steps", self.pretrain_steps, 1, math.inf, False)
        if self.increment_every is not None:
            _in_range("increment_every", self.increment_every, 0, math.inf, True)
        if self.post_ramp is not None:
            _in_range("post_ramp", self.post_ramp, 0, math.inf, False)
        if self.start_ratio > self.sft_ratio:
            raise ConfigError(
                f"start_ratio: must not exceed sft_ratio, got {self.start_ratio} > "
                f"{self.sft_ratio}; the share of instructions only grows."
            )


# field → (least, most, whether the least itself is excluded)
_RANGES: dict[str, tuple[float, float, bool]] = {
    "window": (0.0, 1.0, True),
    "start_ratio": (0.0, 1.0, False),
    "increment": (0.0, 1.0, False),
    "sft_ratio": (0.0, 1.0, True),
    "gamma_bottom": (0.0, math.inf, True),
    "gamma_top": (0.0, math.inf, True),
    "pretrain_floor": (0.0, 1.0, False),
    "instruction_floor": (0.0, 1.0, False),
}


def _in_range(name: str, value: float, low: float, high: float, open_low: bool) -> None:
    if math.isfinite(value) and low <= value <= high and not (open_low and value == low):
        return
    least = f"above {low:g}" if open_low else f"at least {low:g}"
    most = "" if math.isinf(high) else f" and at most {high:g}"
    raise ConfigError(f"{name}: must be {least}{most}, got {value}.")
