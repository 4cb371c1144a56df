"""The position graph of one sequence: which earlier blocks of positions belong to a block."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.document_reader import (
    DocumentReader,
    Finding,
    TurnReader,
    tokenizer_fingerprint,
)
from hf_glm_curriculum.attention.encoders import make_encoder
from hf_glm_curriculum.attention.graph_input import (
    checked_edges,
    checked_ids,
    checked_range,
    message_ids,
)
from hf_glm_curriculum.attention.growing import GrowingArray
from hf_glm_curriculum.attention.neighbourhoods import Neighbourhoods
from hf_glm_curriculum.attention.outline import CODES, KINDS, Edge, Outline
from hf_glm_curriculum.attention.row_cache import RowCache
from hf_glm_curriculum.attention.structural import BlockLinks
from hf_glm_curriculum.errors import DataError

logger = logging.getLogger(__name__)


class PositionGraph:
    """Positions of one sequence in blocks, and edges between them.

    Edges come from the window, the document's start, its headings, clauses and definitions,
    references to them, the turns of a dialogue, and the user. All lead from a later position to
    an earlier one. The graph can grow at its end; that changes no row that was there.

    Rows are strictly causal: that of query block q depends on the tokens before q·block_size
    alone, and on user edges.

    Attributes:
        config: The settings it was built with.
        n: Positions.
        fingerprint: Of the tokenizer it reads the text with, "" without one.
    """

    def __init__(self, config: PositionGraphConfig | None = None, tokenizer: Any = None) -> None:
        """Start with no positions.

        Args:
            config: Settings; the defaults if None.
            tokenizer: Decodes the text that structure and turns are found in.

        Raises:
            ConfigError: ``structure`` names an unknown detector.
            MissingDependencyError: The encoder needs a library that is not installed.
        """
        self.config = config or PositionGraphConfig()
        self.n = 0
        self.fingerprint = "" if tokenizer is None else tokenizer_fingerprint(tokenizer)
        self._tokenizer = tokenizer
        self._reader: DocumentReader | TurnReader | None = None
        if tokenizer is not None and (self.config.structure or self.config.turns):
            self._reader = DocumentReader(tokenizer, self.config)
        self._ids = GrowingArray(np.int64)
        self._edges = GrowingArray(np.int64, (4,))
        self._outline = Outline()
        self._encoder = make_encoder(self.config)
        window = self.config.window_blocks
        self._around = Neighbourhoods(window, self.config.hops)
        self._links = BlockLinks(window)
        self._user: dict[int, list[Edge]] = {}
        self._rows = RowCache()
        self._open_block()

    @classmethod
    def from_token_ids(
        cls,
        ids: Any,
        config: PositionGraphConfig | None = None,
        tokenizer: Any = None,
        edges: Iterable[tuple[int, int]] = (),
    ) -> PositionGraph:
        """The graph of a sequence of tokens.

        Args:
            ids: Token ids, one dimension: a list, array or tensor.
            config: Settings.
            tokenizer: Without it there are only the window, the document's start and user edges.
            edges: Pairs of positions to link.

        Raises:
            DataError: The ids are no row of integers; an edge leaves the sequence.
            ConfigError: ``structure`` names an unknown detector.
        """
        graph = cls(config, tokenizer)
        if tokenizer is None and (graph.config.structure or graph.config.turns):
            _say_without_tokenizer()
        graph.append(ids, edges)
        return graph

    @classmethod
    def from_text(
        cls,
        text: str,
        tokenizer: Any,
        config: PositionGraphConfig | None = None,
        edges: Iterable[tuple[int, int]] = (),
    ) -> PositionGraph:
        """The graph of a text as the tokenizer splits it, special tokens among them.

        Raises:
            DataError: An edge leaves the sequence.
            ConfigError: ``structure`` names an unknown detector.
        """
        ids = tokenizer(text, verbose=False)["input_ids"]
        return cls.from_token_ids(ids, config, tokenizer, edges)

    @classmethod
    def from_messages(
        cls,
        messages: Sequence[dict[str, Any]],
        tokenizer: Any,
        config: PositionGraphConfig | None = None,
        edges: Iterable[tuple[int, int]] = (),
    ) -> PositionGraph:
        """The graph of a conversation as the tokenizer's chat template writes it.

        Raises:
            DataError: The template refuses the messages, or an edge leaves the sequence.
            ConfigError: ``structure`` names an unknown detector.
        """
        return cls.from_token_ids(message_ids(messages, tokenizer), config, tokenizer, edges)

    @classmethod
    def from_length(cls, n: int, config: PositionGraphConfig | None = None) -> PositionGraph:
        """The graph of `n` positions of which nothing is known.

        Raises:
            DataError: A negative length.
        """
        graph = cls(config)
        if n < 0:
            raise DataError(f"n: must be at least 0 positions, got {n}.")
        graph.append(np.zeros(n, np.int64))
        return graph

    @classmethod
    def from_turns(cls, turn_ids: Any, config: PositionGraphConfig | None = None) -> PositionGraph:
        """The graph of a dialogue whose turns are given.

        Args:
            turn_ids: Number of the turn of each position, one dimension; a change begins a turn,
                negative numbers stand outside any turn.
            config: Settings.

        Raises:
            DataError: The numbers are no row of integers.
        """
        graph = cls(config)
        graph._reader = TurnReader()
        graph.append(turn_ids)
        return graph

    @property
    def n_blocks(self) -> int:
        """Blocks that hold positions; the last one may be part full."""
        return -(-self.n // self.config.block_size)

    @property
    def edges(self) -> np.ndarray:
        """int64 [edges, 2]: pairs of positions, the later one first. The window is left out."""
        return self._edges.values[:, :2]

    @property
    def edge_kinds(self) -> list[str]:
        """The kind of each edge; see `outline.KINDS`."""
        return [KINDS[code] for code in self._edges.values[:, 2]]

    @property
    def edge_table(self) -> np.ndarray:
        """int64 [edges, 4]: later position, earlier position, code in `outline.KINDS`, tokens.

        The last column says how many tokens must be there for the edge to be known.
        """
        return self._edges.values

    @property
    def token_ids(self) -> np.ndarray:
        """int64 [n]: the ids the graph was built from (turn numbers after `from_turns`)."""
        return self._ids.values

    @property
    def neighbourhoods(self) -> Neighbourhoods:
        """The neighbourhoods of the blocks, for encoders."""
        return self._around

    def append(self, ids: Any, edges: Iterable[tuple[int, int]] = ()) -> None:
        """Add tokens at the end; O(1) amortised a token.

        The graph is then what it would have been with all tokens given at once.

        Args:
            ids: Token ids (turn numbers for a graph `from_turns`), one dimension.
            edges: Pairs of positions to link. Blocks that begin before this call use a pair as
                a key only.

        Raises:
            DataError: The ids are no row of integers; an edge leaves the sequence.
        """
        new = checked_ids(ids)
        self._take_user_edges(checked_edges(edges, self.n + len(new)))
        findings: list[Finding] = [] if self._reader is None else self._reader.read(new, self.n)
        self._ids.extend(new)
        self.n += len(new)
        for finding in findings:
            self._cross(finding.known - 1)
            for edge in self._outline.apply(*finding):
                self._add(edge)
        self._cross(self.n)

    def _take_user_edges(self, pairs: list[tuple[int, int]]) -> None:
        for later, earlier in pairs:
            edge = Edge(later, earlier, CODES["user"], 0)
            block = later // self.config.block_size
            if block < len(self._around.queries):
                self._add(edge)
            else:
                self._user.setdefault(block, []).append(edge)

    def _add(self, edge: Edge) -> None:
        """An edge that becomes known in the block under way."""
        self._edges.extend([edge])
        self._links.add(edge.earlier // self.config.block_size, edge.kind)

    def _cross(self, tokens: int) -> None:
        """End the blocks that so many tokens fill, and begin those behind them."""
        while (len(self._around) + 1) * self.config.block_size <= tokens:
            self._around.close(self._links.close())
            self._open_block()

    def _open_block(self) -> None:
        """Begin a block with what is known at its first position."""
        block, size = len(self._around), self.config.block_size
        place = block * size
        edges = self._user.pop(block, [])
        edges += [Edge(place, at, kind, place) for at, kind in self._outline.own() if at < place]
        if block:
            edges.append(Edge(place, 0, CODES["start"], place))
        if edges:
            self._edges.extend(edges)
        own = [(edge.earlier // size, edge.kind) for edge in edges]
        self._links.open(own)
        self._around.open(target for target, _ in (*own, *self._links.recent(block)))

    def nearest_blocks(self, first: int, last: int, count: int) -> np.ndarray:
        """The nearest blocks before each query block, by the encoder's distance.

        Args:
            first: The first query block.
            last: One past the last; the block that comes next, n // block_size, can be asked for
                before it holds a position.
            count: Blocks per row.

        Returns:
            int32 [last − first, count], nearest first, the most recent first among equals,
            filled up with −1. Row q depends on tokens before q·block_size alone.

        Raises:
            DataError: A block outside the graph.
        """
        checked_range(first, last, self._known_blocks)
        return self._rows.rows(
            first,
            last,
            count,
            lambda begin, end: self._encoder.nearest(self._around, begin, end, count),
        )

    def structural_blocks(self, first: int, last: int, limit: int) -> np.ndarray:
        """Blocks that structure, turns or the user tie to each query block.

        The most important first: user edges, clauses referred to in the window, the turn under
        way and the one before, the sections around from the inside out, the beginning of the
        dialogue, what follows the clauses referred to, older references of the section. Blocks
        of the window and the first one come last, since a query sees them anyway.

        Returns:
            int32 [last − first, limit], filled up with −1; causal as `nearest_blocks`.

        Raises:
            DataError: A block outside the graph.
        """
        checked_range(first, last, self._known_blocks)
        return self._links.rows(first, last, limit)

    def block_ties(self, query: int) -> list[tuple[int, str]]:
        """(block, kind of edge) that tie earlier blocks to a query block, in that order.

        Raises:
            DataError: A block outside the graph.
        """
        checked_range(query, query + 1, self._known_blocks)
        return [(block, KINDS[code]) for block, code in self._links.ties(query)]

    def similarities(self, first: int, last: int) -> np.ndarray:
        """Similarities of query blocks to all full blocks by the encoder: float64 [rows, keys].

        Entries on and above the diagonal compare a query with blocks that come after it; they are
        for pictures.

        Raises:
            DataError: A block outside the graph.
        """
        checked_range(first, last, self._known_blocks)
        return self._encoder.similarities(self._around, slice(first, last))

    @property
    def _known_blocks(self) -> int:
        return len(self._around.queries)

    def explain(self, position: int) -> dict[str, Any]:
        """Which blocks the query at a position keeps, and why; see `explanation.explain`.

        Raises:
            DataError: A position outside the graph.
        """
        from hf_glm_curriculum.attention.explanation import explain

        return explain(self, position)

    def text(self, begin: int, end: int) -> str:
        """The text of positions `begin` to `end` − 1, "" without a tokenizer."""
        if self._tokenizer is None or isinstance(self._reader, TurnReader):
            return ""
        return str(self._tokenizer.decode(self._ids.values[max(0, begin) : end].tolist()))

    def save(self, path: Any) -> None:
        """Write the graph to one ``.npz`` file; see `graph_file.save_graph`.

        Raises:
            StateError: The file cannot be written.
        """
        from hf_glm_curriculum.attention.graph_file import save_graph

        save_graph(self, path)

    @classmethod
    def load(cls, path: Any, tokenizer: Any = None, length: int | None = None) -> PositionGraph:
        """Read a graph that `save` wrote; see `graph_file.load_graph`.

        Raises:
            StateError: The file is unreadable, or the graph is of another length or tokenizer.
        """
        from hf_glm_curriculum.attention.graph_file import load_graph

        return load_graph(path, tokenizer, length)

    def copy(self) -> PositionGraph:
        """A copy that grows apart from this graph; costs a copy of its arrays."""
        other = object.__new__(PositionGraph)
        other.__dict__ = dict(self.__dict__)
        for name in ("_reader", "_ids", "_edges", "_outline", "_encoder", "_around", "_links"):
            part = getattr(self, name)
            setattr(other, name, None if part is None else part.copy())
        other._user = {block: list(edges) for block, edges in self._user.items()}
        other._rows = self._rows.copy()
        return other


@cache
def _say_without_tokenizer() -> None:
    """Say once what a graph lacks without a tokenizer."""
    logger.warning(
        "hf_glm_curriculum: no tokenizer was given, so the position graph knows no headings, "
        "clauses or turns, only the window and the document's start; pass tokenizer=."
    )
