"""A data set whose data loader reads every optimizer step's rows from one lane.

Shape letters: N rows, P places (see ``lane_layout``).
"""

from __future__ import annotations

import logging
from typing import Any, Self

import numpy as np
from datasets import Dataset

from hf_glm_curriculum.curriculum.base_pool import BasePool
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.curriculum.lane_layout import EpochOrder, LaneLayout, Steps
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.lifespan.sampling import PREPARING

logger = logging.getLogger(__name__)

# What gives back the same rows; `filter` leaves some out and has a method of its own.
_PREPARING = tuple(name for name in PREPARING if name != "filter")
# What reads the rows or picks some, and gives back something without lanes.
_READING = (
    "__iter__",
    "iter",
    "select",
    "shard",
    "shuffle",
    "skip",
    "sort",
    "take",
    "to_csv",
    "to_dict",
    "to_iterable_dataset",
    "to_json",
    "to_list",
    "to_pandas",
    "to_parquet",
    "train_test_split",
)


class LanePlan:
    """What a wrapper, its prepared copies and the callback share.

    Attributes:
        config: the lanes' settings.
        scores: float64 [N] of the course's rows.
        threshold: score below which a row is fast.
        lanes: int8 [N + base rows] lane of each row as wrapped.
        base: int64 rows, as wrapped, that are read while the pool says so.
        pool: says when the base is read; None without base rows.
        steps: how places become steps; None until a trainer has told.
        epoch: number of the epoch under way.
        first_step: optimizer steps done when it began.
    """

    def __init__(
        self, config: LaneConfig, scores: np.ndarray, lanes: np.ndarray, base: np.ndarray
    ) -> None:
        self.config, self.scores, self.lanes, self.base = config, scores, lanes, base
        self.threshold = 0.0
        self.pool = BasePool() if len(base) else None
        self.steps: Steps | None = None
        self.epoch = self.first_step = 0
        self.begun = False

    def __deepcopy__(self, memo: dict[int, Any]) -> LanePlan:
        """Copies of a data set follow the same plan."""
        return self

    @property
    def acts(self) -> bool:
        """Whether places are laid out: somebody has told the steps, and it is not to watch only."""
        return self.steps is not None and not self.config.observe_only


