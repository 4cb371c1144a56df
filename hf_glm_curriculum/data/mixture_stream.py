"""The rows of a mixture, one after the other: a function of seed and log of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from datasets import Features
from datasets.iterable_dataset import ExamplesIterable

from hf_glm_curriculum.data.mixture_board import ChangeCursor, MixtureBoard
from hf_glm_curriculum.data.mixture_draw import DrawState, choose, record, take_effect
from hf_glm_curriculum.data.mixture_sources import (
    MapReader,
    MapSource,
    Row,
    StreamReader,
    StreamSource,
)

Reader = MapReader | StreamReader


class MixtureStream:
    """Draws rows from sources and shows on the board what was drawn.

    Attributes:
        sources: in the order of all ratios.
        start: the state to begin from; None begins with the first row.
    """

    def __init__(
        self,
        sources: list[MapSource | StreamSource],
        board: MixtureBoard,
        by_tokens: bool,
        step_rows: int | None,
    ) -> None:
        """Remember what to draw from and how; nothing is read."""
        self.sources, self.board = sources, board
        self.start: DrawState | None = None
        self._by_tokens, self._step_rows = by_tokens, step_rows
        self._replay: _Walk | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers walk on their own."""
        return {**self.__dict__, "_replay": None}

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yield (number, row) without end."""
        walk = self._walk(self.start or DrawState.fresh(len(self.sources)))
        self.board.mark(walk.state)
        while True:
            source = walk.draw()
            row, ids = walk.readers[source].take()
            if ids is not None:
                self.board.add_ids(ids, source)
            self.board.mark(walk.state)
            yield walk.state.row - 1, row

    def state_at(self, row: int) -> DrawState | None:
        """The state after ``row`` rows.

        It is among the latest that the loader has left on the board, or else is found by drawing
        again without reading, which needs sources whose sizes are known.

        Returns:
            The state; None if it can only be found by reading streams again.
        """
        start = self.start or DrawState.fresh(len(self.sources))
        found = start.copy() if row == start.row else self.board.state_at(row)
        if found is not None:
            return found
        if row < start.row or any(source.streams for source in self.sources):
            return None
        walk = self._replay
        if walk is None or walk.state.row > row:
            walk = self._replay = self._walk(start)
        while walk.state.row < row:
            walk.readers[walk.draw()].skip()  # type: ignore[union-attr]
        return walk.state.copy()

    def begin(self, start: DrawState | None) -> None:
        """Begin with a state, or with the first row; what was drawn is forgotten."""
        self.start, self._replay = start, None
        self.board.begin(0 if start is None else start.row)

    def forget(self) -> None:
        """Changes at rows to come are other ones now."""
        self._replay = None

    def _walk(self, start: DrawState) -> _Walk:
        readers: list[Reader] = [
            source.open(drawn) for source, drawn in zip(self.sources, start.rows, strict=True)
        ]
        return _Walk(start.copy(), readers, self.board.follow(), self._by_tokens, self._step_rows)


class _Walk:
    """One way through the rows: where it stands, and how it picks the next source."""

    def __init__(
        self,
        state: DrawState,
        readers: list[Reader],
        changes: ChangeCursor,
        by_tokens: bool,
        step_rows: int | None,
    ) -> None:
        self.state, self.readers = state, readers
        self._changes, self._step_rows = changes, step_rows
        self._size_of: Callable[[int], float] = self._tokens_of if by_tokens else _one

    def draw(self) -> int:
        """Pick the next source and enter its row, which is the caller's to read or skip."""
        if self._changes.advance(self.state.row):
            take_effect(self.state, self._changes.ratios)
        ratios = self._changes.ratios
        source, charge = choose(self.state, ratios, self._size_of, self._step_rows)
        record(self.state, ratios, source, charge, self.readers[source].tokens)
        return source

    def _tokens_of(self, source: int) -> float:
        return float(self.readers[source].tokens)


def _one(source: int) -> float:
    """Size of a row where rows are counted."""
    return 1.0


class MixtureExamples(ExamplesIterable):
    """The stream in the form that `datasets.IterableDataset` iterates.

    It is one shard: of several workers the first reads and the others stop at once, so that any
    number of them yields the rows of one.
    """

    def __init__(self, stream: MixtureStream, features: Features) -> None:
        super().__init__(stream.rows, {})
        self._features = features

    @property
    def features(self) -> Features:
        """Columns of the rows."""
        return self._features

    @property
    def is_typed(self) -> bool:
        """Rows are what the features say: no cast on the way."""
        return True

    @property
    def num_shards(self) -> int:
        """One: the order of rows is part of the stream."""
        return 1

    def shuffle_data_sources(self, generator: Any) -> MixtureExamples:
        """Nothing to shuffle: the stream shuffles by its own seed and pass."""
        return self

    def shard_data_sources(
        self, num_shards: int, index: int, contiguous: bool = True
    ) -> MixtureExamples:
        """The one shard."""
        return self

    def reshard_data_sources(self) -> MixtureExamples:
        """The one shard."""
        return self
