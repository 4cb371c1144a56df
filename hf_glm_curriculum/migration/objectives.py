"""Whose objective a sample belongs to: by its content, or by a column of the batch.

Letters: B rows, T positions, S samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.migration.schedule import INSTRUCTION, OTHER, PRETRAIN
from hf_glm_curriculum.signals.microbatch import Microbatch

UNKNOWN = 3
"""Number under which samples that belong to no known source are counted; they train as OTHER."""

COLUMN = "source"
"""Name of the batch's tensor that says which source each row comes from."""


class Mixture(Protocol):
    """What migration asks of a mixture; ``CurriculumMixture`` answers."""

    @property
    def source_names(self) -> Sequence[str]:
        """Names of the sources, in a fixed order."""
        ...

    @property
    def ratios(self) -> Mapping[str, float]:
        """The share of each source last asked for."""
        ...

    @property
    def unit(self) -> str:
        """What ratios are shares of: "tokens" or "rows", a key of what ``drawn`` returns."""
        ...

    @property
    def lag_steps(self) -> int:
        """Steps from ``set_ratios`` to the first step it acts on."""
        ...

    def set_ratios(self, ratios: Mapping[str, float], step: int | None = None) -> Any:
        """Ask for other shares."""
        ...

    def ratios_at(self, step: int) -> Mapping[str, float]:
        """The shares in effect at an optimizer step."""
        ...

    def drawn(self, step: int | None = None) -> Mapping[str, Mapping[str, int]]:
        """Rows and label tokens of each source that the first ``step`` steps hold."""
        ...

    def source_index(self, ids: Tensor) -> Tensor:
        """Which source each content id belongs to, −1 where none is known."""
        ...

    def connect(self, args: Any) -> Any:
        """Learn from a trainer's arguments how rows become steps."""
        ...

    def reset(self) -> Any:
        """Forget the changes and draws of an earlier run."""
        ...

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """What a resumed run needs, in JSON types."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Continue from a state."""
        ...


class DatasetTags:
    """Tells rows of several tokenised data sets apart by their content ids."""

    def __init__(self, datasets: Mapping[str, Any]) -> None:
        """Index the data sets.

        Raises:
            DataError: if one has no length, no rows, or two hold the same sample.
        """
        self.source_names = list(datasets)
        self._indexes = [SampleIndex.from_dataset(dataset) for dataset in datasets.values()]
        seen = [np.unique(index.row_ids.numpy()) for index in self._indexes]
        for later in range(1, len(seen)):
            for earlier in range(later):
                common = np.intersect1d(seen[earlier], seen[later]).size
                if common:
                    raise DataError(
                        f"tags: {self.source_names[earlier]!r} and {self.source_names[later]!r} "
                        f"share {common} samples, whose objective is then undecided; take them "
                        "out of one of the two."
                    )

    def source_index(self, ids: Tensor) -> Tensor:
        """[S] int64: the position in ``source_names`` of each id's data set, −1 if in none."""
        found = torch.full_like(ids, -1)
        for number, index in enumerate(self._indexes):
            found = torch.where(index.lookup(ids) >= 0, number, found)
        return found


class Objectives:
    """Gives every sample of a micro-batch the number of its objective."""

    def __init__(self, sources: Any, pretrain: str, instruction: str) -> None:
        """Read the names of the two objectives' sources.

        Args:
            sources: a mixture or :class:`DatasetTags`; None if batches carry a source column, in
                which 0 is pre-training and 1 is instruction.
            pretrain: name of the pre-training source.
            instruction: name of the instruction source.

        Raises:
            ConfigError: if a name is not among the sources, or both are the same.
        """
        names = [pretrain, instruction] if sources is None else list(sources.source_names)
        for field, name in (("pretrain_source", pretrain), ("instruction_source", instruction)):
            if name not in names:
                raise ConfigError(
                    f"{field}: must be one of the sources {', '.join(map(repr, names))}, got "
                    f"{name!r}."
                )
        if pretrain == instruction:
            raise ConfigError(
                f"instruction_source: must differ from pretrain_source, got {pretrain!r} for both."
            )
        self._sources = sources
        # One more entry, for −1: whatever no source claims.
        table = torch.full((len(names) + 1,), OTHER)
        table[names.index(pretrain)] = PRETRAIN
        table[names.index(instruction)] = INSTRUCTION
        table[-1] = UNKNOWN
        self._table = table

    def of(self, batch: Microbatch, column: Tensor | None) -> Tensor:
        """The objective of each sample.

        Args:
            batch: a micro-batch whose ids are known.
            column: source of each row [B], sample [S] or position [B, T], or None.

        Returns:
            [S] int64 PRETRAIN, INSTRUCTION, OTHER, or UNKNOWN.

        Raises:
            DataError: if neither sources nor column say, or the column does not fit.
        """
        if column is not None:
            source = sample_sources(batch, column)
        elif self._sources is not None:
            source = self._sources.source_index(batch.ids)
        else:
            raise DataError(
                f"{COLUMN}: the batch has no such tensor, and there is neither mixture= nor tags= "
                "to tell objectives by; add the column, keep it (remove_unused_columns=False) and "
                "collate it, or pass the sources."
            )
        if self._table.device != source.device:
            self._table = self._table.to(source.device)
        last = len(self._table) - 1
        known = (source >= 0) & (source < last)
        return self._table[torch.where(known, source, last)]


def sample_sources(batch: Microbatch, column: Tensor) -> Tensor:
    """Read the source of each sample off a batch's column: [B], [S] or [B, T] → [S] int64.

    Raises:
        DataError: if the shape fits neither rows, samples nor positions.
    """
    segments = batch.segments.index
    column = column.to(segments.device).long()
    rows, width = (1, segments.numel()) if segments.dim() == 1 else segments.shape
    if column.dim() == 1 and column.numel() == batch.count:
        return column
    if column.dim() == 1 and column.numel() == rows:
        column = column[:, None].expand(rows, width)
    if column.numel() != segments.numel():
        raise DataError(
            f"{COLUMN}: must be one number a row [{rows}], sample [{batch.count}] or position "
            f"[{rows}, {width}], got {list(column.shape)}."
        )
    found = column.new_full((batch.count + 1,), -1)
    slot = torch.where(segments >= 0, segments, batch.count).reshape(-1)
    # All positions of a sample say the same; which of them is written last does not matter.
    found.scatter_(0, slot, column.reshape(-1))
    return found[: batch.count]


class SourceColumn:
    """Takes the source column out of a model's inputs, which no model knows."""

    def __init__(self, model: nn.Module) -> None:
        """Start taking it out; ends with :meth:`close`."""
        self._model = model
        self.values: Tensor | None = None
        hook: Any = torch.compiler.disable(self._take)
        self._handle = model.register_forward_pre_hook(hook, with_kwargs=True)

    def _take(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        if module is not self._model:
            return None
        self.values = kwargs.get(COLUMN)
        if COLUMN not in kwargs:
            return None
        return args, {name: value for name, value in kwargs.items() if name != COLUMN}

    def close(self) -> None:
        """Leave the inputs alone again."""
        self._handle.remove()
        self.values = None
