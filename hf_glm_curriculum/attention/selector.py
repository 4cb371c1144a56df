"""Which blocks the tiles of a call see: always-in blocks, the graph, the content of the keys.

A tile's choice depends on what stood before it alone: on tokens before its block, on the keys of
full blocks before it, and on the queries up to its own first one. Later tokens of the tile cannot
change it, so no future token shows through, and a text read in pieces gets the same choices.

Letters: T tiles (here of one sequence), G selections, K key-value heads, H query heads, C blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.rows import HeadRows
from hf_glm_curriculum.attention.budget import first_level, follow_entropy
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.content import (
    BlockSummaries,
    block_masses,
    spread,
    summarize_blocks,
)
from hf_glm_curriculum.attention.layout import BlockLayout
from hf_glm_curriculum.attention.selection import (
    BlockSelection,
    always_in,
    budget_counts,
    choose_numbers,
)
from hf_glm_curriculum.attention.sequence_state import (
    Cell,
    LayerState,
    SequenceState,
    SequenceText,
    latest,
)

SPARE_QUERIES = 64
"""Latest queries kept beyond the probes, for caches that are cut back a little."""


@dataclass(frozen=True)
class SelectionInput:
    """What a layer's selection is made from.

    Attributes:
        layout: of the call.
        known: int64 numpy [S], the numbers of the layout's sequences in the state.
        state: of the batch.
        keep: whether later calls will build on this one (a cache is in use).
        layer: number of the layer.
        query: [B, H, Q, d].
        key: [B, K, N, d].
        scaling: factor on the scores.
    """

    layout: BlockLayout
    known: np.ndarray
    state: SequenceState
    keep: bool
    layer: int
    query: Tensor
    key: Tensor
    scaling: float


@dataclass(frozen=True)
class SelectionFacts:
    """What is reported of a selection: means over the tiles that had to choose.

    Attributes:
        choosing: tiles that had more blocks before them than their budget.
        entropy: of the estimated masses; NaN without content.
        budget: keys.
        kept: share of the blocks up to its own that a tile sees, over all tiles.
    """

    choosing: int
    entropy: float
    budget: float
    kept: float


class Selector:
    """Chooses blocks by a config; holds no state of its own."""

    def __init__(self, config: PositionGraphConfig, tokenizer: Any = None) -> None:
        """Take the settings and the tokenizer that texts are read with."""
        self.config, self.tokenizer = config, tokenizer
        self.reads_content = config.selection != "position" or config.dynamic_budget

    def rank(self, scores: Tensor) -> Tensor:
        """Scores the blocks are ranked by, from their estimated masses; both float [G, T, W].

        A subclass may rank by something else: benchmarks fill the budget with recent or random
        blocks this way.
        """
        return scores

    @torch.no_grad()
    def select(self, given: SelectionInput) -> tuple[BlockSelection, SelectionFacts]:
        """Choose the blocks of every tile of a call."""
        layout = given.layout
        counts = np.zeros(layout.tiles, dtype=np.int64)
        parts = []
        facts = []
        for sequence in range(len(given.known)):
            tiles = np.flatnonzero(layout.tile_sequence == sequence)
            if len(tiles):
                found = _OneSequence(self, given, sequence, tiles).choose()
                counts[tiles] = found.counts
                parts.append((tiles, found))
                facts.append(found)
        kept = float(((counts + 1) / (layout.own_number + 1)).mean()) if layout.tiles else 1.0
        return self._assemble(layout, counts, parts, given.query.device), _facts(facts, kept)

    def _assemble(
        self,
        layout: BlockLayout,
        counts: np.ndarray,
        parts: list[tuple[np.ndarray, _Choice]],
        device: torch.device,
    ) -> BlockSelection:
        """Bring the choices of all sequences into one table of the layout's blocks."""
        most = int(counts.max(initial=0))
        groups = max([1, *(part.numbers.shape[0] for _, part in parts)])
        blocks = torch.full((groups, layout.tiles, most), -1, dtype=torch.int64, device=device)
        place = torch.arange(most, device=device)
        count = torch.from_numpy(counts).to(device)
        first = torch.from_numpy(layout.first_block[layout.tile_sequence]).to(device)
        all_of_them = torch.where(place < count[:, None], place + first[:, None], -1)
        blocks[:] = all_of_them
        for tiles, part in parts:
            chosen = torch.from_numpy(tiles[part.choosing]).to(device)
            if len(chosen):
                width = part.numbers.shape[-1]
                shifted = part.numbers + first[chosen][None, :, None]
                blocks[:, chosen, :width] = torch.where(part.numbers < 0, -1, shifted)
        return BlockSelection(blocks, counts)


