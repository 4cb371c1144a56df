"""Settings of the sample life cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_glm_curriculum.errors import ConfigError

SIGNALS = ("slope", "grad_norm", "drift")
"""Components a life vector may have."""


@dataclass
class LifespanConfig:
    """How samples are weighted, observed and judged; see ``docs/methods/lifespan.md``."""

    weighting: Literal["progress", "article", "none"] = "progress"
    """Weight formula: relative progress against the population, the article's, or none."""

    history: int = 5
    """Last losses and gradient norms kept of each sample (K)."""

    weight_floor: float = 0.1
    """Smallest weight of a sample in training, before normalisation."""

    weight_cap: float = 2.0
    """Largest weight of a sample in training, before normalisation."""

    grad_norm: Literal["hidden", "exact"] = "hidden"
    """Per-sample gradient norm: of the last hidden states, or over all trainable parameters."""

    normalize_weights: bool = True
    """Rescale so that the token-weighted mean weight of samples in training is 1."""

    observe_only: bool = False
    """Collect signals and write reports, change nothing in training."""

    signals: tuple[str, ...] = SIGNALS
    """Components of the life vector: any of slope, grad_norm, drift."""

    neighbours: Literal["minhash", "embedding", "none"] = "minhash"
    """What drift compares a sample with: rows with like tokens (found before the first step), rows
    with like embeddings (found after the first epoch), or its own last visit only."""

    neighbour_count: int = 5
    """Neighbours of a sample (k)."""

    warmup_visits: int = 3
    """Visits after which the scales of the life vector are frozen and samples may be observed."""

    life_threshold: float = 0.5
    """A life vector shorter than this (in medians of the warm-up) sends a sample to the pool."""

    suspicion_threshold: float = 2.0
    """Suspicion, in deviations above the median, that sends a sample to the pool."""

    suspicion_visits: int = 2
    """Visits before suspicion alone may send a sample to the pool."""

    text_rows: int = 200_000
    """Texts of data sets of at most so many rows are read before the first step, for answers that
    give the prompt back and rows that ask the same and answer it differently; 0 for never."""

    observed_weight: float = 0.1
    """Absolute weight of samples that are OBSERVED or MASTERED."""

    relabel_weight: float = 0.0
    """Absolute weight of samples judged RELABEL."""

    max_resamples: int = 1
    """How often one sample may be judged RESAMPLE; then it counts as MASTERED."""

    sync_every: int = 16
    """Optimizer steps between two flushes of samples that were not known in advance."""

    ledger_folder: str | None = None
    """Folder in which the ledger lies in memory-mapped files instead of in memory (on the CPU, a
    sub-folder for each callback and rank); for data sets of tens of millions of samples."""

    index_dataset: bool = True
    """Hash the training data before the first step, so that rows are known and none is unknown."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        _one_of("weighting", self.weighting, ("progress", "article", "none"))
        _one_of("grad_norm", self.grad_norm, ("hidden", "exact"))
        _one_of("neighbours", self.neighbours, ("minhash", "embedding", "none"))
        self.signals = tuple(self.signals)
        for name in self.signals:
            _one_of("signals", name, SIGNALS)
        if not self.signals:
            raise ConfigError(f"signals: needs at least one of {', '.join(SIGNALS)}, got none.")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:
                raise ConfigError(f"{name}: must be at least {least}, got {value}.")
        if not self.weight_floor <= self.weight_cap:
            raise ConfigError(
                f"weight_floor: must not exceed weight_cap, got {self.weight_floor} > "
                f"{self.weight_cap}; swap them or raise the cap."
            )


_LEAST = {
    "history": 2,
    "weight_floor": 0.0,
    "weight_cap": 0.0,
    "warmup_visits": 2,
    "life_threshold": 0.0,
    "suspicion_visits": 1,
    "text_rows": 0,
    "observed_weight": 0.0,
    "relabel_weight": 0.0,
    "max_resamples": 0,
    "sync_every": 1,
    "neighbour_count": 1,
}


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{field}: must be one of {', '.join(allowed)}, got {value!r}.")
