"""Sampling mode: a sample's weight is how often an epoch visits it, not how much a visit counts.

The data set is wrapped, the trainer is not: at the start of an epoch the callback draws which row
stands at which place, and a sequential sampler walks through the places.

Shape letters: N rows of the data set, R ledger rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler

from hf_glm_curriculum.errors import DataError, IncompatibleError, StateError
from hf_glm_curriculum.lifespan.life import SampleLife
from hf_glm_curriculum.signals.distributed import from_first_rank

if TYPE_CHECKING:
    from hf_glm_curriculum.lifespan.callback import SampleLifespanCallback

logger = logging.getLogger(__name__)

PREFIX = "sampling."
"""Starts the names of what a checkpoint keeps of the draw."""

# What prepares a data set for training and gives back another of the same kind. What picks rows
# (select, shuffle, ...) gives back a plain data set: wrap after that.
PREPARING = (
    "add_column",
    "cast",
    "cast_column",
    "filter",
    "flatten",
    "map",
    "remove_columns",
    "rename_column",
    "rename_columns",
    "select_columns",
    "with_format",
    "with_transform",
)


def draw_visits(weight: Tensor, seed: int, epoch: int) -> Tensor:
    """Order of an epoch in which row i comes N·wᵢ/Σw times in expectation.

    Systematic resampling over the rows in random order: a row comes ⌊N·wᵢ/Σw⌋ or ⌈N·wᵢ/Σw⌉
    times, the total is N. Equal weights give every row once. (Kitagawa, "Monte Carlo filter and
    smoother", JCGS 1996; Douc, Cappé and Moulines, "Comparison of resampling schemes", 2005.)

    Args:
        weight: [N] weights ≥ 0, any float dtype.
        seed: of the run.
        epoch: number of the draw; the same (weight, seed, epoch) gives the same order.

    Returns:
        [N] int64 rows on the CPU.

    Raises:
        DataError: if no weight is positive, or one is negative or not finite.
    """
    share = weight.detach().cpu().double()
    total = share.sum()
    if not (bool(torch.isfinite(total)) and bool((share >= 0).all()) and float(total) > 0):
        raise DataError(
            f"weights: must be finite, ≥ 0 and not all 0 to draw visits from, got a sum of "
            f"{float(total)} over {len(share)} rows; release some samples from RELABEL."
        )
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    shuffled = torch.randperm(len(share), generator=generator)
    # Away from whole numbers, so that rounding never gives one of equal weights a second visit.
    start = torch.rand((), generator=generator, dtype=torch.float64).clamp(1e-6, 1 - 1e-6)
    reach = share[shuffled].cumsum(0) * (len(share) / total)
    passed = (reach - start).floor().long() + 1
    visits = passed.diff(prepend=passed.new_zeros(1))
    order = shuffled.repeat_interleave(visits)
    return order[torch.randperm(len(order), generator=generator)]


class VisitPlan:
    """Which row stands at which place of the epoch under way; shared by a wrapper's copies."""

    def __init__(self, seed: int) -> None:
        """Start without a draw: every row stands at its own place."""
        self.seed = seed
        self.draws = 0
        self.order: np.ndarray | None = None
        self.connected = False
        self._rows = 0
        self._weight: Tensor | None = None
        self._state: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> VisitPlan:
        """Copies of a data set follow the same plan."""
        return self

    def begin(self, args: Any, dataloader: Any, indexed: bool) -> None:
        """Check, before the first step, that the trainer will read rows as they are drawn.

        Args:
            args: the trainer's arguments.
            dataloader: the trainer's.
            indexed: whether every row's sample is known.

        Raises:
            IncompatibleError: if the trainer reads another data set, or holds stale copies of it.
        """
        dataset: Any = getattr(dataloader, "dataset", None)
        if getattr(dataset, "plan", None) is not self:
            raise IncompatibleError(
                "train_dataset: the callback draws visits for a LifespanSampling data set and the "
                f"trainer reads a {type(dataset).__name__}; pass the LifespanSampling itself as "
                "train_dataset, wrapped after select or shuffle."
            )
        if not indexed:
            raise IncompatibleError(
                "index_dataset: visits are drawn row by row, so the rows must be known before the "
                "first step; set index_dataset=True and give a tokenised data set (input_ids)."
            )
        if args.dataloader_num_workers and args.dataloader_persistent_workers:
            raise IncompatibleError(
                "dataloader_persistent_workers: persistent workers keep the first epoch's copy of "
                "the data set, so later draws would not reach them; set it to False."
            )
        sampler = _sampler(dataloader)
        if not isinstance(sampler, SequentialSampler):
            kind = "shuffles" if isinstance(sampler, RandomSampler) else "reorders"
            logger.warning(
                "hf_glm_curriculum: train_sampling_strategy=%r %s the places of the drawn order: "
                "visits stay as drawn, their order does not; set "
                "train_sampling_strategy='sequential'.",
                getattr(args, "train_sampling_strategy", None),
                kind,
            )
        self.connected, self.order, self._rows = True, None, len(dataset)
        self.draws, self._weight, self._state = 0, None, None

    def draw(self, life: SampleLife, again: bool = False) -> None:
        """Draw an epoch.

        Args:
            life: the engine whose weights count; its loss weights follow the draw.
            again: repeat the last draw, as after a resume in the middle of an epoch.
        """
        if not again or self._weight is None:
            life.refresh()
            self._weight = from_first_rank(lambda: _row_weights(life, self._rows))
            self._state = life.ledger.column("state").clone()
            self.draws += 1
        self.order = draw_visits(self._weight, self.seed, self.draws).numpy()
        life.drawn_state = None if self._state is None else self._state.to(life.device)

    def end(self) -> None:
        """Put every row back to its own place."""
        self.order = None

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs to draw the same epoch again."""
        if self._weight is None or self._state is None:
            return {}
        return {
            f"{PREFIX}weight": self._weight,
            f"{PREFIX}state": self._state,
            f"{PREFIX}draws": torch.tensor([self.draws, self.seed]),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`tensors`; without any, as if nothing had been drawn.

        Raises:
            StateError: if the draw belongs to other data or another seed.
        """
        if not tensors:
            return
        draws, seed = tensors[f"{PREFIX}draws"].tolist()
        weight = tensors[f"{PREFIX}weight"]
        if len(weight) != self._rows or seed != self.seed:
            raise StateError(
                f"sampling: the checkpoint drew {len(weight)} rows with seed {seed}, this run has "
                f"{self._rows} rows and seed {self.seed}; resume with the run's data and seed."
            )
        self.draws, self._weight, self._state = draws, weight, tensors[f"{PREFIX}state"]


class LifespanSampling(Dataset):
    """A data set whose rows are visited as often as the callback weighs them.

    Reads like the data set it wraps; while the callback's run is under way, place i of an epoch
    holds the i-th drawn row. An epoch keeps its length, so steps and schedules stay what they
    were. Rows in RELABEL are not visited, those in OBSERVED and MASTERED about once in ten
    epochs. The loss weight of a visit is then 1; a sample that changes its state between two
    draws has its new state's weight until the next one.

    Works on ``Trainer`` and ``SFTTrainer`` with the user's collator; preparation (``map``,
    ``filter``, ...) keeps the wrapper. Needs ``train_sampling_strategy="sequential"``; a trainer
    that shuffles is told so.

    Example::

        callback = SampleLifespanCallback()
        data = LifespanSampling(dataset, callback, seed=0)
        args = TrainingArguments(..., train_sampling_strategy="sequential")
        Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
    """

    plan: VisitPlan

    def __init__(self, dataset: Any, callback: SampleLifespanCallback, seed: int = 0) -> None:
        """Wrap a data set and connect it with the callback that weighs its samples.

        Args:
            dataset: a `datasets.Dataset`, or a list of dictionaries; not copied where it is a
                `datasets.Dataset`.
            callback: the callback that is also in the trainer's ``callbacks``.
            seed: of the draws.

        Raises:
            DataError: if the data set is neither.
        """
        if isinstance(dataset, list) and dataset:
            dataset = Dataset.from_list(dataset)
        if not isinstance(dataset, Dataset):
            raise DataError(
                "dataset: visits are drawn from a datasets.Dataset or a non-empty list of rows, "
                f"got {type(dataset).__name__}; build one with datasets.Dataset.from_list or "
                "from_generator."
            )
        self._follow(dataset, VisitPlan(seed))
        callback.sampling = self.plan

    def _follow(self, dataset: Dataset, plan: VisitPlan) -> None:
        self.__dict__.update(dataset.__dict__)
        self.plan = plan

    @property
    def unsampled(self) -> Dataset:
        """The rows in their own order, as a plain data set that shares their memory."""
        plain = Dataset.__new__(Dataset)
        plain.__dict__.update({k: v for k, v in self.__dict__.items() if k != "plan"})
        return plain

    def __getitem__(self, key: Any) -> Any:
        """Rows by place where numbers ask for them; columns and slices as they lie."""
        order = self.plan.order
        if order is None:
            return super().__getitem__(key)
        if isinstance(key, str | slice):
            return self.unsampled[key]
        if isinstance(key, int | np.integer):
            return super().__getitem__(int(order[int(key)]))
        return super().__getitem__(order[np.asarray(list(key), dtype=np.int64)].tolist())

    def __getitems__(self, keys: list[int]) -> list[Any]:
        """A batch for a data loader."""
        if not self.plan.connected:
            self.plan.connected = True
            logger.warning(
                "hf_glm_curriculum: rows of a LifespanSampling are read and no visits were drawn: "
                "put its SampleLifespanCallback into the trainer's callbacks."
            )
        return super().__getitems__(keys)


def _keeping_the_wrapper(name: str) -> Any:
    original = getattr(Dataset, name)

    def prepared(self: LifespanSampling, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if type(result) is not Dataset:
            return result
        wrapped: Self = LifespanSampling.__new__(LifespanSampling)  # type: ignore[valid-type]
        wrapped._follow(result, self.plan)
        return wrapped

    prepared.__name__, prepared.__doc__ = name, original.__doc__
    return prepared


for _name in PREPARING:
    setattr(LifespanSampling, _name, _keeping_the_wrapper(_name))


def unsampled(dataset: Any) -> Any:
    """The rows behind a data set that lays them out otherwise; anything else as it is."""
    return getattr(dataset, "unsampled", dataset)


def _row_weights(life: SampleLife, rows: int) -> Tensor:
    """[N] float32 weights of the data set's rows; packed rows have the mean of their samples."""
    index, ledger = life.ledger.index, life.ledger
    packed = index.packed_row
    samples = index.row_ids[: rows if packed is None else len(packed)]
    weight = ledger.column("weight")[ledger.lookup(samples.to(life.device))].cpu()
    if packed is None:
        return weight
    place = torch.as_tensor(packed)
    return torch.bincount(place, weight.double()).div(torch.bincount(place)).float()


def _sampler(dataloader: Any) -> Any:
    """The sampler below accelerate's and torch's wrappers of a data loader."""
    sampler: Any = getattr(dataloader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", None)
