"""Several sources as one stream, at ratios that can change while a model trains on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import datasets
import pyarrow as pa
from torch import Tensor

from hf_glm_curriculum.data.mixture_board import MixtureBoard
from hf_glm_curriculum.data.mixture_checks import check_ratios, check_settings, open_sources
from hf_glm_curriculum.data.mixture_host import (
    UNREAD_EVENTS,
    EarlyAsks,
    HostEvent,
    StepClock,
    event_under_way,
)
from hf_glm_curriculum.data.mixture_index import SourceIndex
from hf_glm_curriculum.data.mixture_log import Change, ChangeLog
from hf_glm_curriculum.data.mixture_state import MixtureState
from hf_glm_curriculum.data.mixture_stream import MixtureExamples, MixtureStream
from hf_glm_curriculum.errors import StateError


class CurriculumMixture(datasets.IterableDataset):
    """Draws rows from named sources at ratios that may change under way.

    A `datasets.IterableDataset` without end (so the trainer needs ``max_steps``): pass it as
    ``train_dataset`` to ``Trainer``, or to TRL's ``SFTTrainer`` with
    ``dataset_kwargs={"skip_prepare_dataset": True}``. Its rows are a function of the seed and of
    the log of changes; see ``docs/methods/data.md`` for the rule, ranks, workers and resuming.

    Example::

        mixture = CurriculumMixture(
            {"web": documents, "chat": instructions}, {"web": 0.99, "chat": 0.01}, tokenizer=tok
        )
        args = TrainingArguments(..., max_steps=1000)
        Trainer(model, args, train_dataset=mixture, callbacks=[MixtureCallback(mixture)]).train()
    """

    def __init__(
        self,
        sources: Mapping[str, datasets.Dataset | datasets.IterableDataset],
        ratios: Mapping[str, float],
        seed: int = 0,
        *,
        unit: str = "label_tokens",
        stratify: int | None = None,
        shuffle: bool = True,
        tokenizer: Any = None,
        max_length: int = 512,
        rows_per_step: int | None = None,
        lag_steps: int | None = None,
        max_changes: int = 65_536,
        window: int = 16_384,
    ) -> None:
        """Check and open the sources.

        Args:
            sources: name → rows with ``input_ids`` (and ``labels``), all with the same columns; or
                text (``text``, or ``prompt`` and ``response``), which ``tokenizer`` prepares.
            ratios: name → share from 0 to 1; they sum to 1. Sources left out have 0.
            seed: of the order of rows.
            unit: what ratios are shares of, "label_tokens" or "rows".
            stratify: rows of one optimizer step, over all ranks and accumulated batches: each
                step then holds a row of every source above 0, though small ratios are exceeded.
            shuffle: whether sources with numbered rows come in a new order in each pass. Streams
                shuffle themselves (``dataset.shuffle``).
            tokenizer: for sources that are text.
            max_length: tokens of a row made from text.
            rows_per_step: rows of one optimizer step, where no trainer tells.
            lag_steps: steps between a change and its effect, where no trainer tells (2), or more
                than the trainer's loader needs.
            max_changes: room in the log of changes.
            window: rows for which states and sample ids are kept; more than a loader reads ahead.

        Raises:
            ConfigError: if ratios or settings are out of range.
            DataError: if a source is empty, has other columns, or cannot be tokenised.
        """
        check_settings(
            seed,
            unit,
            stratify=stratify,
            rows_per_step=rows_per_step,
            lag_steps=lag_steps,
            max_changes=max_changes,
            window=window,
        )
        names = list(sources)
        first = check_ratios(ratios, names, stratify)
        self._sources = open_sources(sources, seed, shuffle, tokenizer, max_length)
        self._settings = {"seed": seed, "unit": unit, "stratify": stratify, "shuffle": shuffle}
        self._stratify = stratify
        self._clock = StepClock(rows_per_step, stratify, lag_steps)
        self._board = MixtureBoard(len(names), max_changes, window)
        self._log = ChangeLog(self._board, first)
        self._early = EarlyAsks()
        self._held: dict[str, float] | None = None
        self._stream = MixtureStream(self._sources, self._board, unit == "label_tokens", stratify)
        features = self._sources[0].dataset.features
        if features is None:
            table = pa.Table.from_pylist([self._sources[0].first])  # type: ignore[union-attr]
            features = datasets.Features.from_arrow_schema(table.schema)
        super().__init__(
            MixtureExamples(self._stream, features), datasets.DatasetInfo(features=features)
        )

    def __repr__(self) -> str:
        """Name the sources with their ratios."""
        shares = ", ".join(f"{name}: {ratio:g}" for name, ratio in self.ratios.items())
        return f"CurriculumMixture({{{shares}}}, seed={self._settings['seed']})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave the index behind: it may lie on a device, and workers do not ask it."""
        return {name: value for name, value in self.__dict__.items() if name != "_index"}

    # -- ratios ------------------------------------------------------------------------------

    @property
    def source_names(self) -> list[str]:
        """The sources, in the order of their indices."""
        return [source.name for source in self._sources]

    @property
    def ratios(self) -> dict[str, float]:
        """The ratios last asked for; they come into effect ``lag_steps`` later."""
        return self._named(self._log.last.ratios)

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The log: for each change the step it was asked at, its first row, and the ratios."""
        return [
            {"step": one.step, "row": one.row, "ratios": self._named(one.ratios)}
            for one in self._log.entries
        ]

    @property
    def unit(self) -> str:
        """What ratios are shares of: "rows" or "tokens", a key of what :meth:`drawn` returns."""
        return "rows" if self._settings["unit"] == "rows" else "tokens"

    @property
    def rows_per_step(self) -> int | None:
        """Rows of one optimizer step over all ranks; None where nobody has told."""
        return self._clock.rows_per_step

    @property
    def lag_steps(self) -> int:
        """Steps from ``set_ratios`` to the first step it acts on."""
        return self._clock.lag_steps

    def set_ratios(self, ratios: Mapping[str, float], step: int | None = None) -> int:
        """Ask for other ratios.

        They hold from the first row of step ``step + lag_steps``, whatever the loader has read by
        then: on every rank, with any number of workers, and again when the log is replayed. Before
        the run has read anything (in ``on_train_begin``) they hold from its first row, and a run
        from step 0 begins a new log. Asking for the ratios asked for last changes nothing.

        Args:
            ratios: as for the mixture itself.
            step: optimizer steps done (``state.global_step``); found by itself in a callback. All
                ranks must ask for the same at the same step. Outside of a trainer, None is the
                next row that will be drawn.

        Returns:
            The number of the first row they hold for.

        Raises:
            ConfigError: if the ratios are not valid, or nobody has told the rows of a step.
            StateError: if the row is drawn already or lies before the last change.
        """
        asked = check_ratios(ratios, self.source_names, self._stratify)
        if self._held is not None:
            self._held = self._named(asked)
            return self._log.last.row
        event = event_under_way()
        unread = event is not None and event.name in UNREAD_EVENTS
        if event is not None:
            self.connect(event.args)
            step = event.state.global_step if step is None else step
            if unread and event.state.global_step == 0 and self._board.front > 0:
                self._restart()  # what an earlier run has drawn
            if unread:
                self._early.note(event, ratios, step)
        return self._ask(asked, step, unread)

    def hold(self, ratios: Mapping[str, float], step: int | None = None) -> int:
        """Ask for ratios that stay until :meth:`release`, whatever others ask for meanwhile.

        What they ask for last is remembered and holds from the release on, so that the order of
        callbacks does not matter. Arguments and result as of :meth:`set_ratios`.

        Raises:
            ConfigError: as :meth:`set_ratios`.
            StateError: as :meth:`set_ratios`.
        """
        wanted = self.ratios if self._held is None else self._held
        self._held = None
        row = self.set_ratios(ratios, step)
        self._held = wanted
        return row

    def release(self, step: int | None = None) -> int:
        """Go back to what was last asked for before or during the hold; see :meth:`hold`."""
        wanted, self._held = self._held, None
        return self._log.last.row if wanted is None else self.set_ratios(wanted, step)

    def _ask(self, asked: list[float], step: int | None, unread: bool) -> int:
        """Enter a change; ``unread`` before the run has read a row. Returns its first row."""
        if asked == self._log.last.ratios:
            return self._log.last.row
        if step is None:
            row = self._board.front
        else:
            row = self._clock.row_of(step if unread else step + self.lag_steps)
        self._log.add(Change(row, step, asked), 0 if unread else self._board.front)
        self._stream.forget()
        if unread:  # also forgets rows that somebody looked at beforehand
            self._stream.begin(self._stream.start)
        return row

    def ratios_at(self, step: int) -> dict[str, float]:
        """The ratios in effect for the first row of an optimizer step.

        Raises:
            ConfigError: if nobody has told the rows of a step.
        """
        return self._named(self._log.at(self._clock.row_of(step)))

    # -- what was drawn ----------------------------------------------------------------------

    def drawn(self, step: int | None = None) -> dict[str, dict[str, int]]:
        """Rows and label tokens drawn of each source.

        Args:
            step: count what the first ``step`` optimizer steps hold, which is the same on every
                rank; None counts all that this process's loader has drawn, its queues included.

        Returns:
            name → {"rows": int, "tokens": int}.

        Raises:
            StateError: if the step is too long ago to be known.
        """
        row = self._board.front if step is None else self._clock.row_of(step)
        state = self._stream.state_at(row)
        if state is None:
            raise StateError(
                f"drawn: the counts of the first {row} rows are not known any more (a stream is "
                f"not read twice, and {self._board.window} rows are kept); ask at the step itself"
            )
        counts = zip(self.source_names, state.rows, state.tokens, strict=True)
        return {name: {"rows": rows, "tokens": tokens} for name, rows, tokens in counts}

    def source_index(self, ids: Tensor) -> Tensor:
        """Find the source that samples came from.

        Args:
            ids: int64 [Q] content ids. Content that several sources hold counts as the first's.

        Returns:
            int64 [Q] on the same device: place in ``source_names``, -1 where unknown. Samples of
            streams are known for the latest ``window`` rows that this process's loader drew.
        """
        return self._index.lookup(ids)

    @cached_property
    def _index(self) -> SourceIndex:
        return SourceIndex(self._sources, self._board)

    # -- trainer and state -------------------------------------------------------------------

    def connect(self, args: Any) -> None:
        """Learn from a trainer's arguments how rows become steps; done by itself in callbacks.

        Raises:
            IncompatibleError: if the arguments contradict the mixture's own.
            ConfigError: if more rows may be under way than ``window``.
        """
        streams = any(source.streams for source in self._sources)
        self._clock.connect(args, streams, self._board.window)

    def reset(self) -> None:
        """Forget all changes after the first row and everything drawn, for a run from the start.

        In ``on_train_begin``, what callbacks have asked for in the same event is kept.
        """
        self._restart()
        self._ask_again(event_under_way())

    def _restart(self) -> None:
        self._held = None
        self._clock.origin = (0, 0)
        self._log.replace([one for one in self._log.entries if one.row == 0])
        self._stream.begin(None)

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """What a later mixture of the same sources needs to go on; plain JSON types.

        Args:
            step: optimizer steps done; found by itself in a callback. Without either, the state
                is that after the last row drawn.
        """
        event = event_under_way()
        if event is not None:
            self.connect(event.args)
            step = event.state.global_step if step is None else step
        first = self._clock.origin
        origin = (0, self._board.front) if step is None else (step, self._clock.row_of(step))
        drawn = self._stream.state_at(origin[1])
        rows = self._clock.rows_per_step
        state = MixtureState(self._identity, self._log.entries, drawn, origin, first, rows)
        return state.as_dict() | {"held": self._held}

    def load_state_dict(self, state_dict: dict[str, Any], replay: bool | None = None) -> None:
        """Go on from :meth:`state_dict`; call it before rows are read.

        In ``on_train_begin``, what callbacks have asked for in the same event is asked for again.

        Args:
            state_dict: the state.
            replay: begin with the first row again and repeat all changes at their places, for a
                trainer that reads past the rows it has trained on; False begins with the next row.
                None asks the trainer whose callback is under way (``ignore_data_skip``), and is
                False without one.

        Raises:
            StateError: if the state is of another mixture, or does not hold the position.
        """
        event = event_under_way()
        if event is not None:
            self.connect(event.args)
        if replay is None:
            replay = self._clock.host.skips if event and self._clock.host else False
        saved = MixtureState.from_dict(state_dict, self._identity)
        if replay:
            saved.check_replay(self.rows_per_step)
            start, origin = None, (0, 0)
        else:
            start, origin = saved.position(), saved.origin
        self._clock.origin = origin
        self._log.replace(saved.changes)
        self._held = state_dict.get("held")
        self._stream.begin(start)
        self._ask_again(event)

    # -- helpers -----------------------------------------------------------------------------

    def _ask_again(self, event: HostEvent | None) -> None:
        """Enter anew what callbacks asked for before another began or loaded the log."""
        for ratios, step in self._early.of(event):
            self._ask(check_ratios(ratios, self.source_names, self._stratify), step, True)

    @property
    def _identity(self) -> dict[str, Any]:
        """What must be the same for the log to give the same rows."""
        fingerprints = {source.name: source.fingerprint for source in self._sources}
        return {"sources": fingerprints, **self._settings}

    def _named(self, ratios: list[float]) -> dict[str, float]:
        return dict(zip(self.source_names, ratios, strict=True))
