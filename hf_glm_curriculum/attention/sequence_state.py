"""What is known of the sequences of a batch, across the calls that share a key-value cache.

A call adds columns (tokens) to every row. Which of them are real, and where samples begin, is read
once; the text of a sequence becomes a position graph when a selection first asks for it. In
decoding, each layer also keeps the summaries of full blocks, the latest queries and the selection
under way, so that a token costs O(1) amortised and gets the keys it would have got in one forward.

Letters: B rows, N columns seen so far, K key-value heads, H query heads, d head size, G selections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.budget import KeywordRules
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.content import BlockSummaries
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.layout import Sequences
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.segments import segment_map

UNKNOWN_TOKEN = -1
"""Stands for a token whose id was never seen (embeddings given instead of ids)."""


@dataclass
class SequenceText:
    """The tokens of one sequence, and what is read from them on demand."""

    ids: np.ndarray
    graph: PositionGraph | None = None
    rules: KeywordRules | None = None

    def append(self, ids: np.ndarray) -> None:
        """Add tokens, int64 [count]."""
        self.ids = np.concatenate([self.ids, ids])

    def graph_for(self, config: PositionGraphConfig, tokenizer: Any) -> PositionGraph:
        """The graph over all tokens so far; built when first asked for, then extended."""
        if self.graph is None:
            self.graph = PositionGraph.from_token_ids(self.ids, config, tokenizer)
        elif self.graph.n < len(self.ids):
            self.graph.append(self.ids[self.graph.n :])
        return self.graph

    def least_budget(
        self, positions: np.ndarray, config: PositionGraphConfig, tokenizer: Any
    ) -> np.ndarray:
        """Least budget in keys, by the configured rules, of tiles that begin at ``positions``."""
        if self.rules is None:
            self.rules = KeywordRules(config.rules, tokenizer)
        self.rules.append(self.ids[self.rules.tokens :])
        return self.rules.least(positions)

    def copy(self) -> SequenceText:
        """A copy that grows apart."""
        graph = None if self.graph is None else self.graph.copy()
        return SequenceText(self.ids, graph, None if self.rules is None else self.rules.copy())


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


class SequenceState:
    """Rows, samples and their texts, and the layers' memory of them."""

    def __init__(self, rows: int) -> None:
        """Start with no columns."""
        self.index = np.full((rows, 0), -1, dtype=np.int64)
        self.position = np.full((rows, 0), -1, dtype=np.int64)
        self.count = 0
        self.active = np.full(rows, -1, dtype=np.int64)
        self.texts: dict[int, SequenceText] = {}
        self.layers: dict[int, LayerState] = {}

    @property
    def rows(self) -> int:
        """B."""
        return self.index.shape[0]

    @property
    def seen(self) -> int:
        """N."""
        return self.index.shape[1]

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
        if ids.shape[0] != self.rows:
            raise DataError(
                f"attention: the cache holds {self.rows} rows and the call brings {ids.shape[0]}; "
                "give every batch a cache of its own."
            )
        segments = segment_map(
            ids, mask, position_ids if self._restarts(position_ids) else None, cu_seq_lens
        )
        index = segments.index.cpu().numpy()
        inside = segments.position.cpu().numpy()
        tokens = ids.cpu().numpy()
        old_active = self.active.copy()
        new_index = np.where(index >= 0, index + self.count, -1)
        new_position = inside.copy()
        for row in range(self.rows):
            self._continue_row(
                row, old_active[row], position_ids, new_index[row], new_position[row]
            )
        self.count += segments.count
        self.index = np.concatenate([self.index, new_index], axis=1)
        self.position = np.concatenate([self.position, new_position], axis=1)
        self._take_tokens(new_index, tokens)

    def _restarts(self, position_ids: Tensor | None) -> bool:
        """Whether positions may tell samples apart: one token alone begins none in decoding."""
        return position_ids is not None and not (self.seen and position_ids.shape[-1] == 1)

    def _continue_row(
        self,
        row: int,
        active: int,
        position_ids: Tensor | None,
        index: np.ndarray,
        position: np.ndarray,
    ) -> None:
        """Let a row's first new sample continue the one under way; in place."""
        real = np.flatnonzero(index >= 0)
        if not len(real):
            return
        first = index[real[0]]
        if active >= 0 and not self._begins(position_ids, row, real[0]):
            so_far = self.texts[active].ids.shape[0]
            joins = index == first
            index[joins] = active
            position[joins] += so_far
        self.active[row] = index[real[-1]]

    def _begins(self, position_ids: Tensor | None, row: int, column: int) -> bool:
        """Whether the first new token of a row stands at position 0, in a call of several."""
        if position_ids is None or position_ids.shape[-1] == 1:
            return False
        places = position_ids[0] if position_ids.dim() == 3 else position_ids
        places = places if places.dim() == 2 else places[None]
        return int(places[min(row, places.shape[0] - 1), column]) == 0

    def _take_tokens(self, index: np.ndarray, tokens: np.ndarray) -> None:
        for row in range(self.rows):
            for sequence in np.unique(index[row][index[row] >= 0]).tolist():
                new = tokens[row][index[row] == sequence].astype(np.int64)
                text = self.texts.get(sequence)
                if text is None:
                    self.texts[sequence] = SequenceText(new)
                else:
                    text.append(new)

    def sequences(self, queries: int) -> tuple[Sequences, np.ndarray]:
        """The sequences that the last ``queries`` columns belong to, numbered anew.

        Returns:
            Their slots, and int64 [S], the numbers they have here.
        """
        asked = self.index[:, self.seen - queries :]
        known = np.unique(asked[asked >= 0])
        lookup = np.full(max(self.count, 1) + 1, -1, dtype=np.int64)
        lookup[known] = np.arange(len(known))
        index = np.where(self.index >= 0, lookup[self.index], -1)
        return Sequences(index, np.where(index >= 0, self.position, -1), len(known)), known

    def forget_all_but_active(self) -> None:
        """Drop what no later token can ask for."""
        keep = set(self.active.tolist())
        self.texts = {key: text for key, text in self.texts.items() if key in keep}
        for layer in self.layers.values():
            for table in (layer.summaries, layer.queries, layer.cells):
                for key in [key for key in table if key not in keep]:
                    del table[key]

    def select_rows(self, chosen: Sequence[int]) -> None:
        """Keep the rows ``chosen``, which may repeat (beam search, several answers a prompt)."""
        rows = np.asarray(chosen, dtype=np.int64)
        index, texts = self.index[rows], {}
        layers = {number: LayerState() for number in self.layers}
        new_index = np.full_like(index, -1)
        for row, old_row in enumerate(rows.tolist()):
            old = int(self.active[old_row])
            if old < 0:
                continue
            new_index[row][index[row] == old] = row
            texts[row] = self.texts[old].copy()
            for number, layer in self.layers.items():
                layer_copy = layers[number]
                for table, target in (
                    (layer.summaries, layer_copy.summaries),
                    (layer.queries, layer_copy.queries),
                    (layer.cells, layer_copy.cells),
                ):
                    if old in table:
                        target[row] = table[old]  # type: ignore[assignment]
        self.active = np.where(self.active[rows] >= 0, np.arange(len(rows)), -1)
        self.index, self.position = new_index, self.position[rows]
        self.position = np.where(new_index >= 0, self.position, -1)
        self.count, self.texts, self.layers = len(rows), texts, layers

    def crop(self, columns: int, block_size: int) -> None:
        """Keep the first ``columns`` columns (a cache was cut, as in assisted decoding)."""
        self.index, self.position = self.index[:, :columns], self.position[:, :columns]
        for row in range(self.rows):
            real = np.flatnonzero(self.index[row] >= 0)
            self.active[row] = self.index[row][real[-1]] if len(real) else -1
        for sequence in list(self.texts):
            length = int((self.index == sequence).sum())
            lost = len(self.texts[sequence].ids) - length
            if not lost:
                continue
            self.texts[sequence] = SequenceText(self.texts[sequence].ids[:length])
            for layer in self.layers.values():
                _crop_layer(layer, sequence, length, lost, block_size)
            if not length:
                del self.texts[sequence]


def _crop_layer(layer: LayerState, sequence: int, length: int, lost: int, block_size: int) -> None:
    if sequence in layer.summaries:
        kept = layer.summaries[sequence].first(length // block_size)
        layer.summaries[sequence] = kept
    if sequence in layer.queries:
        queries = layer.queries[sequence]
        layer.queries[sequence] = queries[:, : max(0, queries.shape[1] - lost)]
    layer.cells.pop(sequence, None)


def latest(old: Tensor | None, new: Tensor, room: int) -> Tensor:
    """The last ``room`` of the queries old and new, [H, R, d], without gradients."""
    new = new[:, -room:].detach()
    if old is None or new.shape[1] == room:
        return new.clone()
    return torch.cat([old, new], dim=1)[:, -room:]
