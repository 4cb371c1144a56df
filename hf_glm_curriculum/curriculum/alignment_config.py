"""Settings of the alignment monitor."""

from __future__ import annotations

from dataclasses import dataclass

from hf_glm_curriculum.errors import ConfigError


@dataclass
class AlignmentConfig:
    """When the monitor goes to the base source and back; see ``docs/methods/curriculum.md``."""

    threshold: float = 1.5
    """Smoothed variance above which the run goes to the base source: times its running median, or
    as it is where relative is false; infinite for never."""

    release: float | None = None
    """The same for the way back, below it; null takes 0.8 of the threshold."""

    relative: bool = True
    """Whether both are times the running median of the variance."""

    smoothing: float = 0.9
    """Share that the smoothed variance keeps of itself at each step."""

    median_steps: int = 200
    """Last steps of the course that the running median is over."""

    warmup_steps: int = 20
    """Steps of the course before the first switch."""

    min_stay: int = 20
    """Steps between two switches, counted from where the first one shows in the data."""

    max_stay: int | None = 200
    """Steps after which the run leaves the base source in any case; null for no such limit."""

    observe_only: bool = False
    """Report what the monitor would do, and do not switch."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        if not self.threshold > 0:
            raise ConfigError(f"threshold: must be above 0, got {self.threshold}.")
        if self.release is not None and not 0 < self.release <= self.threshold:
            raise ConfigError(
                f"release: must be above 0 and at most the threshold {self.threshold}, got "
                f"{self.release}."
            )
        if not 0.0 <= self.smoothing < 1.0:
            raise ConfigError(f"smoothing: must lie in [0, 1), got {self.smoothing}.")
        for name, least in (("median_steps", 1), ("warmup_steps", 1), ("min_stay", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}: must be at least {least}, got {getattr(self, name)}.")
        if self.max_stay is not None and self.max_stay < self.min_stay:
            raise ConfigError(
                f"max_stay: must not be below min_stay ({self.min_stay}), got {self.max_stay}."
            )

    @property
    def release_at(self) -> float:
        """The release level in the threshold's unit."""
        return 0.8 * self.threshold if self.release is None else self.release
