"""Which rows stand in which optimizer step of an epoch, so that a step holds one lane only.

A *place* is an index that the data loader asks for; a *window* is the run of places that become
one optimizer step over all ranks and accumulated batches. A place of a fast window holds several
rows (two by default), one of a refine window holds one.

Shape letters: N rows of the data set, W windows, P places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_glm_curriculum.curriculum.lane_config import FAST, REFINE, LaneConfig


@dataclass(frozen=True)
class Steps:
    """How a trainer turns places into optimizer steps.

    Attributes:
        batch: places that all ranks read for one forward pass each.
        accumulation: forward passes of an optimizer step.
        evened: whether an incomplete last batch is filled up, as accelerate does on several ranks.
    """

    batch: int
    accumulation: int = 1
    evened: bool = False

    @property
    def window(self) -> int:
        """Places of an optimizer step."""
        return self.batch * self.accumulation


@dataclass
class EpochOrder:
    """The places of one epoch.

    Attributes:
        rows: int64 rows in the order they are read; a row may repeat where batches are evened.
        starts: int64 [P + 1], place p holds ``rows[starts[p]:starts[p + 1]]``.
        lanes: int8 [W] the lane of each window.
    """

    rows: np.ndarray
    starts: np.ndarray
    lanes: np.ndarray


class LaneLayout:
    """The windows of an epoch: the same number in every epoch.

    Fast rows fill windows of ``fast_batch_factor`` rows a place; what is left shares the last two
    windows, or one of at least a row a place. Fast rows that fill no window at all are trained in
    the refine lane. The one window that may be short of places comes last.
    """

    def __init__(self, lanes: np.ndarray, steps: Steps, config: LaneConfig) -> None:
        """Lay out.

        Args:
            lanes: int8 [N] lane of each row; rows of neither lane are left out.
            steps: the trainer's.
            config: the lanes'.
        """
        self.steps, self._config = steps, config
        self._fast = np.flatnonzero(lanes == FAST)
        self._refine = np.flatnonzero(lanes == REFINE)
        self._fast_sizes, left = _fast_windows(
            len(self._fast), steps.window, config.fast_batch_factor
        )
        self.tail_lane = REFINE if len(self._refine) else FAST
        self.moved = left if len(self._refine) else 0
        """Fast rows that fill no window and are trained in the refine lane."""
        self._tail = left + len(self._refine)
        self.places = steps.window * len(self._fast_sizes) + self._evened(self._tail)
        """Places of an epoch."""

    @property
    def windows(self) -> int:
        """Windows of an epoch."""
        return -(-self.places // self.steps.window)

    def _evened(self, count: int) -> int:
        whole = -(-count // self.steps.batch) * self.steps.batch
        return whole if self.steps.evened else count

    def order(self, epoch: int) -> EpochOrder:
        """Draw an epoch; a function of the settings' seed and the epoch's number alone."""
        config, window = self._config, self.steps.window
        draw = np.random.default_rng([config.seed, epoch, 0x1A9E])
        fast, refine = self._fast, self._refine
        if config.shuffle:
            fast, refine = draw.permutation(fast), draw.permutation(refine)
        used = sum(self._fast_sizes)
        tail = np.concatenate([refine, fast[used:]])
        # Evened by the lane's own first rows: those of the epoch, where there is one lane.
        first = tail if self.tail_lane == REFINE else fast
        tail = np.concatenate([tail, np.resize(first, self._evened(len(tail)) - len(tail))])
        lanes = self._lanes(draw, -(-len(tail) // window))
        sizes, rows = [], []
        fast_at = tail_at = fast_window = 0
        for lane in lanes:
            if lane == FAST and fast_window < len(self._fast_sizes):
                count = self._fast_sizes[fast_window]
                rows.append(fast[fast_at : fast_at + count])
                sizes.append(_spread(count, window))
                fast_at, fast_window = fast_at + count, fast_window + 1
            else:
                part = tail[tail_at : tail_at + window]
                rows.append(part)
                sizes.append(np.ones(len(part), np.int64))
                tail_at += len(part)
        none = np.zeros(0, np.int64)
        starts = np.concatenate([[0], np.concatenate([none, *sizes]).cumsum()]).astype(np.int64)
        return EpochOrder(np.concatenate([none, *rows]), starts, np.asarray(lanes, np.int8))

    def _lanes(self, draw: np.random.Generator, tail_windows: int) -> list[int]:
        """The lane of each window; a short one comes last."""
        fast = len(self._fast_sizes)
        tail = self.tail_lane
        short = bool(tail_windows and self._evened(self._tail) % self.steps.window)
        full = tail_windows - short
        if self._config.schedule == "mixed":
            lanes = draw.permutation([FAST] * fast + [tail] * full).tolist()
        elif self._config.schedule == "easy_first":
            lanes = [FAST] * fast + [tail] * full
        else:
            # Each lane's windows at the middles of equal parts of the epoch.
            at = [((i + 0.5) / max(fast, 1), FAST) for i in range(fast)]
            at += [((i + 0.5) / max(full, 1), tail) for i in range(full)]
            lanes = [lane for _, lane in sorted(at)]
        return [int(lane) for lane in lanes] + [tail] * short


def _fast_windows(rows: int, places: int, factor: int) -> tuple[list[int], int]:
    """Rows of each fast window, at least one and at most ``factor`` a place, and rows left over."""
    full, left = divmod(rows, places * factor)
    sizes = [places * factor] * full
    if left >= places:
        return [*sizes, left], 0
    if left and full and factor > 1:
        both = places * factor + left
        return [*sizes[:-1], both - both // 2, both // 2], 0
    return sizes, left


def _spread(rows: int, places: int) -> np.ndarray:
    """How many of the rows each place holds: as evenly as can be, [places] int64."""
    edges = np.arange(places + 1, dtype=np.int64) * rows // places
    return np.diff(edges)
