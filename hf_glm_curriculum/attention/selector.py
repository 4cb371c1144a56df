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
)

SPARE_QUERIES = 64
"""Latest queries kept beyond the probes, for caches that are cut back a little."""


@dataclass(frozen=True)
class SelectionInput:
    """What a layer's selection is made from.

    Attributes:
        layout: of the call.
        known: [S], the numbers of the layout's sequences in the state.
        state: of the batch.
        keep: whether later calls will build on this one (a cache is in use).
        layer: number of the layer.
        query: [B, H, Q, d].
        key: [B, K, N, d].
        scaling: factor on the scores.
    """

    layout: BlockLayout
    known: list[int]
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
        entropy: of the estimated masses, a number on its device; NaN without content.
        budget: keys.
        kept: share of the blocks up to its own that a tile sees, over all tiles.
    """

    choosing: int
    entropy: Tensor
    budget: float
    kept: float


class Selector:
    """Chooses blocks by a config; holds no state of its own."""

    def __init__(self, config: PositionGraphConfig, tokenizer: Any = None) -> None:
        """Take the settings and the tokenizer that texts are read with."""
        self.config, self.tokenizer = config, tokenizer

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
        counts = layout.own_number.copy()
        parts = []
        for sequence in self._choosing(given):
            tiles = np.flatnonzero(layout.tile_sequence == sequence)
            found = _OneSequence(self, given, sequence, tiles).choose()
            counts[tiles] = found.counts
            parts.append((tiles, found))
        selection = self._assemble(layout, counts, parts, given.query.device)
        kept = float(((counts + 1) / (layout.own_number + 1)).mean()) if layout.tiles else 1.0
        return selection, _facts([part for _, part in parts], kept, self.config.block_size)

    def _choosing(self, given: SelectionInput) -> list[int]:
        """The layout's sequences that have to choose, or whose latest queries must be kept."""
        layout = given.layout
        some = layout.own_number >= self.config.smallest_budget
        chosen = set(layout.tile_sequence[some].tolist())
        if given.keep and self.config.reads_content:
            active = set(given.state.active)
            chosen |= {place for place, number in enumerate(given.known) if number in active}
        return sorted(chosen)

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
    entropy: Tensor | None


def _facts(choices: list[_Choice], kept: float, block_size: int) -> SelectionFacts:
    counts = np.concatenate([x.counts[x.choosing] for x in choices] or [np.zeros(0)])
    entropy = [x.entropy for x in choices if x.entropy is not None]
    return SelectionFacts(
        len(counts),
        torch.cat(entropy).mean() if entropy else torch.tensor(float("nan")),
        float((counts.mean() + 1) * block_size) if len(counts) else float("nan"),
        kept,
    )


