"""GPU-hours and money of a number of FLOPs, from a table that users edit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_glm_curriculum.config import read_yaml
from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.scaling.stage_costs import GENERATION

DEFAULT_TABLE = Path(__file__).with_name("hardware.yaml")
_FIELDS = ("peak_tflops", "training", "generation", "price")


@dataclass(frozen=True)
class Device:
    """A kind of accelerator.

    Attributes:
        name: Its key in the table.
        peak_flops: FLOPs a second at best.
        training: Share of them reached in training and scoring.
        generation: Share reached in generating answers.
        price: Of one device for an hour.
        currency: Of the price.
    """

    name: str
    peak_flops: float
    training: float
    generation: float
    price: float
    currency: str

    def hours(self, parts: Mapping[str, float]) -> float:
        """Device-hours of FLOPs by part; "rollout" runs at the utilisation of generation."""
        seconds = 0.0
        for part, flops in parts.items():
            share = self.generation if part == GENERATION else self.training
            seconds += flops / (self.peak_flops * share)
        return seconds / 3600


def load_device(name: str, table: str | os.PathLike[str] | None = None) -> Device:
    """A device of a table.

    Args:
        name: Its key.
        table: YAML file; None takes the one that ships with the package.

    Raises:
        ConfigError: The file or an entry is wrong, or there is no such device.
    """
    path = Path(table) if table is not None else DEFAULT_TABLE
    tree = read_yaml(path)
    devices = tree.get("devices")
    if not isinstance(devices, dict) or not devices:
        raise ConfigError(f"{path}: needs a mapping `devices`; copy the table of the package")
    if name not in devices:
        raise ConfigError(f"device: {name!r} is not in {path}; {nearest(name, devices)}")
    return _device(name, devices[name], str(tree.get("currency", "")), path)


def _device(name: str, entry: Any, currency: str, path: Path) -> Device:
    values = {}
    for field in _FIELDS:
        value = entry.get(field) if isinstance(entry, dict) else None
        least = 0 if field == "price" else 1e-12
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise ConfigError(
                f"{path}: devices.{name}.{field} must be a number above 0, got {value!r}"
            )
        values[field] = float(value)
    for field in ("training", "generation"):
        if values[field] > 1:
            raise ConfigError(
                f"{path}: devices.{name}.{field} is a share of the peak, got {values[field]}"
            )
    peak = values.pop("peak_tflops") * 1e12
    return Device(name, peak, currency=currency, **values)
