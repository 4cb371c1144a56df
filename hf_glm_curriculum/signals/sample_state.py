"""Where a sample stands in its life."""

from __future__ import annotations

from enum import IntEnum


class SampleState(IntEnum):
    """Where a sample stands in its life; stored as uint8."""

    TRAINING = 0
    """Trained with its progress weight."""
    OBSERVED = 1
    """In the observation pool at weight 0.1, waiting for a verdict."""
    MASTERED = 2
    """Judged learnt: kept at weight 0.1."""
    RESAMPLE = 3
    """Judged worth another look: weight 1, visits counted anew; TRAINING at its next visit."""
    RELABEL = 4
    """Judged wrong: weight 0 until an annotator has seen it."""