class _OneSequence:
    """The tiles of one sequence in one layer."""

    def __init__(
        self, selector: Selector, given: SelectionInput, sequence: int, tiles: np.ndarray
    ) -> None:
        self.config, self.tokenizer = selector.config, selector.tokenizer
        self.rank = selector.rank
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
        candidates = np.flatnonzero(self.before >= config.smallest_budget)
        groups = self.heads if config.selection != "position" and config.per == "kv_head" else 1
        counts = self.before.copy()
        none = torch.empty(groups, 0, 0, dtype=torch.int64, device=self.device)
        choice = _Choice(counts, candidates[:0], none, None)
        if len(candidates):
            choice = self._choose_among(candidates, counts, groups)
        if self.given.keep and self.config.reads_content:
            self._remember_queries()
        return choice

    def _choose_among(self, candidates: np.ndarray, counts: np.ndarray, groups: int) -> _Choice:
        old = self.memory.cells.get(self.number)
        goes_on = old is not None and self.cell[candidates[0]] == old.number
        masses = entropy = None
        fresh = candidates[1:] if goes_on else candidates
        if self.config.reads_content and len(fresh):
            masses = self._masses(fresh)
            before = torch.from_numpy(self.before[fresh]).to(self.device)
            entropy = spread(masses, before)
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
            self._remember_cell(candidates, choosing, numbers, levels[-1] if levels else 0, groups)
        return _Choice(counts, choosing, numbers, entropy)

    def _levels(self, entropy: Tensor | None, old: Cell | None, goes_on: bool) -> list[int]:
        """Places of the candidates' budgets; only a dynamic budget reads the entropy."""
        level = first_level(self.config) if old is None else old.level
        going = [level] if goes_on else []
        if entropy is None:
            return going
        if not self.config.dynamic_budget:
            return going + [level] * len(entropy)
        return going + follow_entropy(entropy.cpu().numpy(), level, self.config).tolist()

    def _budgets(self, candidates: np.ndarray, levels: list[int]) -> np.ndarray:
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
        preferred = [always_in(self.before[tiles], config)]
        if config.selection != "content":
            preferred.append(self._structural(tiles, counts[tiles]))
        if config.selection == "position":
            preferred.append(self._graph_rows("nearest_blocks", tiles, most))
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

    def _structural(self, tiles: np.ndarray, counts: np.ndarray) -> np.ndarray:
        free = np.maximum(counts - (self.config.always - 1), 0)
        limit = np.ceil(free * self.config.structural_share).astype(np.int64)
        table = self._graph_rows("structural_blocks", tiles, int(limit.max(initial=0)))
        outside = table < self.config.sink_blocks  # those are always in and need no place
        outside |= table >= self.before[tiles, None] - self.config.window_blocks
        table = np.where(outside, -1, table)
        return np.where(np.cumsum(table >= 0, axis=1) <= limit[:, None], table, -1)

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

    def _queries_at(self, positions: np.ndarray) -> Tensor:
        """Queries at positions [...] of the sequence, [H, ...]; the nearest known where unknown.

        They are those of this call, and before them what was kept of the calls before.
        """
        start, end = self._asked
        old = self.memory.queries.get(self.number)
        rows, heads = HeadRows.of(self.given.query), self.given.query.shape[1]
        text = self.text.columns.values
        first = self.given.state.seen - self.given.layout.queries
        columns = text[positions.clip(start, end - 1)] - first
        slots = torch.from_numpy(self.text.row * self.given.layout.queries + columns)
        index = rows.base(slots.to(self.device))
        index = index + rows.head_offsets(heads).view(-1, *[1] * index.dim())
        found = rows.flat.index_select(0, index.reshape(-1)).view(*index.shape, -1)
        if old is None or (positions >= start).all():
            return found
        place = torch.from_numpy((positions - start + old.shape[1]).clip(0, old.shape[1] - 1))
        before = torch.from_numpy(positions < start).to(self.device)
        return torch.where(before.unsqueeze(-1), old[:, place.to(self.device)], found)

    @property
    def _asked(self) -> tuple[int, int]:
        """First position of this call's queries, and the one past the last."""
        layout = self.given.layout
        last = self.tiles[-1]
        end = int(layout.tile_position[last] + layout.tile_length[last])
        return int(layout.tile_position[self.tiles[0]]), end

    def _probes(self, tiles: np.ndarray) -> tuple[Tensor, Tensor]:
        """The latest queries up to each tile's first: [K, g, T, P, d] and which exist [T, P]."""
        start, _ = self._asked
        old = self.memory.queries.get(self.number)
        known = start - (0 if old is None else old.shape[1])
        back = np.arange(self.config.probe - 1, -1, -1)
        positions = self.cell[tiles, None] * self.config.tile - back[None]
        exists = positions >= known
        exists[:, -1] = True  # a text entered in mid-tile: its first query must do
        weights = torch.from_numpy(exists.astype(np.float32)).to(self.device)
        return self._queries_at(positions).unflatten(0, (self.heads, -1)), weights

    def _remember_queries(self) -> None:
        start, end = self._asked
        old = self.memory.queries.get(self.number)
        room = self.config.probe + self.config.tile + SPARE_QUERIES
        known = start - (0 if old is None else old.shape[1])
        latest = np.arange(max(known, end - room, 0), end)
        self.memory.queries[self.number] = self._queries_at(latest)

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
