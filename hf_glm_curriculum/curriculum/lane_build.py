"""Sending rows to lanes by the entropy of their instructions.

Shape letters: N rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset, concatenate_datasets

from hf_glm_curriculum.curriculum.lane_config import BASE, FAST, REFINE, LaneConfig
from hf_glm_curriculum.curriculum.lane_data import LaneDataset, LanePlan
from hf_glm_curriculum.curriculum.lane_layout import Steps
from hf_glm_curriculum.curriculum.lane_scores import Estimator, row_scores
from hf_glm_curriculum.errors import ConfigError, DataError


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
        ConfigError: if both a base and a share are given, the share is not in (0, 1], or the rows
            are to keep their places (``observe_only``) and a base is given all the same.
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
    if config.observe_only and (base is not None or base_share is not None):
        raise ConfigError(
            "observe_only: rows keep their places, so no base can take them; let the monitor "
            "observe only too, or leave the base out."
        )
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
    if base is None and share is not None:
        if not 0 < share <= 1:
            raise ConfigError(f"base_share: must lie in (0, 1], got {share}.")
        count = max(1, round(share * len(scores)))
        return np.sort(np.argsort(scores, kind="stable")[:count]), dataset
    if share is not None:
        raise ConfigError("base_share: the base has rows of its own; leave base_share out.")
    if not isinstance(base, Dataset) or not len(base):
        raise DataError(f"base: must be a datasets.Dataset with rows, got {type(base).__name__}.")
    if sorted(base.column_names) != sorted(dataset.column_names):
        raise DataError(
            f"base: must have the columns of the data set ({', '.join(dataset.column_names)}), "
            f"got {', '.join(base.column_names)}; select or rename them."
        )
    rows = np.arange(len(dataset), len(dataset) + len(base))
    return rows, concatenate_datasets([dataset, base])
