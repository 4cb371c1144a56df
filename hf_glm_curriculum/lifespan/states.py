"""The life of a sample as a small explicit state machine.

::

    TRAINING ──life vector short, or suspicious──▶ OBSERVED ──verdict──▶ MASTERED
       ▲                                              │  └────verdict──▶ RELABEL
       └──next visit── RESAMPLE ◀──────verdict────────┘

Training moves samples along the first arrow and back from RESAMPLE; only a judge moves them out
of the pool. MASTERED and RELABEL last until somebody calls ``release``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState

VERDICTS = (SampleState.MASTERED, SampleState.RESAMPLE, SampleState.RELABEL)
"""What a judge may say of an observed sample."""


def effective_weight(
    state: Tensor, raw: Tensor, mean_weight: Tensor, config: LifespanConfig
) -> Tensor:
    """The weight a sample's loss is multiplied with.

    Args:
        state: [M] uint8 states.
        raw: [M] weights by the formula, for samples in training.
        mean_weight: 0-dim token-weighted mean of raw weights over samples in training.
        config: absolute weights of the other states, and whether to normalise.

    Returns:
        [M] float32: raw / mean in TRAINING (raw if not normalised), 1 in RESAMPLE,
        ``observed_weight`` in OBSERVED and MASTERED, ``relabel_weight`` in RELABEL.
    """
    weight = raw / mean_weight if config.normalize_weights else raw
    pooled = (state == SampleState.OBSERVED) | (state == SampleState.MASTERED)
    weight = torch.where(pooled, config.observed_weight, weight)
    weight = torch.where(state == SampleState.RELABEL, config.relabel_weight, weight)
    return torch.where(state == SampleState.RESAMPLE, 1.0, weight)


def visited_weight(state: Tensor, drawn_state: Tensor, weight: Tensor) -> Tensor:
    """The loss weight where the number of visits carries a sample's weight.

    Args:
        state: [M] uint8 states now.
        drawn_state: [M] uint8 states when the epoch's visits were drawn.
        weight: [M] weights by :func:`effective_weight`.

    Returns:
        [M] float32: 1 in TRAINING and in any state the draw has counted already; the new state's
        weight for a sample that changed its state since.
    """
    counted = (state == SampleState.TRAINING) | (state == drawn_state)
    return torch.where(counted, 1.0, weight)


def after_visit(
    state: Tensor, visits: Tensor, norm: Tensor, suspicion: Tensor, config: LifespanConfig
) -> Tensor:
    """The state after a visit.

    Args:
        state: [M] uint8 before the visit.
        visits: [M] visits since the last reset, this one included.
        norm: [M] length of the life vector, infinite while unknown.
        suspicion: [M] robust deviations, NaN while unknown.
        config: thresholds.

    Returns:
        [M] uint8.
    """
    training = torch.where(state == SampleState.RESAMPLE, SampleState.TRAINING.value, state)
    used_up = (visits >= config.warmup_visits) & (norm < config.life_threshold)
    suspect = (visits >= config.suspicion_visits) & (suspicion >= config.suspicion_threshold)
    pooled = (training == SampleState.TRAINING) & (used_up | suspect)
    return torch.where(pooled, SampleState.OBSERVED.value, training).to(state.dtype)


def apply_verdicts(
    ledger: SampleLedger, rows: Tensor, verdicts: Tensor, config: LifespanConfig
) -> Tensor:
    """Move observed samples out of the pool.

    RESAMPLE resets the visits, so that weights and warm-up start anew; a sample that used up its
    resamples counts as MASTERED instead. Rows that are not OBSERVED are left alone.

    Args:
        ledger: changed in place.
        rows: [M] ledger rows.
        verdicts: [M] uint8, each one of ``VERDICTS``, or OBSERVED to wait.
        config: how often a sample may be resampled.

    Returns:
        [M] uint8 states after the verdicts.
    """
    state = ledger.column("state")
    resamples = ledger.column("resamples")
    spent = resamples[rows] >= config.max_resamples
    again = verdicts == SampleState.RESAMPLE
    new = torch.where(again & spent, SampleState.MASTERED.value, verdicts)
    new = torch.where(state[rows] == SampleState.OBSERVED, new, state[rows]).to(state.dtype)
    reset = new == SampleState.RESAMPLE
    state[rows] = new
    resamples[rows] += reset.to(resamples.dtype)
    visits = ledger.column("visits")
    visits[rows] = torch.where(reset, 0, visits[rows])
    return new


def release(ledger: SampleLedger, rows: Tensor) -> None:
    """Send samples of any state back to TRAINING with a fresh history, as after a correction.

    Args:
        ledger: changed in place.
        rows: [M] ledger rows.
    """
    ledger.column("state")[rows] = SampleState.TRAINING.value
    ledger.column("visits")[rows] = 0