@dataclass(frozen=True)
class _Choice:
    """The choice of one sequence's tiles: ``numbers`` [G, T', C] of those that had to choose."""

    counts: np.ndarray
    choosing: np.ndarray
    numbers: Tensor
    entropy: np.ndarray
    block_size: int


def _facts(choices: list[_Choice], kept: float) -> SelectionFacts:
    counts = np.concatenate([x.counts[x.choosing] for x in choices] or [np.zeros(0)])
    entropy = np.concatenate([x.entropy for x in choices] or [np.zeros(0)])
    entropy = entropy[~np.isnan(entropy)]
    size = choices[0].block_size if choices else 0
    return SelectionFacts(
        len(counts),
        float(entropy.mean()) if len(entropy) else float("nan"),
        float((counts.mean() + 1) * size) if len(counts) else float("nan"),
        kept,
    )


class _OneSequence:
    """The tiles of one sequence in one layer."""

    def __init__(
        self, selector: Selector, given: SelectionInput, sequence: int, tiles: np.ndarray
    ) -> None:
        self.config, self.tokenizer = selector.config, selector.tokenizer
        self.reads_content, self.rank = selector.reads_content, selector.rank
        self.given, self.sequence, self.tiles = given, sequence, tiles
        layout = given.layout
        self.number = int(given.known[sequence])
        self.memory = given.state.layer(given.layer) if given.keep else LayerState()
        self.text: SequenceText = given.state.texts[self.number]
        self.before = layout.own_number[tiles]
        self.cell = layout.tile_position[tiles] // self.config.tile
        self.device = given.query.device
        self.heads = given.key.shape[1]

    def choose(self) -> _Choice:
        """Choose, and remember what later calls need."""
        config = self.config
        smallest = config.blocks(config.budgets[0] if config.dynamic_budget else config.top_k)
        candidates = np.flatnonzero(self.before > max(smallest - 1, 0))
        groups = self.heads if config.selection != "position" and config.per == "kv_head" else 1
        counts = self.before.copy()
        none = torch.empty(groups, 0, 0, dtype=torch.int64, device=self.device)
        choice = _Choice(counts, candidates[:0], none, np.zeros(0), config.block_size)
        if len(candidates):
            choice = self._choose_among(candidates, counts, groups)
        if self.given.keep and self.reads_content:
            self._remember_queries()
        return choice

    def _choose_among(self, candidates: np.ndarray, counts: np.ndarray, groups: int) -> _Choice:
        old = self.memory.cells.get(self.number)
        goes_on = old is not None and self.cell[candidates[0]] == old.number
        masses, entropy = None, np.full(len(candidates), np.nan)
        fresh = candidates[1:] if goes_on else candidates
        if self.reads_content and len(fresh):
            masses = self._masses(fresh)
            before = torch.from_numpy(self.before[fresh]).to(self.device)
            entropy[len(candidates) - len(fresh) :] = spread(masses, before).cpu().numpy()
        levels = self._levels(entropy, old, goes_on)
        budgets = self._budgets(candidates, levels)
        counts[candidates] = budget_counts(budgets, self.before[candidates])
        if goes_on and old is not None:
            counts[candidates[0]] = int((old.blocks[0] >= 0).sum())
        choosing = candidates[counts[candidates] < self.before[candidates]]
        numbers = self._numbers(choosing, fresh, counts, masses, groups)
        if goes_on and old is not None and len(choosing) and choosing[0] == candidates[0]:
            numbers = _with_first(numbers, old.blocks)
        if self.given.keep:
            self._remember_cell(candidates, choosing, numbers, int(levels[-1]), groups)
        return _Choice(counts, choosing, numbers, entropy, self.config.block_size)

    def _levels(self, entropy: np.ndarray, old: Cell | None, goes_on: bool) -> np.ndarray:
        if not self.config.dynamic_budget:
            return np.zeros(len(entropy), dtype=np.int64)
        level = first_level(self.config) if old is None else old.level
        fresh = entropy[1:] if goes_on else entropy
        levels = follow_entropy(fresh, level, self.config)
        return np.concatenate([[level], levels]).astype(np.int64) if goes_on else levels

    def _budgets(self, candidates: np.ndarray, levels: np.ndarray) -> np.ndarray:
        """Blocks each candidate may see, its own among them."""
        config = self.config
        keys = np.full(len(candidates), config.top_k, dtype=np.int64)
        if config.dynamic_budget:
            keys = np.asarray(config.budgets, dtype=np.int64)[levels]
        if config.rules:
            start = self.cell[candidates] * config.tile
            keys = np.maximum(keys, self.text.least_budget(start, config, self.tokenizer))
        return keys // config.block_size

    def _numbers(
        self,
        choosing: np.ndarray,
        fresh: np.ndarray,
        counts: np.ndarray,
        masses: Tensor | None,
        groups: int,
    ) -> Tensor:
        """Numbers of the chosen blocks, [G, T', C]; rows of a tile that goes on stay free."""
        config = self.config
        wanted = np.flatnonzero(np.isin(choosing, fresh))
        most = int(counts[choosing].max(initial=0))
        numbers = torch.full((groups, len(choosing), most), -1, device=self.device)
        numbers = numbers.long()
        if not len(wanted):
            return numbers
        tiles = choosing[wanted]
        preferred = [self._always(tiles)]
        if config.selection != "content":
            preferred.append(self._structural(tiles, counts[tiles]))
        if config.selection == "position":
            preferred.append(self._nearest(tiles, most))
            scores = torch.zeros(1, len(tiles), int(self.before[tiles].max()), device=self.device)
        else:
            assert masses is not None
            scores = masses[:, np.searchsorted(fresh, tiles)]
            if config.per == "layer":
                scores = scores.sum(0, keepdim=True)
        chosen = choose_numbers(
            self.rank(scores),
            torch.from_numpy(np.concatenate(preferred, axis=1)).to(self.device),
            counts[tiles],
            self.before[tiles],
        )
        numbers[:, wanted, : chosen.shape[-1]] = chosen
        return numbers

    def _always(self, tiles: np.ndarray) -> np.ndarray:
        return always_in(self.before[tiles], self.config)

    def _structural(self, tiles: np.ndarray, counts: np.ndarray) -> np.ndarray:
        free = np.maximum(counts - (self.config.always - 1), 0)
        limit = np.ceil(free * self.config.structural_share).astype(np.int64)
        table = self._graph_rows("structural_blocks", tiles, int(limit.max(initial=0)))
        outside = table < self.config.sink_blocks  # those are always in and need no place
        back = -(-self.config.window // self.config.block_size)
        outside |= table >= self.before[tiles, None] - back
        table = np.where(outside, -1, table)
        return np.where(np.cumsum(table >= 0, axis=1) <= limit[:, None], table, -1)

    def _nearest(self, tiles: np.ndarray, count: int) -> np.ndarray:
        return self._graph_rows("nearest_blocks", tiles, count)

    def _graph_rows(self, name: str, tiles: np.ndarray, count: int) -> np.ndarray:
        """Rows of the graph for the tiles' own blocks, int64 [T, count]."""
        if count == 0:
            return np.empty((len(tiles), 0), dtype=np.int64)
        graph = self.text.graph_for(self.config, self.tokenizer)
        own = self.before[tiles]
        first = int(own.min())
        rows = getattr(graph, name)(first, int(own.max()) + 1, count)
        return np.asarray(rows, dtype=np.int64)[own - first]

    def _masses(self, tiles: np.ndarray) -> Tensor:
        """Estimated masses [K, T, W] of the blocks before each tile."""
        probes, weights = self._probes(tiles)
        summaries = self._summaries(int(self.before[tiles].max()))
        before = torch.from_numpy(self.before[tiles]).to(self.device)
        masses = block_masses(probes, weights, summaries, before, self.given.scaling)
        recent = torch.arange(masses.shape[-1], device=self.device, dtype=masses.dtype)
        return masses + recent * 1e-30  # among equals, the more recent

    def _summaries(self, blocks: int) -> BlockSummaries:
        """Summaries of the sequence's first ``blocks`` blocks; new ones are made from the keys."""
        known = self.memory.summaries.get(self.number)
        start = 0 if known is None else known.blocks
        if known is None or start < blocks:
            layout = self.given.layout
            first = int(layout.first_block[self.sequence])
            slots = torch.from_numpy(layout.key_slots[first + start : first + blocks])
            rows = HeadRows.of(self.given.key)
            index = rows.base(slots.to(self.device)).reshape(1, -1)
            index = index + rows.head_offsets(self.heads)[:, None]
            keys = rows.flat.index_select(0, index.reshape(-1))
            keys = keys.view(self.heads, blocks - start, self.config.block_size, -1)
            more = summarize_blocks(keys, self.config.outliers, self.config.summary_order)
            known = more if known is None else known.join(more)
            if self.given.keep:
                self.memory.summaries[self.number] = known
        return known.first(blocks)

    def _own_queries(self) -> Tensor:
        """All queries of the sequence in this call, in order, [H, n, d]."""
        layout = self.given.layout
        slots = layout.query_slots[self.tiles]
        slots = torch.from_numpy(slots[slots >= 0]).to(self.device)
        rows = HeadRows.of(self.given.query)
        index = rows.base(slots)[None] + rows.head_offsets(self.given.query.shape[1])[:, None]
        return rows.flat.index_select(0, index.reshape(-1)).view(*index.shape, -1)

    def _probes(self, tiles: np.ndarray) -> tuple[Tensor, Tensor]:
        """The latest queries up to each tile's first: [K, g, T, P, d] and which exist [T, P]."""
        queries = self._own_queries()
        old = self.memory.queries.get(self.number)
        start = int(self.given.layout.tile_position[self.tiles[0]])
        if old is not None:
            queries = torch.cat([old, queries], dim=1)
            start -= old.shape[1]
        back = np.arange(self.config.probe - 1, -1, -1)
        place = self.cell[tiles, None] * self.config.tile - back[None] - start
        weights = torch.from_numpy((place >= 0).astype(np.float32)).to(self.device)
        if not (place[:, -1] >= 0).all():  # a text entered in mid-tile: its first query must do
            weights[:, -1] = 1.0
        index = torch.from_numpy(place.clip(min=0)).to(self.device)
        probes = queries[:, index]
        return probes.unflatten(0, (self.heads, -1)), weights

    def _remember_queries(self) -> None:
        room = self.config.probe + self.config.tile + SPARE_QUERIES
        old = self.memory.queries.get(self.number)
        self.memory.queries[self.number] = latest(old, self._own_queries(), room)

    def _remember_cell(
        self,
        candidates: np.ndarray,
        choosing: np.ndarray,
        numbers: Tensor,
        level: int,
        groups: int,
    ) -> None:
        last = candidates[-1]
        if len(choosing) and choosing[-1] == last:
            row = numbers[:, -1]
            blocks = row[:, : int((row[0] >= 0).sum())].clone()
        else:
            place = torch.arange(int(self.before[last]), device=self.device)
            blocks = place.expand(groups, -1)
        self.memory.cells[self.number] = Cell(int(self.cell[last]), blocks, level)


def _with_first(numbers: Tensor, blocks: Tensor) -> Tensor:
    """Put the selection of a tile that goes on into the first row."""
    room = numbers.shape[-1] - blocks.shape[-1]
    numbers[:, 0] = torch.nn.functional.pad(blocks, (0, room), value=-1)
    return numbers
