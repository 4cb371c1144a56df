"""Shaping: scores on one scale, and penalties for what a policy does instead of answering."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.rewards.config import check_dimensions
from hf_glm_curriculum.rewards.dimensions import DIMENSIONS, check_scores, open_mask
from hf_glm_curriculum.rewards.normalise import RunningMoments
from hf_glm_curriculum.rewards.readings import TextReadings, read_responses
from hf_glm_curriculum.text.words import word_count


@dataclass(frozen=True)
class ShaperConfig:
    """Settings of `RewardShaper`. Penalties are in standard deviations where scores are normalised.

    Raises:
        ConfigError: naming the field, the rule and the value.
    """

    normalize: bool = True
    """Subtract each dimension's running mean and divide by its running standard deviation."""

    window: int = 10_000
    """Rows over which mean and deviation run."""

    least_std: float = 0.01
    """Deviation below which a dimension is not scaled up further: such differences are noise."""

    clip: float = 5.0
    """Largest absolute score before penalties; infinity for none."""

    repetition_penalty: float = 1.0
    """Off a response that is nothing but repetition; in proportion above what is allowed."""

    repetition_ngram: int = 3
    """Size of the n-grams (words, Han characters) whose repetition counts."""

    repetition_allowed: float = 0.2
    """Share of repeated n-grams that costs nothing: real answers repeat themselves too."""

    length_band: tuple[float, float] | None = None
    """Least and most length that costs nothing."""

    length_unit: Literal["words", "tokens"] = "words"
    """What lengths are counted in: words and Han characters, or the policy's tokens."""

    length_penalty: float = 1.0
    """Off a response half below or half above the band; in proportion, up to twice as much."""

    refusal_penalty: float = 1.0
    """Off a refusal that the prompt does not call for."""

    template_penalty: float = 0.2
    """Off a boilerplate opening or closing."""

    missing_eos_penalty: float = 1.0
    """Off a response that generation cut off."""

    empty_penalty: float = 2.0
    """Off a response without a visible character."""

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("window", "repetition_ngram"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        for name in ("least_std", "clip"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: must be above 0, got {getattr(self, name)}")
        for name in _PENALTIES:
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name}: must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.repetition_allowed < 1:
            raise ConfigError(
                f"repetition_allowed: must lie in [0, 1), got {self.repetition_allowed}"
            )
        if self.length_unit not in ("words", "tokens"):
            raise ConfigError(f"length_unit: must be words or tokens, got {self.length_unit!r}")
        band = self.length_band
        if band is not None and not 0 <= band[0] <= band[1]:
            raise ConfigError(f"length_band: must be 0 <= least <= most, got {tuple(band)}")


_PENALTIES = (
    "repetition_penalty",
    "length_penalty",
    "refusal_penalty",
    "template_penalty",
    "missing_eos_penalty",
    "empty_penalty",
)


@dataclass(frozen=True)
class ShapedRewards:
    """What shaping made of a batch."""

    scores: Tensor
    """[B, D]: normalised and clipped, less the row's penalty."""

    normalised: Tensor
    """[B, D]: the same without the penalties."""

    penalties: dict[str, Tensor]
    """[B] for each kind of penalty, at least 0."""

    total: Tensor
    """[B]: the sum of a row's penalties."""

    readings: TextReadings
    """What was read off the texts."""

    def metrics(self) -> dict[str, float]:
        """Mean readings of the texts and mean penalty of each kind."""
        if not len(self.total):
            return {}
        means = {f"penalty_{name}": float(p.mean()) for name, p in self.penalties.items()}
        return self.readings.metrics() | means


class RewardShaper:
    """shaped_d = clip((s_d − μ_d)/σ_d, ±c) − Σ penalties, for every dimension d of a row.

    μ and σ run over open scores. A penalty goes off every dimension, so that it reaches the policy
    whichever is open, and is applied after the clip, so that no score is high enough to hide it.

    Args:
        config: settings; defaults otherwise.
        dimensions: names of the columns.
        **settings: single settings in place of the config's.

    Raises:
        ConfigError: if a setting is unknown or out of range.
    """

    def __init__(
        self,
        config: ShaperConfig | None = None,
        dimensions: Sequence[str] = DIMENSIONS,
        **settings: Any,
    ) -> None:
        self.config = _overridden(config or ShaperConfig(), settings)
        self.dimensions = check_dimensions(dimensions)
        self.moments = RunningMoments(len(self.dimensions), self.config.window)

    def observe(self, scores: Tensor, mask: Tensor | None = None) -> None:
        """Take a batch's open scores into the running mean and deviation.

        Args:
            scores: [B, D], of all ranks where there are several; NaN is null.
            mask: [B, D], true where open.

        Raises:
            DataError: if the shapes do not fit or a score is infinite.
        """
        check_scores(scores, self.dimensions, bounded=False)
        self.moments.update(scores, open_mask(scores, mask))

    def normalised(self, scores: Tensor) -> Tensor:
        """The scores normalised and clipped, without penalties, [B, D]."""
        if self.config.normalize:
            scores = self.moments.standardise(scores, self.config.least_std)
        return scores.clamp(-self.config.clip, self.config.clip)

    def penalties(self, readings: TextReadings) -> dict[str, Tensor]:
        """The penalty of every response by kind, float64 [B] each."""
        config = self.config
        allowed = config.repetition_allowed
        excess = (readings.repetition - allowed).clamp_min(0.0) / (1.0 - allowed)
        return {
            "repetition": config.repetition_penalty * excess,
            "length": config.length_penalty * _outside(readings.length, config.length_band),
            "refusal": config.refusal_penalty * readings.refusal,
            "template": config.template_penalty * readings.template,
            "missing_eos": config.missing_eos_penalty * readings.unfinished,
            "empty": config.empty_penalty * readings.empty,
        }

    def shape(
        self,
        scores: Tensor,
        responses: Sequence[str],
        mask: Tensor | None = None,
        *,
        n_tokens: Sequence[int] | Tensor | None = None,
        ended: Sequence[bool] | Tensor | None = None,
        refusal_ok: Sequence[bool] | Tensor | None = None,
        update: bool = True,
    ) -> ShapedRewards:
        """Shape a batch.

        Args:
            scores: [B, D]; NaN is null and stays NaN.
            responses: B texts.
            mask: [B, D], true where open; only open scores move the running moments.
            n_tokens: [B], lengths in tokens; used where `length_unit` says so.
            ended: [B], whether generation came to the end-of-sequence token.
            refusal_ok: [B], whether the prompt calls for a refusal.
            update: whether the batch moves the running moments (not in evaluation, and not where
                `observe` has taken it in with the other ranks').

        Raises:
            DataError: if shapes do not fit.
        """
        check_scores(scores, self.dimensions, bounded=False)
        if len(responses) != scores.shape[0]:
            raise DataError(
                f"responses: needs one text for each of {scores.shape[0]} rows of scores, got "
                f"{len(responses)}"
            )
        if update:
            self.observe(scores, mask)
        readings = read_responses(
            responses,
            ngram=self.config.repetition_ngram,
            n_tokens=self._lengths(n_tokens),
            ended=ended,
            refusal_ok=refusal_ok,
        )
        found = {name: p.to(scores) for name, p in self.penalties(readings).items()}
        total = torch.stack(list(found.values())).sum(dim=0)
        plain = self.normalised(scores)
        return ShapedRewards(plain - total[:, None], plain, found, total, readings)

    def _lengths(self, n_tokens: Sequence[int] | Tensor | None) -> Sequence[int] | Tensor | None:
        if self.config.length_unit == "words":
            return None
        if n_tokens is None:
            raise DataError("n_tokens: length_unit is tokens; give each response's, or use words")
        return n_tokens

    def state_dict(self) -> dict[str, Any]:
        """The running moments, as plain values."""
        return {"dimensions": list(self.dimensions), "moments": self.moments.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state of `state_dict`.

        Raises:
            StateError: if it is of other dimensions.
        """
        if list(state["dimensions"]) != list(self.dimensions):
            raise StateError(
                f"shaper: state is of the dimensions {', '.join(state['dimensions'])}, these are "
                f"{', '.join(self.dimensions)}; resume with the dimensions the run began with"
            )
        self.moments.load_state_dict(state["moments"])


def length_band(
    responses: Sequence[str], low: float = 0.05, high: float = 0.95
) -> tuple[float, float]:
    """A band of lengths for `ShaperConfig`: two quantiles of the lengths of good responses.

    Args:
        responses: such as the answers of the SFT data, in words and Han characters.
        low: quantile of the least length.
        high: quantile of the greatest.

    Raises:
        DataError: if there is no response.
        ConfigError: if the quantiles are out of order.
    """
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"low, high: must be 0 <= low <= high <= 1, got {low} and {high}")
    if not responses:
        raise DataError("responses: a length band needs at least one response, got none")
    lengths = torch.tensor([float(word_count(response)) for response in responses])
    return float(lengths.quantile(low)), float(lengths.quantile(high))


def _outside(length: Tensor, band: tuple[float, float] | None) -> Tensor:
    """How far outside the band, in halves of the nearer bound: 0 inside, 1 half below or above."""
    if band is None:
        return torch.zeros_like(length)
    low, high = band
    below = (low - length).clamp_min(0.0) / max(low / 2, 1.0)
    above = (length - high).clamp_min(0.0) / max(high / 2, 1.0)
    return (below + above).clamp_max(2.0)


def _overridden(config: ShaperConfig, settings: Mapping[str, Any]) -> ShaperConfig:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    for name in settings.keys() - values.keys():
        close = difflib.get_close_matches(name, values, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(values)}"
        raise ConfigError(f"{name}: no such setting of RewardShaper; {hint}")
    return ShaperConfig(**{**values, **settings})
