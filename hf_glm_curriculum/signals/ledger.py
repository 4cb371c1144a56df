"""The sample ledger: what training has seen of each sample, in columns on the training device.

Shape letters: R ledger rows, M observations of one step, K history length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.ledger_columns import RINGS, group_means, group_rows
from hf_glm_curriculum.signals.ledger_store import LedgerStore
from hf_glm_curriculum.signals.microbatch import TOKEN_MEANS, SampleSignals
from hf_glm_curriculum.signals.neighbours import drift, neighbour_distance
from hf_glm_curriculum.signals.sample_state import SampleState as SampleState

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class History:
    """The last K losses and gradient norms of some rows, oldest first, NaN where absent."""

    loss: Tensor
    """[M, K] float32 nats."""
    grad_norm: Tensor
    """[M, K] float32."""


_PARTS = tuple(name.removesuffix("_loss") for name in TOKEN_MEANS)
_ROWS_PER_BLOCK = 16_384


class SampleLedger(LedgerStore):
    """Columnar memory of every sample, O(1) per visit and without Python per sample.

    A ledger row is a row of the :class:`SampleIndex` it was built on: the data set's row number
    where the data set is known, the order of first sight where it is not. Two visits in one
    optimizer step (duplicates in a batch) count as one, with the mean of both.
    """

    # -- visits ------------------------------------------------------------------------------

    def history(self, rows: Tensor) -> History:
        """The rings of some rows in the order of their visits.

        Args:
            rows: [M] int64 rows; negative rows come back empty.
        """
        spare = self._spare(rows)
        visits = torch.where(rows >= 0, self._columns["visits"][spare].long(), 0)
        k = self.history_length
        steps = torch.arange(k, device=rows.device)
        # Once the ring is full its oldest entry sits at visits mod K.
        position = torch.where(visits >= k, visits % k, 0).unsqueeze(1) + steps
        position = position % k
        valid = steps < visits.clamp(max=k).unsqueeze(1)
        nothing = torch.full((), torch.nan, device=rows.device)
        rings = (self._columns[name][spare].gather(1, position) for name in RINGS)
        return History(*(torch.where(valid, ring, nothing) for ring in rings))

    def observe(
        self,
        signals: SampleSignals,
        weight: Tensor | None = None,
        weight_raw: Tensor | None = None,
    ) -> Tensor:
        """Enter one optimizer step's observations.

        Args:
            signals: observations of the step, M of them; those without a label token or with a
                non-finite loss, and those of unknown ids, change nothing.
            weight: [M] float32 weights to enter; the signals' own by default.
            weight_raw: [M] float32 weights before normalisation; ``weight`` by default.

        Returns:
            [M] int64 rows, -1 for what was left out. Nothing is copied to the host.
        """
        rows = self.lookup(signals.ids)
        rows = torch.where(torch.isfinite(signals.loss), rows, -1)
        weight = signals.weight if weight is None else weight
        raw = weight if weight_raw is None else weight_raw
        order, group, first = group_rows(rows)
        merged = group_means(
            {
                "loss": signals.loss,
                **{part: getattr(signals, f"{part}_loss") for part in _PARTS},
                "grad": signals.grad_norm,
                "n_tokens": signals.n_tokens.float(),
                "weight": weight,
                "weight_raw": raw,
            },
            order,
            group,
        )
        # One entry a group, written by its first member; the others fall into the spare row.
        target = self._spare(torch.where(first, rows[order], -1))
        self._write(target, {name: value[group] for name, value in merged.items()})
        if self.keeps_drift and signals.embedding is not None:
            self._write_drift(target, signals.embedding[order])
        return rows

    def _write(self, target: Tensor, new: dict[str, Tensor]) -> None:
        c = self._columns
        slot = (c["visits"][target] % self.history_length).long()
        c["loss_ring"][target, slot] = new["loss"]
        c["grad_ring"][target, slot] = new["grad"]
        probability = (-new["loss"]).exp()
        for name, value in (
            ("loss_sum", new["loss"]),
            *((f"{part}_sum", new[part]) for part in _PARTS),
            ("probability_sum", probability),
            ("probability_square_sum", probability.square()),
        ):
            c[name][target] = c[name][target] + value
        for name in ("visits", "lifetime"):
            c[name][target] = c[name][target] + 1
        for name in ("weight", "weight_raw"):
            c[name][target] = new[name]
        c["n_tokens"][target] = new["n_tokens"].round().int()

    def _write_drift(self, target: Tensor, embedding: Tensor) -> None:
        """Drift from the second visit of a sample's life on; runs once the visit is entered."""
        c = self._columns
        own = embedding.float()
        moved = 1 - (c["embedding"][target].float() * own).sum(1)
        c["embedding"][target] = own.to(c["embedding"].dtype)
        new = moved.clamp(min=0)
        if self.neighbour_count:
            distance = self._distance(target, own)
            new = drift(moved, distance, c["neighbour_distance"][target])
            c["neighbour_distance"][target] = distance
        again = (c["lifetime"][target] > 1) & torch.isfinite(new)
        c["drift"][target] = torch.where(again, new, c["drift"][target])

    def _distance(self, rows: Tensor, own: Tensor) -> Tensor:
        """Distance of some rows from their neighbours, as last seen."""
        c = self._columns
        table = c["neighbours"][rows].long()
        there = table.clamp(min=0)
        known = (table >= 0) & (c["lifetime"][there] > 0)
        return neighbour_distance(own, c["embedding"][there], known)

    def set_neighbours(self, table: Tensor) -> None:
        """Say which rows are alike; distances are taken anew from the embeddings at hand.

        Args:
            table: [N, k'] int rows, -1 for none, for the first N rows; the first k count.

        Raises:
            StateError: if this ledger keeps no neighbours.
        """
        if not self.neighbour_count:
            raise StateError(
                "ledger: keeps no neighbours; make it with drift=True and neighbours=k."
            )
        k = min(self.neighbour_count, table.shape[1])
        column = self.column("neighbours")
        column.fill_(-1)
        column[: len(table), :k] = table[:, :k].to(column)
        self.column("neighbour_distance").fill_(torch.nan)
        seen = torch.nonzero(self.column("lifetime") > 0).squeeze(1)
        for part in seen.split(_ROWS_PER_BLOCK):
            distance = self._distance(part, self.column("embedding")[part].float())
            self.column("neighbour_distance")[part] = distance

    # -- derived columns ---------------------------------------------------------------------

    def mean_of(self, name: str, rows: Tensor | slice = slice(None)) -> Tensor:
        """Mean over each sample's life of one of its sums; [R], NaN for samples not yet seen.

        Args:
            name: ``loss``, ``onset``, ``opening``, ``first``, ``closing`` or ``probability``.
            rows: rows to read, as an index or a slice; all by default.
        """
        lifetime = self.column("lifetime")[rows]
        seen = torch.where(lifetime > 0, lifetime.float(), torch.nan)
        return self.column(f"{name}_sum")[rows] / seen

    def variability(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """Standard deviation over visits of exp(−loss) (data maps, Swayamdipta et al. 2020).

        Args:
            rows: rows to read, as an index or a slice; all by default.
        """
        mean = self.mean_of("probability", rows)
        lifetime = self.column("lifetime")[rows].clamp(min=1)
        square = self.column("probability_square_sum")[rows] / lifetime
        return (square - mean.square()).clamp(min=0).sqrt()

    def seen_rows(self) -> Tensor:
        """[n] int64 rows of the samples that were seen, ascending."""
        return torch.nonzero(self.column("lifetime") > 0).squeeze(1)

    def to_pandas(self, rows: Tensor | None = None) -> pd.DataFrame:
        """Every sample that was seen, one row each.

        Args:
            rows: [M] int64 rows of samples that were seen; all of them by default.

        Returns:
            Columns ``id row visits loss loss_mean onset_loss loss_slope grad_norm drift weight
            weight_raw state suspicion opening_loss first_loss closing_loss`` and ``confidence
            variability lifetime n_tokens resamples``. ``loss`` and ``grad_norm`` are the last
            observed, ``loss_slope`` is nats per visit, ``state`` a name of :class:`SampleState`.
        """
        from hf_glm_curriculum.signals.ledger_frame import ledger_frame

        return ledger_frame(self, self.seen_rows() if rows is None else rows)
