"""Judges: who decides what becomes of the samples in the observation pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan.states import VERDICTS
from hf_glm_curriculum.signals.ledger import SampleState

if TYPE_CHECKING:
    import pandas as pd


class Judge(Protocol):
    """Anything that gives each observed sample a verdict."""

    def __call__(self, cases: pd.DataFrame) -> Sequence[str]:
        """Judge observed samples.

        Args:
            cases: one row a sample: the columns of ``SampleLedger.to_pandas()``, ``loss_rank``
                (share of the data with a lower mean loss) and, where the data set can be read,
                ``prompt`` and ``response``.

        Returns:
            One of MASTERED, RESAMPLE, RELABEL or OBSERVED (wait) for each row, in order.
        """
        ...


@runtime_checkable
class SurveyingJudge(Protocol):
    """A judge that compares a sample with what is usual in the data, not in the pool alone."""

    survey_rows: int
    """How many samples it wants to see; it spends a forward pass or two on each."""

    def survey(self, population: pd.DataFrame) -> None:
        """Look at a spread sample of the data, with the columns of the cases, before judging."""
        ...

    def __call__(self, cases: pd.DataFrame) -> Sequence[str]:
        """See :class:`Judge`."""
        ...


_SETTLED = {True: SampleState.MASTERED.name, False: SampleState.RESAMPLE.name}


@dataclass(frozen=True)
class SignalJudge:
    """Judges by the signals alone; no model is asked.

    RELABEL if suspicion is at or above ``relabel_suspicion``; OBSERVED (wait, at weight 0.1) if it
    is at or above ``suspicion_threshold``; otherwise MASTERED if the loss is among the lower
    ``mastered_rank`` of the data or the answer's tokens have a mean probability (geometric) of at
    least ``mastered_confidence``, and RESAMPLE if not.
    """

    suspicion_threshold: float = 2.0
    """Deviations above the median at which an answer is not trusted."""
    relabel_suspicion: float = 2.5
    """Deviations above the median at which it counts as wrong."""
    mastered_rank: float = 0.5
    """Share of the data, by mean loss from below, that counts as learnt."""
    mastered_confidence: float = 0.5
    """exp(−loss) from which a sample counts as learnt."""

    def __call__(self, cases: pd.DataFrame) -> list[str]:
        """See :class:`Judge`."""
        learnt = cases["loss_rank"] <= self.mastered_rank
        learnt |= cases["loss"] <= -math.log(self.mastered_confidence)
        verdict = learnt.map(_SETTLED.get)
        unsure = cases["suspicion"] >= self.suspicion_threshold
        wrong = cases["suspicion"] >= max(self.suspicion_threshold, self.relabel_suspicion)
        verdict = verdict.mask(unsure, SampleState.OBSERVED.name)
        return verdict.mask(wrong, SampleState.RELABEL.name).tolist()


def read_verdicts(answers: Sequence[str], expected: int) -> Tensor:
    """Turn a judge's answers into states.

    Args:
        answers: names of states.
        expected: how many there must be.

    Returns:
        [M] uint8.

    Raises:
        ConfigError: if the number differs or a name is none of the verdicts.
    """
    allowed = {s.name: s.value for s in (*VERDICTS, SampleState.OBSERVED)}
    if len(answers) != expected:
        raise ConfigError(
            f"judge: must return one verdict a sample, got {len(answers)} for {expected}."
        )
    for answer in answers:
        if answer not in allowed:
            raise ConfigError(
                f"judge: a verdict must be one of {', '.join(allowed)}, got {answer!r}."
            )
    return torch.tensor([allowed[a] for a in answers], dtype=torch.uint8)