class LaneDataset(Dataset):
    """The rows of a data set, laid out so that an optimizer step reads one lane only.

    Made by :func:`build_lanes`. Names, slices and numbers read the rows as they lie; a data loader
    reads *places*, of which there are ``len()``: one of the fast lane yields two rows. Preparation
    (``map``, ``filter``, ...) keeps the wrapper.
    """

    plan: LanePlan
    _kept: np.ndarray
    _base: np.ndarray
    _base_order: tuple[int, np.ndarray] | None
    _layout: LaneLayout | None
    _order: tuple[int, EpochOrder] | None

    def _follow(self, dataset: Dataset, plan: LanePlan, kept: np.ndarray) -> None:
        self.__dict__.update(dataset.__dict__)
        self.plan, self._kept = plan, kept
        self._base = np.flatnonzero(np.isin(kept, plan.base))
        self._layout = self._order = self._base_order = None

    @property
    def unsampled(self) -> Dataset:
        """The rows as they lie, as a plain data set that shares their memory."""
        plain = Dataset.__new__(Dataset)
        ours = ("plan", "_kept", "_base", "_layout", "_order", "_base_order")
        plain.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ours})
        return plain

    @property
    def pool(self) -> BasePool | None:
        """Says when the base rows are read; what ``AlignmentMonitorCallback`` switches."""
        return self.plan.pool

    @property
    def lanes(self) -> np.ndarray:
        """int8 [rows] lane of each row: 0 fast, 1 refine, -1 base."""
        return self.plan.lanes[self._kept]

    @property
    def layout(self) -> LaneLayout:
        """The windows of an epoch, once the steps are known."""
        steps = self.plan.steps
        if steps is None:
            raise ConfigError(
                "batch_size: the lanes do not know the trainer's steps; put LaneCallback(data) "
                "into its callbacks when it is made, or give build_lanes batch_size= and "
                "gradient_accumulation=."
            )
        if self._layout is None or self._layout.steps != steps:
            self._layout, self._order = LaneLayout(self.lanes, steps, self.plan.config), None
        return self._layout

    def order(self) -> EpochOrder:
        """The places of the epoch under way."""
        layout, epoch = self.layout, self.plan.epoch
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, layout.order(epoch))
        return self._order[1]

    def __len__(self) -> int:
        """Places of an epoch; rows until the steps are known."""
        return self.layout.places if self.plan.acts else self.num_rows

    def __getitem__(self, key: Any) -> Any:
        """Rows and columns as they lie."""
        return self.unsampled[key]

    def __getitems__(self, keys: list[int]) -> list[Any]:
        """The rows of some places, one place after the other."""
        plan = self.plan
        if not plan.begun and not plan.config.observe_only:
            plan.begun = True
            logger.warning(
                "hf_glm_curriculum: rows of a laned data set are read and no LaneCallback runs: "
                "put LaneCallback(data) into the trainer's callbacks."
            )
        if not plan.acts:
            return self.unsampled.__getitems__(keys)
        order, found = self.order(), []
        for place in keys:
            base = self._base_row(int(place))
            if base is None:
                start, stop = order.starts[place], order.starts[place + 1]
                found.extend(order.rows[start:stop].tolist())
            else:
                found.append(base)
        return self.unsampled.__getitems__(found)

    def _base_row(self, place: int) -> int | None:
        """The row of the base that a place reads; None for a place of the course."""
        plan, window = self.plan, self.layout.steps.window
        step = plan.first_step + place // window
        if plan.pool is None or not plan.pool.at_base(step):
            return None
        if not len(self._base):
            raise DataError("base: none of its rows is left; filter the base before wrapping.")
        passed, at = divmod(step * window + place % window, len(self._base))
        if self._base_order is None or self._base_order[0] != passed:
            draw = np.random.default_rng([plan.config.seed, passed, 0xBA5E])
            self._base_order = (passed, draw.permutation(self._base))
        return int(self._base_order[1][at])

    def filter(self, *args: Any, **kwargs: Any) -> Any:
        """As ``datasets.Dataset.filter``; the rows that stay keep their lanes."""
        plain = self.unsampled
        result = plain.filter(*args, **kwargs)
        before, after = (_positions(one) for one in (plain, result))
        return self._wrapped(result, self._kept[_subsequence(before, after)])

    def _wrapped(self, result: Any, kept: np.ndarray) -> Any:
        wrapped: Self = type(self).__new__(type(self))
        wrapped._follow(result, self.plan, kept)
        return wrapped


def _positions(dataset: Dataset) -> np.ndarray:
    """Where each row lies in the table."""
    if dataset._indices is None:
        return np.arange(dataset.num_rows)
    return dataset._indices.column(0).to_numpy()


def _subsequence(whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Places in ``whole`` that ``part``, some of it in the same order, was taken from."""
    order = np.argsort(whole, kind="stable")
    left = np.searchsorted(whole[order], part, side="left")
    # A row that was there twice is taken the first time it fits.
    seen: dict[int, int] = {}
    found, last = np.empty(len(part), np.int64), -1
    for i, start in enumerate(left.tolist()):
        at = max(start, seen.get(start, start))
        while order[at] <= last:
            at += 1
        found[i] = last = int(order[at])
        seen[start] = at + 1
    return found


def _keeping_the_wrapper(name: str) -> Any:
    original = getattr(Dataset, name)

    def prepared(self: LaneDataset, *args: Any, **kwargs: Any) -> Any:
        result = original(self.unsampled, *args, **kwargs)
        if type(result) is not Dataset:
            return result
        if result.num_rows != self.num_rows:
            raise DataError(
                f"{name}: made {result.num_rows} rows of {self.num_rows}, whose lanes nobody "
                "knows; pack or split the rows before build_lanes, and give it their scores=."
            )
        return self._wrapped(result, self._kept)

    prepared.__name__, prepared.__doc__ = name, original.__doc__
    return prepared


def _reading_the_rows(name: str) -> Any:
    original = getattr(Dataset, name)

    def read(self: LaneDataset, *args: Any, **kwargs: Any) -> Any:
        return original(self.unsampled, *args, **kwargs)

    read.__name__, read.__doc__ = name, original.__doc__
    return read


for _name in _PREPARING:
    setattr(LaneDataset, _name, _keeping_the_wrapper(_name))
for _name in _READING:
    setattr(LaneDataset, _name, _reading_the_rows(_name))
