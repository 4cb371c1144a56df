"""One file for everything that follows and steers samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.losses.callback import CompositeLossCallback
from hf_glm_curriculum.losses.composite import CompositeLoss
from hf_glm_curriculum.losses.terms import CausalLMLoss, TemperatureLoss, ZLoss


@dataclass
class LossesConfig:
    """Weights of the terms of a composite loss; 0 leaves a term out."""

    lm: float = 1.0
    """Next-token cross-entropy on the labels, the host's own loss."""

    z: float = 0.0
    """Square of the softmax's log-denominator; 1.0e-4 is usual."""

    tempered: float = 0.0
    """Cross-entropy of logits divided by the temperature."""

    temperature: float = 2.0
    """Temperature of the tempered term."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        weights = {name: getattr(self, name) for name in ("lm", "z", "tempered")}
        for name, weight in weights.items():
            if weight < 0:
                raise ConfigError(f"{name}: must be at least 0, got {weight}.")
        if not any(weights.values()):
            raise ConfigError("lm: some term must have a weight above 0, got none; set lm: 1.")
        if not self.temperature > 0:
            raise ConfigError(f"temperature: must be positive, got {self.temperature}.")

    def callback(self) -> CompositeLossCallback:
        """The callback that trains with these terms."""
        terms: dict[str, Any] = {"lm": CausalLMLoss(), "z": ZLoss()}
        terms["tempered"] = TemperatureLoss(self.temperature)
        weights = {name: getattr(self, name) for name in terms if getattr(self, name)}
        return CompositeLossCallback(CompositeLoss({n: terms[n] for n in weights}, weights))


@dataclass
class CurriculumConfig:
    """Parts of a curriculum; a section that is left out leaves its part out."""

    lifespan: LifespanConfig | None = None
    """How samples are followed, weighted and judged."""

    lanes: LaneConfig | None = None
    """At which pace which instructions are trained."""

    monitor: AlignmentConfig | None = None
    """When the run goes back to the base source."""

    losses: LossesConfig | None = None
    """Terms of the loss."""

    base_share: float = 0.25
    """Share of the rows with the lowest scores that the monitor goes back to where it has no base
    data of their own."""

    def __post_init__(self) -> None:
        """Check that there is something to do.

        Raises:
            ConfigError: if there is no section, or the share is not one.
        """
        if not any((self.lifespan, self.lanes, self.monitor, self.losses)):
            raise ConfigError(
                "curriculum: has no section; give one of lifespan, lanes, monitor, losses."
            )
        if not 0 < self.base_share <= 1:
            raise ConfigError(f"base_share: must lie in (0, 1], got {self.base_share}.")
