"""A data set whose data loader reads every optimizer step's rows from one lane.

Shape letters: N rows, P places (see ``lane_layout``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from datasets import Dataset, concatenate_datasets

from hf_glm_curriculum.curriculum.base_pool import BasePool
from hf_glm_curriculum.curriculum.lane_config import BASE, FAST, REFINE, LaneConfig
from hf_glm_curriculum.curriculum.lane_layout import EpochOrder, LaneLayout, Steps
from hf_glm_curriculum.curriculum.lane_scores import Estimator, row_scores
from hf_glm_curriculum.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

# What prepares a data set for training and gives back another with the same rows.
_PREPARING = (
    "add_column",
    "cast",
    "cast_column",
    "flatten",
    "map",
    "remove_columns",
    "rename_column",
    "rename_columns",
    "select_columns",
    "with_format",
    "with_transform",
)
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


def build_lanes(
    dataset: Any,
    estimator: Estimator | None = None,
    batch_size: int | None = None,
    *,
    gradient_accumulation: int = 1,
    config: LaneConfig | None = None,
    scores: Sequence[float] | np.ndarray | None = None,
    column: str | None = None,
    tokenizer: Any = None,
    base: Any = None,
    base_share: float | None = None,
) -> LaneDataset:
    """Send every row to the fast or the refine lane by its instruction's entropy.

    Pass the result as ``train_dataset`` with ``train_sampling_strategy="sequential"``, and
    ``LaneCallback(result)`` in ``callbacks``.

    Args:
        dataset: a `datasets.Dataset` or a list of dictionaries; text or tokens.
        estimator: gives instructions their scores; ``InstructionEntropyEstimator()`` by default.
        batch_size: the trainer's per-device batch size, where the callback is added only after
            the trainer was made; learnt from the trainer otherwise.
        gradient_accumulation: with ``batch_size``, batches of an optimizer step.
        config: threshold, paces and order; defaults otherwise.
        scores: [N] numbers in place of an estimator.
        column: of the instructions; found by its usual names otherwise.
        tokenizer: decodes the prompts of data sets that hold tokens only.
        base: a `datasets.Dataset` with the same columns, which ``AlignmentMonitorCallback`` may
            switch to.
        base_share: in place of ``base``, the share of the rows with the lowest scores.

    Raises:
        DataError: if the data set is of another kind, has nothing to score, or the base has other
            columns.
        ConfigError: if both a base and a share are given, or the share is not in (0, 1].
    """
    if isinstance(dataset, list) and dataset:
        dataset = Dataset.from_list(dataset)
    if type(dataset) is not Dataset:
        raise DataError(
            "dataset: lanes are built over a plain datasets.Dataset or a non-empty list of rows, "
            f"got {type(dataset).__name__}; samples drawn from a stream, a mixture or by "
            "LifespanSampling have no fixed places."
        )
    config = config or LaneConfig()
    found = row_scores(dataset, estimator, scores, column, tokenizer)
    threshold = _threshold(found, config)
    lanes = np.where(found < threshold, FAST, REFINE).astype(np.int8)
    rows, whole = _base_rows(dataset, found, base, base_share)
    lanes = np.concatenate([lanes, np.full(len(whole) - len(lanes), BASE, np.int8)])
    plan = LanePlan(config, found, lanes, rows)
    plan.threshold = threshold
    if batch_size is not None:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        plan.steps = Steps(batch_size * ranks, gradient_accumulation, evened=ranks > 1)
    laned = LaneDataset.__new__(LaneDataset)
    laned._follow(whole, plan, np.arange(len(whole)))
    return laned


def _threshold(scores: np.ndarray, config: LaneConfig) -> float:
    if config.threshold is not None:
        return config.threshold
    if config.quantile in (0.0, 1.0):
        return float("inf") if config.quantile else float("-inf")
    return float(np.quantile(scores, config.quantile))


def _base_rows(
    dataset: Dataset, scores: np.ndarray, base: Any, share: float | None
) -> tuple[np.ndarray, Dataset]:
    """The rows of the base, and the data set with those of its own behind."""
    if base is None and share is None:
        return np.zeros(0, np.int64), dataset
    if base is None:
        if not 0 < share <= 1:  # pyright: ignore[reportOptionalOperand]
            raise ConfigError(f"base_share: must lie in (0, 1], got {share}.")
        count = max(1, round(share * len(scores)))  # pyright: ignore[reportOptionalOperand]
        return np.sort(np.argsort(scores, kind="stable")[:count]), dataset
    if share is not None:
        raise ConfigError("base_share: the base has rows of its own; leave base_share out.")
    if not isinstance(base, Dataset) or not len(base):
        raise DataError(
            f"base: must be a datasets.Dataset with rows, got {type(base).__name__}."
        )
    if sorted(base.column_names) != sorted(dataset.column_names):
        raise DataError(
            f"base: must have the columns of the data set ({', '.join(dataset.column_names)}), "
            f"got {', '.join(base.column_names)}; select or rename them."
        )
    rows = np.arange(len(dataset), len(dataset) + len(base))
    return rows, concatenate_datasets([dataset, base])
