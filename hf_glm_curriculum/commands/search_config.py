"""Settings of `search`: what is tried, what counts, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_glm_curriculum.errors import ConfigError

COMMANDS = ("sft", "migrate", "reward", "ppo")
_KINDS = ({"choices"}, {"low", "high"}, {"low", "high", "log"}, {"low", "high", "step"})


@dataclass
class SearchConfig:
    """Settings of a search.

    Raises:
        ConfigError: Naming the field, the rule and the value.
    """

    target: str = "sft"
    """The command whose settings are searched: sft, migrate, reward or ppo."""

    base: str = ""
    """YAML file of that command; trials change the settings of `space` in it."""

    output_dir: str = "runs/search"
    """Folder of the study and its trials; calling again goes on with it."""

    space: dict[str, Any] = field(default_factory=dict)
    """Setting → {choices: [...]}, {low, high}, {low, high, log: true} or {low, high, step}."""

    objective: str = "heldout/loss"
    """What counts: a figure of metrics.jsonl (its last value), or FILE.json:path.to.figure."""

    direction: str = "minimize"
    """minimize or maximize."""

    sampler: str = "tpe"
    """tpe (Bayesian: tree-structured Parzen estimators), grid or random."""

    trials: int = 20
    """Trials in all, those of earlier calls counted; a grid ends when all of it is tried."""

    seconds: float | None = None
    """No trial begins after so long; null for no limit."""

    jobs: int = 1
    """Trials at a time, each in a process of its own."""

    prune: bool = True
    """Stop trials whose objective lies behind the median of the others at the same step."""

    prune_after: int = 4
    """Finished trials before the first may be stopped early."""

    keep: str = "best"
    """Trial folders to keep: best or all."""

    seed: int = 0
    """Of the sampler."""

    def __post_init__(self) -> None:
        """Check every field but the names of settings, which the command's config knows."""
        choices = {
            "target": COMMANDS,
            "direction": ("minimize", "maximize"),
            "sampler": ("tpe", "grid", "random"),
            "keep": ("best", "all"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{name}: must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        for name in ("trials", "jobs", "prune_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if not self.space:
            raise ConfigError("space: needs one setting at least, got none")
        for name, entry in self.space.items():
            _check_entry(name, entry, self.sampler)


def _check_entry(name: str, entry: Any, sampler: str) -> None:
    """Check what one setting may become."""
    form = "{choices: [...]}, {low, high}, {low, high, log: true} or {low, high, step}"
    if not isinstance(entry, Mapping) or set(entry) not in _KINDS:
        raise ConfigError(f"space.{name}: must be {form}, got {entry!r}")
    if "choices" in entry:
        if not isinstance(entry["choices"], list) or not entry["choices"]:
            raise ConfigError(f"space.{name}: choices must be a list that holds one at least")
        return
    for key in ("low", "high", "step"):
        value = entry.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"space.{name}: {key} must be a number, got {value!r}")
    if not entry["low"] < entry["high"]:
        raise ConfigError(
            f"space.{name}: low must be below high, got {entry['low']} and {entry['high']}"
        )
    if entry.get("log") and entry["low"] <= 0:
        raise ConfigError(f"space.{name}: a log scale needs low above 0, got {entry['low']}")
    if entry.get("step", 1) <= 0:
        raise ConfigError(f"space.{name}: step must be above 0, got {entry['step']}")
    if sampler == "grid" and "step" not in entry:
        raise ConfigError(f"space.{name}: a grid needs choices or a step, got {dict(entry)}")


def grid_values(entry: Mapping[str, Any]) -> list[Any]:
    """Every value of a setting in a grid."""
    if "choices" in entry:
        return list(entry["choices"])
    count = int((entry["high"] - entry["low"]) / entry["step"] + 1e-9) + 1
    return [entry["low"] + i * entry["step"] for i in range(count)]
