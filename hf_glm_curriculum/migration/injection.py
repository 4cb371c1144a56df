"""Asking a mixture for the share of instructions that the schedule wants."""

from __future__ import annotations

from collections.abc import Mapping

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.migration.objectives import Mixture


def shares(base: Mapping[str, float], instruction: str, ratio: float) -> dict[str, float]:
    """The share of every source when instructions take ``ratio`` of the label tokens.

    The other sources keep their proportions: r_i = (1 − ratio)·b_i / Σ b over the others.

    Args:
        base: shares before the migration; that of ``instruction`` does not matter.
        instruction: the source that grows.
        ratio: its share, between 0 and 1.

    Raises:
        ConfigError: if no other source has a share.
    """
    others = {name: value for name, value in base.items() if name != instruction}
    total = sum(others.values())
    if total <= 0:
        raise ConfigError(
            f"ratios: some source beside {instruction!r} must have a share before the migration, "
            f"got {dict(base)}; give the mixture the ratios of pre-training."
        )
    scale = (1.0 - ratio) / total
    return {n: ratio if n == instruction else others[n] * scale for n in base}


class Injection:
    """Sets a mixture's ratios and remembers what was asked and drawn."""

    def __init__(self, mixture: Mixture, instruction: str) -> None:
        """Take the mixture's ratios of now for those of pre-training.

        Raises:
            ConfigError: if no source but the instructions has a share.
        """
        self.mixture = mixture
        self._instruction = instruction
        self.base = dict(mixture.ratios)
        shares(self.base, instruction, 0.0)
        self._drawn = self._tokens()

    def ask(self, ratio: float, step: int) -> None:
        """Ask for ``ratio`` of instructions, from optimizer step ``step`` on, if that is new."""
        wanted = shares(self.base, self._instruction, ratio)
        if wanted != dict(self.mixture.ratios):
            self.mixture.set_ratios(wanted, step=step)

    def drawn(self) -> float | None:
        """Instructions' share of the label tokens drawn since the last call; None if none were."""
        now = self._tokens()
        fresh = {name: now[name] - self._drawn.get(name, 0) for name in now}
        self._drawn = now
        total = sum(fresh.values())
        return fresh.get(self._instruction, 0) / total if total else None

    def _tokens(self) -> dict[str, int]:
        return {name: int(counts["tokens"]) for name, counts in self.mixture.drawn().items()}
