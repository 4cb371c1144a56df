"""Judges that ask another model: a small reference, the prompt's own help, a sentence encoder.

Each compares a sample with a spread sample of the data, in robust deviations from its median, so
that no threshold depends on the model or the language.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.lifespan.answer_loss import answer_losses, conditional_gain
from hf_glm_curriculum.lifespan.judges import Judge, SignalJudge
from hf_glm_curriculum.lifespan.sentence_encoder import EMBEDDED_ENCODER, SentenceEncoder
from hf_glm_curriculum.models import EMBEDDED, load_model
from hf_glm_curriculum.signals.ledger import SampleState
from hf_glm_curriculum.signals.slopes import robust_scale

if TYPE_CHECKING:
    import pandas as pd

LEAST_POPULATION = 16
"""Samples that must have been surveyed before one may be called unusual."""

_MASTERED, _RESAMPLE = SampleState.MASTERED.name, SampleState.RESAMPLE.name
_RELABEL, _OBSERVED = SampleState.RELABEL.name, SampleState.OBSERVED.name


class TextJudge:
    """What judges that read texts share: reading them, and knowing what is usual."""

    needs_text = True
    """Refused before the first step where the trainer's data shows no text."""

    def __init__(self, margin: float, survey_rows: int) -> None:
        """Remember the settings.

        Args:
            margin: deviations from the median beyond which a sample is unusual.
            survey_rows: samples of the data that tell what is usual; 0 to compare within the pool.

        Raises:
            ConfigError: if a number is out of range.
        """
        if not margin >= 0:
            raise ConfigError(f"margin: must be at least 0 robust deviations, got {margin}.")
        if survey_rows < 0:
            raise ConfigError(f"survey_rows: must be at least 0, got {survey_rows}.")
        self.margin, self.survey_rows = margin, survey_rows
        self._usual: tuple[Tensor, Tensor] | None = None

    def statistic(self, frame: pd.DataFrame) -> Tensor:
        """[M] float32 of samples that all have texts; the greater, the worse the answer."""
        raise NotImplementedError

    def survey(self, population: pd.DataFrame) -> None:
        """See :class:`SurveyingJudge`."""
        read = _has_text(population)
        shown = population.iloc[np.flatnonzero(read)]
        self._usual = _scale(self.statistic(shown)) if read.any() else None

    def __call__(self, cases: pd.DataFrame) -> list[str]:
        """See :class:`Judge`; cases whose text cannot be read wait in OBSERVED.

        Raises:
            DataError: if no case has a text.
        """
        if len(cases) == 0:
            return []
        read = _has_text(cases)
        if not read.any():
            raise DataError(
                f"judge: {type(self).__name__} reads prompts and responses and none of "
                f"{len(cases)} cases has them; give the trainer a data set with text columns or "
                "unpacked input_ids and its tokenizer as processing_class, or use SignalJudge."
            )
        shown = cases.iloc[np.flatnonzero(read)]
        value = self.statistic(shown)
        middle, deviation = self._usual or _scale(value)
        found = self._verdicts(shown, value, (value - middle) / deviation.clamp(min=1e-6))
        verdicts = np.full(len(cases), _OBSERVED, dtype=object)
        verdicts[read] = found
        return verdicts.tolist()

    def _verdicts(self, cases: pd.DataFrame, value: Tensor, z: Tensor) -> Sequence[str]:
        """Verdicts from the statistic [M] and its robust deviations [M] (NaN while unknown)."""
        raise NotImplementedError


