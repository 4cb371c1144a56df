"""What the settings of a temperature field may be."""

from __future__ import annotations

import math

from torch import Tensor

from hf_glm_curriculum.errors import ConfigError

SOURCES = ("entropy", "frequency")


def check_settings(
    low: float,
    high: float,
    source: str,
    mean: float | None,
    half_life: float,
    token_counts: Tensor | None,
) -> None:
    """Refuse settings that make no field.

    Raises:
        ConfigError: naming the setting, the rule and the value.
    """
    for name, value in {"low": low, "high": high, "half_life": half_life}.items():
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name}: must be positive and finite, got {value}.")
    if source not in SOURCES:
        raise ConfigError(f"source: must be one of {SOURCES}, got {source!r}.")
    inside = mean is None or min(low, high) < mean < max(low, high) or low == high == mean
    if not inside:
        raise ConfigError(f"mean: must lie between low and high ({low}, {high}), got {mean}.")
    if (source == "frequency") != (token_counts is not None):
        raise ConfigError(
            f"token_counts: a frequency field needs them and an entropy field has none, got "
            f"source={source!r}; use TemperatureField.fit(ids, vocab_size)."
        )
    if token_counts is not None and not (token_counts.dim() == 1 and bool(token_counts.any())):
        raise ConfigError(
            f"token_counts: must be one-dimensional with a count above 0, got shape "
            f"{tuple(token_counts.shape)}."
        )
