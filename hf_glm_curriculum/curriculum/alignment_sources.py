"""What an alignment monitor can switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hf_glm_curriculum.errors import ConfigError


class Sources(Protocol):
    """What the monitor switches: a ``CurriculumMixture``, or the base pool of a laned data set."""

    @property
    def source_names(self) -> list[str]:
        """The sources."""
        ...

    @property
    def ratios(self) -> dict[str, float]:
        """The shares last asked for."""
        ...

    @property
    def lag_steps(self) -> int:
        """Steps from a switch to the first one it acts on."""
        ...

    def ratios_at(self, step: int) -> dict[str, float]:
        """The shares of a step."""
        ...

    def connect(self, args: Any) -> None:
        """Learn from a trainer's arguments."""
        ...

    def reset(self) -> None:
        """Begin a run."""
        ...

    def hold(self, ratios: Mapping[str, float], step: int) -> Any:
        """Ask for shares that stay until the release."""
        ...

    def release(self, step: int) -> Any:
        """Go back to what others ask for."""
        ...

    def state_dict(self, step: int) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with it."""
        ...


def sources_of(mixture: Any, base_source: str, watches: bool) -> Sources | None:
    """What the monitor switches; None to watch only.

    Args:
        mixture: a mixture, a laned data set, or None.
        base_source: the source it goes back to.
        watches: whether there need be nothing to switch.

    Raises:
        ConfigError: if there is nothing to switch, or no such source.
    """
    if mixture is None:
        if not watches:
            raise ConfigError(
                "mixture: there is nothing to switch; pass the CurriculumMixture, or what "
                "build_lanes made with base=, or set observe_only=True."
            )
        return None
    if hasattr(mixture, "pool"):
        mixture = mixture.pool
    names = getattr(mixture, "source_names", None)
    if names is None or not hasattr(mixture, "hold"):
        raise ConfigError(
            "mixture: must be a CurriculumMixture or what build_lanes made with a base; give "
            "build_lanes base= or base_share=."
        )
    if base_source not in names:
        raise ConfigError(f"base_source: no source {base_source!r}; there are {', '.join(names)}.")
    return mixture
