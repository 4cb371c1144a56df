"""Judges: who decides what becomes of the samples in the observation pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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


@dataclass(frozen=True)
class SignalJudge:
    """Judges by the signals alone; no model is asked.

    RELABEL if the answer looks wrong (suspicion at or above ``suspicion_threshold``); MASTERED if
    the loss is among the lower ``mastered_rank`` of the data or the answer's tokens have a mean
    probability (geometric) of at least ``mastered_confidence``; RESAMPLE otherwise.
    """

    suspicion_threshold: float = 2.5
    """Robust deviations above the median at which an answer counts as wrong."""
    mastered_rank: float = 0.5
    """Share of the data, by mean loss from below, that counts as learnt."""
    mastered_confidence: float = 0.5
    """exp(−loss) from which a sample counts as learnt."""

    def __call__(self, cases: pd.DataFrame) -> list[str]:
        """See :class:`Judge`."""
        wrong = cases["suspicion"] >= self.suspicion_threshold
        learnt = cases["loss_rank"] <= self.mastered_rank
        learnt |= cases["loss"] <= -math.log(self.mastered_confidence)
        names = [SampleState.RESAMPLE.name, SampleState.MASTERED.name, SampleState.RELABEL.name]
        return [names[2] if w else names[int(k)] for w, k in zip(wrong, learnt, strict=True)]


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
