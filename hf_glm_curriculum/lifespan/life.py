"""The engine behind the callback: weighs a micro-batch, takes in what a step saw, judges.

Knows nothing of trainers. Shape letters: M samples of a step, R ledger rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.lifespan import weighting
from hf_glm_curriculum.lifespan.config import SIGNALS, LifespanConfig
from hf_glm_curriculum.lifespan.flows import PREFIX, StateFlow
from hf_glm_curriculum.lifespan.judges import Judge, read_verdicts
from hf_glm_curriculum.lifespan.life_state import check_fits
from hf_glm_curriculum.lifespan.life_views import (
    blocks,
    mean_training_weight,
    observed_cases,
    spread_cases,
    summary,
)
from hf_glm_curriculum.lifespan.population import survey, unknown_population, warm_scale
from hf_glm_curriculum.lifespan.states import (
    after_visit,
    apply_verdicts,
    effective_weight,
    visited_weight,
)
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState
from hf_glm_curriculum.signals.microbatch import Microbatch, SampleSignals, concatenate
from hf_glm_curriculum.signals.neighbours import (
    checked_neighbours,
    embedding_neighbours,
    minhash_neighbours,
)
from hf_glm_curriculum.signals.slopes import append

if TYPE_CHECKING:
    import pandas as pd


Gather = Callable[[SampleSignals], SampleSignals]
"""Joins every rank's signals of a step, in rank order."""


