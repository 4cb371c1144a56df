"""What is known of the sequences of a batch, across the calls that share a key-value cache.

A call adds columns (tokens) to every row. Which of them are real, and where samples begin, is read
once; the text of a sequence becomes a position graph when a selection first asks for it. In
decoding, each layer also keeps the summaries of full blocks, the latest queries and the selection
under way, so that a token gets the keys it would have got in one forward.

Letters: B rows, n columns of a call, K key-value heads, H query heads, d head size, G selections.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Numbers
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from hf_glm_curriculum.attention.budget import KeywordRules
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.content import BlockSummaries
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.growing import GrowingArray
from hf_glm_curriculum.attention.layout import Sequence
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.segments import segment_map

T = TypeVar("T")

UNKNOWN_TOKEN = -1
"""Stands for a token whose id was never seen (embeddings given instead of ids)."""


@dataclass
class SequenceText:
    """One sample: where its tokens lie, what they are, and what is read from them on demand."""

    row: int
    columns: GrowingArray = field(default_factory=lambda: GrowingArray(np.int64))
    ids: GrowingArray = field(default_factory=lambda: GrowingArray(np.int64))
    graph: PositionGraph | None = None
    rules: KeywordRules | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def append(self, columns: np.ndarray, ids: np.ndarray) -> None:
        """Add tokens, int64 [count] each."""
        self.columns.extend(columns)
        self.ids.extend(ids)

    def graph_for(self, config: PositionGraphConfig, tokenizer: Any) -> PositionGraph:
        """The graph over all tokens so far; built when first asked for, then extended."""
        if self.graph is None:
            self.graph = PositionGraph.from_token_ids(self.ids.values, config, tokenizer)
        elif self.graph.n < len(self):
            self.graph.append(self.ids.values[self.graph.n :])
        return self.graph

    def least_budget(
        self, positions: np.ndarray, config: PositionGraphConfig, tokenizer: Any
    ) -> np.ndarray:
        """Least budget in keys, by the configured rules, of tiles that begin at ``positions``."""
        if self.rules is None:
            self.rules = KeywordRules(config.rules, tokenizer)
        self.rules.append(self.ids.values[self.rules.tokens :])
        return self.rules.least(positions)

    def copy(self, row: int) -> SequenceText:
        """A copy that grows apart, in another row."""
        graph = None if self.graph is None else self.graph.copy()
        rules = None if self.rules is None else self.rules.copy()
        return SequenceText(row, self.columns.copy(), self.ids.copy(), graph, rules)

    def first(self, tokens: int) -> SequenceText:
        """Its first tokens; graph and rules are read anew."""
        cut = SequenceText(self.row)
        cut.append(self.columns.values[:tokens], self.ids.values[:tokens])
        return cut


@dataclass(frozen=True)
class Cell:
    """The selection under way: that of the tile which later queries may still join.

    Attributes:
        number: of the tile in its sequence.
        blocks: int64 [G, C], numbers of the blocks chosen.
        level: place of the tile's budget in the dynamic budgets.
    """

    number: int
    blocks: Tensor
    level: int


@dataclass
class LayerState:
    """What one layer keeps of each sequence while its cache lives."""

    summaries: dict[int, BlockSummaries] = field(default_factory=dict)
    queries: dict[int, Tensor] = field(default_factory=dict)
    """Latest queries [H, R, d] of a sequence, its last token's at the end."""
    cells: dict[int, Cell] = field(default_factory=dict)

    def only(self, numbers: dict[int, int]) -> LayerState:
        """What is kept of some sequences, under new numbers: new → old."""

        def kept(table: dict[int, T]) -> dict[int, T]:
            return {new: table[old] for new, old in numbers.items() if old in table}

        return LayerState(kept(self.summaries), kept(self.queries), kept(self.cells))

    def crop(self, number: int, tokens: int, lost: int, block_size: int) -> None:
        """Forget a sequence's last tokens."""
        if number in self.summaries:
            self.summaries[number] = self.summaries[number].first(tokens // block_size)
        if number in self.queries:
            kept = max(0, self.queries[number].shape[1] - lost)
            self.queries[number] = self.queries[number][:, :kept]
        self.cells.pop(number, None)


class SequenceState:
    """Rows, their samples, and the layers' memory of them.

    Attributes:
        rows: B.
        seen: columns so far.
        active: for each row the number of the sample that the next token joins, -1 for none.
        texts: number → sample.
        layers: number of a layer → what it keeps.
    """

    def __init__(self, rows: int, reads_text: bool = True) -> None:
        """Start with no columns.

        Args:
            rows: B.
            reads_text: whether ids are wanted; without, they stay on their device.
        """
        self.rows, self.reads_text = rows, reads_text
        self.seen = 0
        self.active = [-1] * rows
        self.texts: dict[int, SequenceText] = {}
        self.layers: dict[int, LayerState] = {}
        self._count = 0

    def layer(self, number: int) -> LayerState:
        """The memory of one layer."""
        return self.layers.setdefault(number, LayerState())

    def extend(
        self,
        ids: Tensor,
        mask: Tensor | None,
        position_ids: Tensor | None,
        cu_seq_lens: Tensor | None = None,
    ) -> None:
        """Add columns.

        Args:
            ids: int64 [B, n], `UNKNOWN_TOKEN` where ids are not known.
            mask: [B, n], 0 on padding; None for none.
            position_ids: as the model got them; None if it counts itself.
            cu_seq_lens: boundaries of the samples in a padding-free batch.

        Raises:
            DataError: if the shapes do not belong together.
        """
        rows, count = ids.shape
        if rows != self.rows:
            raise DataError(
                f"attention: the cache holds {self.rows} rows and the call brings {rows}; "
                "give every batch a cache of its own."
            )
        if count == 1 and self.seen:
            position_ids = None  # a single token begins no sample in decoding
        if mask is None and position_ids is None and cu_seq_lens is None:
            index = np.repeat(np.arange(rows)[:, None], count, axis=1)
        else:
            index = segment_map(ids, mask, position_ids, cu_seq_lens).index.cpu().numpy()
        tokens = ids.cpu().numpy() if self.reads_text else np.full(ids.shape, UNKNOWN_TOKEN)
        starts = None if position_ids is None else _at_zero(position_ids, ids)
        for row in range(rows):
            for columns in _runs(index[row]):
                begins = self.active[row] < 0 or columns.begins
                if starts is not None and starts[row, columns.at[0]]:
                    begins = True
                if begins:
                    self.active[row] = self._count
                    self.texts[self._count] = SequenceText(row)
                    self._count += 1
                text = self.texts[self.active[row]]
                text.append(columns.at + self.seen, tokens[row, columns.at])
        self.seen += count

    def sequences(self, queries: int) -> tuple[list[Sequence], list[int]]:
        """The sequences that the last ``queries`` columns belong to, and their numbers here."""
        first = self.seen - queries
        known = [
            number
            for number, text in self.texts.items()
            if len(text) and text.columns.values[-1] >= first
        ]
        found = [Sequence(self.texts[one].row, self.texts[one].columns.values) for one in known]
        return found, known

    def forget_all_but_active(self) -> None:
        """Drop what no later token can ask for."""
        keep = {number: number for number in self.active}
        self.texts = {number: text for number, text in self.texts.items() if number in keep}
        self.layers = {number: layer.only(keep) for number, layer in self.layers.items()}

    def select_rows(self, chosen: Numbers[int]) -> None:
        """Keep the rows ``chosen``, which may repeat (beam search, several answers a prompt)."""
        numbers = {row: self.active[old] for row, old in enumerate(chosen) if self.active[old] >= 0}
        self.texts = {row: self.texts[old].copy(row) for row, old in numbers.items()}
        self.layers = {number: layer.only(numbers) for number, layer in self.layers.items()}
        self.active = [row if row in numbers else -1 for row in range(len(chosen))]
        self.rows = self._count = len(chosen)

    def crop(self, columns: int, block_size: int) -> None:
        """Keep the first ``columns`` columns (a cache was cut, as in assisted decoding)."""
        for number, text in list(self.texts.items()):
            kept = int(np.searchsorted(text.columns.values, columns))
            if kept == len(text):
                continue
            for layer in self.layers.values():
                layer.crop(number, kept, len(text) - kept, block_size)
            self.texts[number] = text.first(kept)
            if not kept:
                del self.texts[number]
        self.seen = columns
        self.active = [-1] * self.rows
        for number, text in sorted(self.texts.items()):
            self.active[text.row] = number


@dataclass(frozen=True)
class _Run:
    """Columns of one sample in a call: int64 ``at``; ``begins`` if not the row's first sample."""

    at: np.ndarray
    begins: bool


def _runs(index: np.ndarray) -> Iterator[_Run]:
    """The samples of one row of a segment map, in order."""
    real = np.flatnonzero(index >= 0)
    if not len(real):
        return
    bounds = np.flatnonzero(np.diff(index[real])) + 1
    for place, at in enumerate(np.split(real, bounds)):
        yield _Run(at, place > 0)


def _at_zero(position_ids: Tensor, ids: Tensor) -> np.ndarray:
    """Whether each token stands at position 0, bool [B, n]."""
    places = position_ids[0] if position_ids.dim() == 3 else position_ids
    return (places == 0).expand(ids.shape).cpu().numpy()