class _ModelJudge(TextJudge):
    """A judge with a causal language model, loaded when it is first asked."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        margin: float,
        survey_rows: int,
        batch_size: int,
        max_length: int,
        show_progress: bool | None,
    ) -> None:
        super().__init__(margin, survey_rows)
        if tokenizer is None and not isinstance(model, str | os.PathLike):
            raise ConfigError(
                f"tokenizer: a model given as {type(model).__name__} needs its tokenizer; pass "
                "tokenizer=, or the model's name or folder."
            )
        self.model, self.tokenizer = model, tokenizer
        self._options = {
            "batch_size": batch_size,
            "max_length": max_length,
            "show_progress": show_progress,
        }

    def _loaded(self) -> tuple[Any, Any]:
        if isinstance(self.model, str | os.PathLike):
            # Loading may draw random numbers; the run under way must not notice.
            with torch.random.fork_rng():
                model, tokenizer = load_model(self.model)
            if torch.cuda.is_available():
                model = model.to("cuda")  # pyright: ignore[reportArgumentType]
            self.model = model
            self.tokenizer = self.tokenizer or tokenizer
        return self.model, self.tokenizer


class ReferenceJudge(_ModelJudge):
    """Compares the loss in training with a small reference model's on the same texts.

    g = (nats in training − nats of the reference) / bytes of the response, with the last observed
    loss and the number of label tokens from the ledger; per byte, so that tokenizers may differ.
    RELABEL where the sample is harder than for the reference (g > 0) and by more than ``margin``
    robust deviations above the data's median; MASTERED where g ≤ 0; RESAMPLE otherwise. (The
    excess loss of Mindermann et al., "Prioritized training on points that are learnable", ICML
    2022, read the other way round: there the reference says what can be learnt.)

    One forward of the reference for each sample in the pool and for each surveyed one.

    Args:
        model: a name, a folder or ``"embedded"`` (SmolLM2-135M), loaded when first asked; or a
            model on its device.
        tokenizer: of a model that is given as an object.
        margin: robust deviations.
        survey_rows: samples of the data that tell what is usual.
        batch_size: samples at once.
        max_length: tokens a sample is cut to.
        show_progress: see `progress`.

    Raises:
        ConfigError: if a setting is out of range or the tokenizer is missing.
    """

    def __init__(
        self,
        model: Any = EMBEDDED,
        tokenizer: Any = None,
        margin: float = 0.0,
        *,
        survey_rows: int = 128,
        batch_size: int = 8,
        max_length: int = 1024,
        show_progress: bool | None = None,
    ) -> None:
        super().__init__(
            model, tokenizer, margin, survey_rows, batch_size, max_length, show_progress
        )

    def statistic(self, frame: pd.DataFrame) -> Tensor:
        """[M] nats a byte by which training finds the answers harder than the reference."""
        model, tokenizer = self._loaded()
        losses = answer_losses(
            model, tokenizer, _pairs(frame), description="Reference", **self._options
        )
        trained = torch.tensor((frame["loss"] * frame["n_tokens"]).to_numpy(), dtype=torch.float32)
        size = torch.tensor([max(1, len(text.encode())) for text in frame["response"]])
        return (trained - losses.total) / size

    def _verdicts(self, cases: pd.DataFrame, value: Tensor, z: Tensor) -> Sequence[str]:
        harder, unusual = (value > 0).tolist(), (z > self.margin).tolist()
        both = zip(harder, unusual, strict=True)
        return [(_RELABEL if u else _RESAMPLE) if h else _MASTERED for h, u in both]


class _UnusualJudge:
    """RELABEL what is unusual, and ask another judge about the rest."""

    margin: float
    otherwise: Judge

    def _verdicts(self, cases: pd.DataFrame, value: Tensor, z: Tensor) -> Sequence[str]:
        rest = self.otherwise(cases)
        unusual = (z > self.margin).tolist()
        return [_RELABEL if u else v for u, v in zip(unusual, rest, strict=True)]


class InstructionJudge(_UnusualJudge, _ModelJudge):
    """Asks how much the prompt helps: the instruction-following difficulty.

    The ratio of the answer's loss given the prompt to its loss without it (Li et al. 2023, see
    :func:`conditional_gain`); RELABEL where it is more than ``margin`` robust deviations above
    the data's median, otherwise as ``otherwise`` says.

    Args:
        model: a name, a folder or ``"embedded"``, loaded when first asked; or a model on its
            device, which may be the one in training.
        tokenizer: of a model that is given as an object.
        margin: robust deviations.
        training_loss: take the loss given the prompt from the ledger (its last visit), so that a
            sample costs one forward instead of two; for the model in training.
        otherwise: judges the rest; by loss alone if not given.
        survey_rows: samples of the data that tell what is usual.
        batch_size: samples at once.
        max_length: tokens a sample is cut to.
        show_progress: see `progress`.

    Raises:
        ConfigError: if a setting is out of range or the tokenizer is missing.
    """

    def __init__(
        self,
        model: Any = EMBEDDED,
        tokenizer: Any = None,
        margin: float = 2.0,
        *,
        training_loss: bool = False,
        otherwise: Judge | None = None,
        survey_rows: int = 128,
        batch_size: int = 8,
        max_length: int = 1024,
        show_progress: bool | None = None,
    ) -> None:
        super().__init__(
            model, tokenizer, margin, survey_rows, batch_size, max_length, show_progress
        )
        self.training_loss = training_loss
        self.otherwise = otherwise or SignalJudge(suspicion_threshold=float("inf"))

    def statistic(self, frame: pd.DataFrame) -> Tensor:
        """[M] loss given the prompt over loss without it."""
        model, tokenizer = self._loaded()
        if not self.training_loss:
            return conditional_gain(model, tokenizer, _pairs(frame), **self._options).difficulty
        without = answer_losses(
            model, tokenizer, _pairs(frame), with_prompt=False, **self._options
        ).mean
        return torch.tensor(frame["loss"].to_numpy(), dtype=torch.float32) / without


class EncoderJudge(_UnusualJudge, TextJudge):
    """Asks a sentence encoder whether prompt and response are about the same thing.

    RELABEL where their cosine similarity is more than ``margin`` robust deviations below the
    data's median, otherwise as ``otherwise`` says. The embedded encoder reads English; answers of
    a word or two are unlike any prompt, so it suits data whose answers are sentences.

    Args:
        encoder: ``"embedded"``, a folder or hub id, loaded when first asked; or an object with
            ``similarity(pairs) -> [N]``.
        margin: robust deviations.
        otherwise: judges the rest; by loss alone if not given.
        survey_rows: samples of the data that tell what is usual.
        show_progress: see `progress`.

    Raises:
        ConfigError: if a setting is out of range.
    """

    def __init__(
        self,
        encoder: Any = EMBEDDED_ENCODER,
        margin: float = 2.0,
        *,
        otherwise: Judge | None = None,
        survey_rows: int = 512,
        show_progress: bool | None = None,
    ) -> None:
        super().__init__(margin, survey_rows)
        self.encoder, self.show_progress = encoder, show_progress
        self.otherwise = otherwise or SignalJudge(suspicion_threshold=float("inf"))

    def statistic(self, frame: pd.DataFrame) -> Tensor:
        """[M] 1 − cosine similarity of prompt and response."""
        if isinstance(self.encoder, str | os.PathLike):
            with torch.random.fork_rng():
                self.encoder = SentenceEncoder(self.encoder, show_progress=self.show_progress)
        return 1 - torch.as_tensor(self.encoder.similarity(_pairs(frame))).float()


def _pairs(frame: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(frame["prompt"], frame["response"], strict=True))


def _has_text(frame: pd.DataFrame) -> np.ndarray:
    """[M] bool: whether prompt and response could be read."""
    if "prompt" not in frame or "response" not in frame:
        return np.zeros(len(frame), bool)
    return (frame["prompt"].notna() & frame["response"].notna()).to_numpy()


def _scale(values: Tensor) -> tuple[Tensor, Tensor]:
    """Median and deviation; NaN, so that nothing is unusual, where there are too few values."""
    if int(torch.isfinite(values).sum()) < LEAST_POPULATION:
        return torch.tensor(torch.nan), torch.tensor(torch.nan)
    return robust_scale(values)