class SampleLife:
    """Ledger, population and life-vector scales of one training run."""

    def __init__(
        self,
        config: LifespanConfig,
        index: SampleIndex | None = None,
        device: torch.device | str = "cpu",
        note: str = "lifespan",
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        """Start with nothing seen.

        Args:
            config: settings.
            index: ids known in advance.
            device: where the columns live.
            note: name under which raw weights travel with the micro-batch.
            folder: keeps the columns in files instead, on the CPU: micro-batches of another
                device then cost a copy to the host and back each.

        Raises:
            StateError: if the folder cannot be used; see `SampleLedger`.
        """
        self.config = config
        self.note = note
        self.ledger = SampleLedger(
            index,
            history=config.history,
            drift="drift" in config.signals,
            neighbours=0 if config.neighbours == "none" else config.neighbour_count,
            folder=folder,
        )
        device = "cpu" if folder is not None else device
        self._bind(device)
        self.closed_step = 0
        """Optimizer step at which the last epoch was closed."""
        self.scale = torch.full((3,), torch.nan, device=device)
        self.frozen = torch.zeros((), dtype=torch.bool, device=device)
        self.population = self._survey()
        self.drawn_state: Tensor | None = None
        """[R] uint8 states at the epoch's draw, where visits are drawn by weight; else None."""
        self._waiting: list[tuple[SampleSignals, Tensor]] = []
        self._text_reading = torch.zeros(0, device=device)
        self.flow = StateFlow()

    def _bind(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.ledger.to(self.device)

    # -- before the backward -----------------------------------------------------------------

    def weigh(self, batch: Microbatch) -> Tensor:
        """Weights of a micro-batch, [S] float32, from the ledger and the losses just computed.

        Unknown samples count as first visits. Raw and final weights are left on ``batch.notes``.
        """
        home = batch.ids.device
        rows = self.ledger.lookup(batch.ids.to(self.device))
        raw = self._raw_weight(rows, batch)
        weight = torch.ones_like(raw)
        if not self.config.observe_only:
            state = self._of(rows, "state", SampleState.TRAINING)
            weight = effective_weight(state, raw, self.population.mean_weight, self.config)
            if self.drawn_state is not None:
                listed = torch.where(rows < len(self.drawn_state), rows, -1)
                drawn = self._of_rows(self.drawn_state, listed, SampleState.TRAINING)
                weight = visited_weight(state, drawn, weight)
        raw, weight = raw.to(home), weight.to(home)
        # Other listeners may weigh the batch too: what this one asked for travels by name.
        batch.notes[f"{self.note}.raw"], batch.notes[f"{self.note}.weight"] = raw, weight
        return weight

    def _raw_weight(self, rows: Tensor, batch: Microbatch) -> Tensor:
        config = self.config
        loss = batch.loss
        if loss is None:
            raise StateError("lifespan: weights were asked for before the losses were known.")
        loss = loss.to(self.device)
        if config.weighting == "none":
            return torch.ones_like(loss)
        history = self.ledger.history(rows)
        losses = append(history.loss, loss)
        bounds = (config.weight_floor, config.weight_cap)
        if config.weighting == "article":
            return weighting.article_weight(losses, history.grad_norm, *bounds)
        later = weighting.progress_weight(losses, history.grad_norm, self.population, *bounds)
        fields = {n: "loss" if n == "loss" else f"{n}_loss" for n in weighting.READINGS}
        now = {name: getattr(batch, field).to(self.device) for name, field in fields.items()}
        suspicion = weighting.suspicion(now, self.population)
        visited = self._of(rows, "visits", 0) > 0
        fresh = weighting.first_visit_weight(suspicion, config.weight_floor)
        weight = torch.where(visited, later, fresh)
        return torch.where(torch.isfinite(loss), weight, 1.0)

    def _of(self, rows: Tensor, name: str, default: int) -> Tensor:
        """A column at some rows, ``default`` at unknown ones."""
        return self._of_rows(self.ledger.column(name), rows, default)

    def _of_rows(self, column: Tensor, rows: Tensor, default: int) -> Tensor:
        if column.numel() == 0:
            return torch.full_like(rows, default).to(column.dtype)
        found = column[rows.clamp(min=0)]
        return torch.where(rows >= 0, found, torch.full_like(found, default))

    # -- after the step ----------------------------------------------------------------------

    def absorb(self, parts: list[SampleSignals], gather: Gather | None = None) -> SampleSignals:
        """Enter what one optimizer step saw, on every rank alike.

        Args:
            parts: signals of this rank's micro-batches; at least one.
            gather: joins all ranks' signals; None on one process.

        Returns:
            The joined signals.
        """
        signals = concatenate(parts)
        if gather is not None:
            signals = gather(signals)
        signals = signals.to(self.device)
        rows = self._enter(signals)
        self._waiting.append((signals, (rows < 0) & torch.isfinite(signals.loss)))
        return signals

    def _enter(self, signals: SampleSignals) -> Tensor:
        if len(self.ledger) == 0:
            return torch.full_like(signals.ids, -1)
        before = self._of(self.ledger.lookup(signals.ids), "state", SampleState.TRAINING)
        own = (signals.notes.get(f"{self.note}.{kind}") for kind in ("weight", "raw"))
        rows = self.ledger.observe(signals, *own)
        self._advance(rows, before)
        self.population = self._survey()
        return rows

    def _advance(self, rows: Tensor, before: Tensor) -> None:
        """Update life vectors, suspicion and states of the rows a step has visited."""
        ledger, config = self.ledger, self.config
        safe = rows.clamp(min=0)
        history = ledger.history(safe)
        vector = weighting.life_vector(
            history.loss, history.grad_norm, ledger.column("drift")[safe]
        )
        used = tuple(name in config.signals for name in SIGNALS)
        norm = weighting.life_norm(vector, self.scale, used)  # type: ignore[arg-type]
        norm = torch.where(self.frozen, norm, torch.inf)
        suspicion = self._suspicion(safe)
        state = after_visit(before, ledger.column("visits")[safe], norm, suspicion, config)
        ledger.put("suspicion", rows, suspicion)
        ledger.put("state", rows, state)

    def set_text_readings(self, readings: Tensor) -> None:
        """Say how much each row's text speaks against it, [N] in [0, 1]."""
        self._text_reading = readings.to(self.device)

    def _suspicion(self, rows: Tensor | slice) -> Tensor:
        means = {name: self.ledger.mean_of(name, rows) for name in weighting.READINGS}
        suspicion = weighting.suspicion(means, self.population)
        if not self._text_reading.numel():
            return suspicion
        if isinstance(rows, slice):
            rows = torch.arange(len(self.ledger), device=self.device)[rows]
        # Samples met later than the data set's own rows have no reading.
        known = rows < len(self._text_reading)
        found = self._text_reading[torch.where(known, rows, 0)]
        return weighting.with_text(suspicion, torch.where(known, found, 0.0))

    def flush(self) -> int:
        """Give rows to samples met since the last flush that nobody knew; copies to the host.

        Returns:
            Number of samples added.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return 0
        before = len(self.ledger)
        for signals, unknown in waiting:
            keep = torch.nonzero(unknown).squeeze(1)
            if keep.numel() == 0:
                continue
            part = signals.at(keep)
            self.ledger.add(part.ids)
            self._enter(part)
        return len(self.ledger) - before

    def _survey(self) -> weighting.Population:
        """The population of now.

        Freezes the life vector's scales on the way, once enough samples are warmed up.
        """
        found = survey(self.ledger)
        if found is None:
            return unknown_population(self.device)
        scale, ready = warm_scale(found, self.config.warmup_visits)
        self.scale = torch.where(self.frozen | ~ready, self.scale, scale)
        self.frozen = self.frozen | ready
        return found.population

    # -- neighbours --------------------------------------------------------------------------

    def find_neighbours(self, dataset: Any, given: Any = None) -> bool:
        """Say whom drift compares each sample with, before the first step.

        Args:
            dataset: the tokenised rows behind the index, or None.
            given: the user's own table, integers [N, k]; looked up in the tokens otherwise.

        Returns:
            Whether what the config asks for was possible.

        Raises:
            ConfigError: if the given table does not fit the data set.
        """
        ledger = self.ledger
        if not ledger.neighbour_count:
            return given is None
        if given is not None:
            ledger.set_neighbours(checked_neighbours(given, len(ledger)))
            return True
        if self.config.neighbours != "minhash":
            return True
        if dataset is None or len(ledger) == 0:
            return False
        table = minhash_neighbours(dataset, ledger.index, ledger.neighbour_count)
        ledger.set_neighbours(table)
        return True

    def close_epoch(self, step: int) -> None:
        """End an epoch: neighbours by embedding are found after the first one."""
        self.closed_step = step
        ledger = self.ledger
        if self.config.neighbours != "embedding" or not ledger.neighbour_count:
            return
        if bool((ledger.column("neighbours") >= 0).any()):
            return
        seen = ledger.column("lifetime") > 0
        embedding = ledger.column("embedding")
        ledger.set_neighbours(embedding_neighbours(embedding, seen, ledger.neighbour_count))

    # -- verdicts ----------------------------------------------------------------------------

    def cases(self) -> pd.DataFrame:
        """Samples in the pool that await a verdict, as :class:`Judge` gets them (without text)."""
        return observed_cases(self.ledger)

    def spread(self, count: int) -> pd.DataFrame:
        """At most ``count`` of the samples seen, evenly spaced; columns as in :meth:`cases`."""
        return spread_cases(self.ledger, count)

    def judge(self, cases: pd.DataFrame, judge: Judge) -> Tensor:
        """Apply a judge's verdicts on :meth:`cases`.

        Returns:
            [M] uint8 states of the cases afterwards.

        Raises:
            ConfigError: if the judge returns anything but one verdict a case.
        """
        if len(cases) == 0:
            return torch.zeros(0, dtype=torch.uint8)
        verdicts = read_verdicts(list(judge(cases)), len(cases)).to(self.device)
        ids = torch.tensor(cases["id"].to_numpy().copy(), device=self.device)
        return apply_verdicts(self.ledger, self.ledger.lookup(ids), verdicts, self.config)

    def refresh(self) -> None:
        """Bring every sample's suspicion and weight up to the population of now.

        Touches the whole ledger: for logging, saving and the end of a run, not for the step.
        """
        if len(self.ledger) == 0:
            return
        self.population = self._survey()
        ledger = self.ledger
        for part in blocks(len(ledger)):
            ledger.column("suspicion")[part] = self._suspicion(part)
        if self.config.observe_only:
            return
        mean = mean_training_weight(ledger)
        columns = (ledger.column(n) for n in ("lifetime", "state", "weight_raw", "weight"))
        lifetime, state, raw, weight = columns
        for part in blocks(len(ledger)):
            new = effective_weight(state[part], raw[part], mean, self.config)
            weight[part] = torch.where(lifetime[part] > 0, new, weight[part])

    def summary(self) -> dict[str, float]:
        """Figures for the log; see `life_views.summary`."""
        return summary(self.ledger, self.population, self.config)

    # -- state -------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        return {
            **self.ledger.tensors(),
            **self.flow.tensors(),
            "life_scale": self.scale,
            "life_frozen": self.frozen,
            "closed_step": torch.tensor(self.closed_step),
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`tensors`.

        Raises:
            StateError: if something is missing or the history length differs.
        """
        tensors = dict(tensors)
        try:
            scale, frozen = tensors.pop("life_scale"), tensors.pop("life_frozen")
            self.closed_step = int(tensors.pop("closed_step"))
            flow = {name: tensors.pop(name) for name in list(tensors) if name.startswith(PREFIX)}
            self.flow = StateFlow.from_tensors(flow)
        except KeyError as error:
            raise StateError(
                f"lifespan: the saved state lacks {error}; resume from another checkpoint."
            ) from error
        check_fits(tensors, self.ledger, self.config)
        packed, folder = self.ledger.index.packed_row, self.ledger.folder
        self.ledger = SampleLedger.from_tensors(tensors, folder=folder)
        self.ledger.index.packed_row = packed
        self._bind(self.device)
        self.scale, self.frozen = scale.to(self.device), frozen.to(self.device)
        self.population = self._survey()
        self._waiting = []
