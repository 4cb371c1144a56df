"""A temperature for every position: cool where the next token is predictable, warm where rare.

Shape letters: V vocabulary size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.curriculum.temperature_ranks import RunningRanks, exponent_for, rarity
from hf_glm_curriculum.curriculum.temperature_readings import (
    batches,
    count_tokens,
    entropy,
    expected_value,
    read_positions,
)
from hf_glm_curriculum.curriculum.temperature_settings import check_settings
from hf_glm_curriculum.errors import IncompatibleError, StateError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.storage import load_tensors, save_tensors

MOST_ENTROPY = 16.0
"""Nats; log of nine million tokens."""
_ONLINE_PRIOR = 64.0


class TemperatureField:
    """Temperature per position, from ``low`` (most predictable) to ``high`` (rarest).

    A position's reading x comes from its next-token distribution p alone, never from the token
    that follows: its entropy (``source="entropy"``), or the rarity of tokens expected under p
    (``"frequency"``). Its temperature is low + (high − low)·u^γ, with u in [0, 1] the rank of x
    among the readings counted so far (:meth:`calibrate`, or ``online=True``). With nothing
    counted, u = 1 − exp(−entropy), or the expected rarity itself. (Article 1, 2.2.)

    Where the token is known, as in a loss, :meth:`of_tokens` gives its own rarity's temperature.

    Args:
        low: temperature at rank 0, > 0.
        high: temperature at rank 1, > 0; below ``low`` the field is the opposite one.
        source: "entropy" or "frequency".
        mean: wanted mean temperature over the calibration text, or over the counted corpus for
            :meth:`of_tokens`; None leaves γ = 1, whose mean over a calibration text is the middle.
        token_counts: [V] how often each token occurs; for "frequency", see :meth:`fit`.
        online: whether generation and training count the readings they see.
        half_life: readings after which an older one counts half, while online.

    Attributes:
        exponent: γ of ranks.

    Raises:
        ConfigError: for values that make no field.
    """

    def __init__(
        self,
        low: float = 0.7,
        high: float = 1.3,
        *,
        source: str = "entropy",
        mean: float | None = None,
        token_counts: Tensor | None = None,
        online: bool = False,
        half_life: float = 10_000,
    ) -> None:
        """Check the settings and lay out the ranks."""
        check_settings(low, high, source, mean, half_life, token_counts)
        self.low, self.high, self.source, self.mean = float(low), float(high), source, mean
        self.online, self.half_life = online, half_life
        self.exponent = 1.0
        if mean is not None and low != high:
            # Ranks of a calibration text are uniform: ∫ u^γ du = 1 / (1 + γ).
            self.exponent = (high - mean) / (mean - low)
        self.token_counts = token_counts
        self._shares = None if token_counts is None else self._token_shares(token_counts)
        prior = _ONLINE_PRIOR if online else 0.0
        # Half of a model's positions have less than a nat or two: the root gives them more bins.
        entropic = source == "entropy"
        self.ranks = RunningRanks(*((MOST_ENTROPY, 0.5) if entropic else (1.0, 1.0)), prior)

    # -- made from data ----------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        ids: Iterable[Any],
        vocab_size: int,
        *,
        show_progress: bool | None = None,
        **settings: Any,
    ) -> TemperatureField:
        """A frequency field from the tokens of a corpus, read as a stream.

        Args:
            ids: rows of token ids, rows with ``input_ids`` (a data set), or single ids.
            vocab_size: V, the number of the model's logits.
            show_progress: see ``progress``; None shows a bar on a terminal only.
            settings: further arguments of the class.

        Raises:
            DataError: if there is no token, or an id is not below ``vocab_size``.
        """
        counts = torch.from_numpy(count_tokens(ids, vocab_size, show_progress))
        return cls(source="frequency", token_counts=counts, **settings)

    def calibrate(
        self,
        model: Any,
        rows: Iterable[Any],
        *,
        batch_size: int = 8,
        show_progress: bool | None = None,
    ) -> TemperatureField:
        """Count a model's readings on a text, so that ranks are those of that text.

        Args:
            model: a causal LM, in whatever mode.
            rows: rows of token ids, or with ``input_ids`` and perhaps ``labels``, of which the
                positions that predict a label count.
            batch_size: rows read together.
            show_progress: see ``progress``.

        Returns:
            This field.
        """
        total = len(rows) if hasattr(rows, "__len__") else None  # pyright: ignore[reportArgumentType]
        with progress(total, "Reading temperatures", show_progress) as bar:
            for ids, mask, used in batches(rows, batch_size):
                readings = read_positions(model, ids, mask, self.read)
                self.ranks.add(readings, used.to(readings))
                bar.advance(len(ids))
        self.ranks.commit()
        return self

    # -- temperatures ------------------------------------------------------------------------

    @property
    def constant(self) -> bool:
        """Whether every position has the same temperature."""
        return self.low == self.high

    @property
    def neutral(self) -> bool:
        """Whether every temperature is 1."""
        return self.low == self.high == 1.0

    def read(self, logits: Tensor) -> Tensor:
        """The quantity temperatures follow: logits [..., V] → [...], nats or rarity in [0, 1].

        Raises:
            IncompatibleError: if a frequency field was counted for another vocabulary.
        """
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.source == "entropy":
            return entropy(logits)
        shares = self._counted(logits.device)
        if shares.numel() != logits.shape[-1]:
            raise IncompatibleError(
                f"temperature field: counted for {shares.numel()} tokens, the model has "
                f"{logits.shape[-1]} logits; fit(ids, vocab_size={logits.shape[-1]})."
            )
        return expected_value(logits, shares)

    def from_readings(self, readings: Tensor) -> Tensor:
        """Temperatures of readings, same shape."""
        if self.source == "entropy":
            default = -torch.expm1(-readings)
        else:
            default = readings.clamp(0.0, 1.0).pow(1.0 / self.exponent)
        rank = self.ranks.rank(readings, default)
        return self.low + (self.high - self.low) * rank.pow(self.exponent)

    def temperatures(self, logits: Tensor) -> Tensor:
        """Temperatures of next-token distributions: logits [..., V] → [...], no gradient."""
        if self.constant:
            return torch.full_like(logits[..., 0], self.low)
        with torch.no_grad():
            return self.from_readings(self.read(logits))

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Temperatures of known tokens by their own rarity: int64 [...] → float32 [...].

        Never to be used on a token that is yet to be drawn: it is not known.

        Raises:
            IncompatibleError: for an entropy field.
        """
        shares = self._counted(ids.device)
        return self.low + (self.high - self.low) * shares[ids]

    def observe(self, readings: Tensor, weights: Tensor | None = None) -> None:
        """Count readings from the next :meth:`commit` on."""
        self.ranks.add(readings, weights)

    def commit(self, reduce: Any = None) -> None:
        """Let what was observed count; ``reduce`` sums a tensor over ranks in place."""
        self.ranks.commit(self.half_life, reduce)

    def summary(self) -> dict[str, float]:
        """``mean``: temperature over the readings that count; ``reading``: their mean.

        Empty where nothing counts. Copies from the device.
        """
        centres, counts = self.ranks.centres(), self.ranks.counts
        total = float(counts.sum())
        if total == 0:
            return {}
        temperatures = self.from_readings(centres)
        means = {"mean": temperatures, "reading": centres}
        return {name: float((values * counts).sum()) / total for name, values in means.items()}

    # -- pictures ----------------------------------------------------------------------------

    def of_text(self, text: str, tokenizer: Any, model: Any = None) -> list[tuple[str, float]]:
        """Pieces of a text with their temperatures.

        Args:
            text: the text.
            tokenizer: a fast tokenizer.
            model: reads the text, and gives each token the temperature it would be drawn at; the
                first has none (NaN). Without one, a frequency field gives each token its own.

        Raises:
            IncompatibleError: without a model, for an entropy field.
        """
        from hf_glm_curriculum.curriculum.temperature_picture import text_pieces

        return text_pieces(self, text, tokenizer, model)

    def show(
        self, text: str, tokenizer: Any, path: str | os.PathLike[str], model: Any = None
    ) -> Path:
        """Write a picture of a text coloured by temperature: ``.png``, or ``.html`` on its own.

        Args:
            text: the text.
            tokenizer: a fast tokenizer.
            path: the file; its ending says what is written.
            model: see :meth:`of_text`.

        Raises:
            ConfigError: for another ending.
            StateError: if the file cannot be written.
        """
        from hf_glm_curriculum.curriculum.temperature_picture import write_picture

        return write_picture(self, self.of_text(text, tokenizer, model), Path(path))

    # -- state -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write settings and statistics to one safetensors file, atomically.

        Raises:
            StateError: if the file cannot be written.
        """
        names = ("low", "high", "source", "mean", "online", "half_life")
        settings = {name: getattr(self, name) for name in names}
        tensors = {"ranks": self.ranks.counts}
        if self.token_counts is not None:
            tensors["token_counts"] = self.token_counts
        save_tensors(path, tensors, {"temperature_field": json.dumps(settings)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TemperatureField:
        """Read a file of :meth:`save`.

        Raises:
            StateError: if it is missing or not one.
        """
        tensors, metadata = load_tensors(path)
        if "temperature_field" not in metadata:
            raise StateError(
                f"{os.fspath(path)}: holds no temperature field; name a file of save()."
            )
        settings = json.loads(metadata["temperature_field"])
        field = cls(token_counts=tensors.get("token_counts"), **settings)
        field.ranks.load(tensors["ranks"])
        return field

    # -- helpers -----------------------------------------------------------------------------

    def _token_shares(self, counts: Tensor) -> Tensor:
        """[V] u^γ of every token by its rarity, γ so that the corpus has the wanted mean."""
        ranks = rarity(counts)
        if self.mean is None or self.constant:
            return ranks.float()
        return ranks.pow(exponent_for(self.mean, self.low, self.high, ranks, counts)).float()

    def _counted(self, device: torch.device) -> Tensor:
        if self._shares is None:
            raise IncompatibleError(
                "temperature field: an entropy field has no temperatures of tokens; make it with "
                "TemperatureField.fit(ids, vocab_size), or read the model's logits."
            )
        if self._shares.device != device:
            self._shares = self._shares.to(device)
        return self._shares
