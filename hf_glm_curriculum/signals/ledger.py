"""The sample ledger: what training has seen of each sample, in columns on the training device.

Shape letters: R ledger rows, M observations of one step, K history length.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.microbatch import EMBEDDING_SIZE, TOKEN_MEANS, SampleSignals
from hf_glm_curriculum.signals.neighbours import drift, neighbour_distance
from hf_glm_curriculum.storage import load_tensors, save_tensors

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "1"
"""Version of the saved file."""


class SampleState(IntEnum):
    """Where a sample stands in its life; stored as uint8."""

    TRAINING = 0
    """Trained with its progress weight."""
    OBSERVED = 1
    """In the observation pool at weight 0.1, waiting for a verdict."""
    MASTERED = 2
    """Judged learnt: kept at weight 0.1."""
    RESAMPLE = 3
    """Judged worth another look: weight 1, visits counted anew; TRAINING at its next visit."""
    RELABEL = 4
    """Judged wrong: weight 0 until an annotator has seen it."""


@dataclass(frozen=True)
class History:
    """The last K losses and gradient norms of some rows, oldest first, NaN where absent."""

    loss: Tensor
    """[M, K] float32 nats."""
    grad_norm: Tensor
    """[M, K] float32."""


_FLOATS = {
    "onset_sum": 0.0,
    "opening_sum": 0.0,
    "first_sum": 0.0,
    "closing_sum": 0.0,
    "loss_sum": 0.0,
    "probability_sum": 0.0,
    "probability_square_sum": 0.0,
    "drift": torch.nan,
    "weight": 1.0,
    "weight_raw": 1.0,
    "suspicion": torch.nan,
}
_INTEGERS = {
    "visits": torch.int32,
    "lifetime": torch.int32,
    "n_tokens": torch.int32,
    "state": torch.uint8,
    "resamples": torch.uint8,
}


_PARTS = tuple(name.removesuffix("_loss") for name in TOKEN_MEANS)


class SampleLedger:
    """Columnar memory of every sample, O(1) per visit and without Python per sample.

    A ledger row is a row of the :class:`SampleIndex` it was built on: the data set's row number
    where the data set is known, the order of first sight where it is not. Two visits in one
    optimizer step (duplicates in a batch) count as one, with the mean of both.
    """

    def __init__(
        self,
        index: SampleIndex | None = None,
        *,
        history: int = 5,
        drift: bool = False,
        neighbours: int = 0,
    ) -> None:
        """Make an empty ledger.

        Args:
            index: ids and rows known in advance; None to add samples as they are seen.
            history: K, how many losses and gradient norms a sample keeps.
            drift: also keep each sample's last embedding (64 float16 a sample).
            neighbours: k, how many neighbours drift compares a sample with (int32 each); 0
                compares it with its own last visit only.

        Raises:
            ValueError: if ``history`` is less than 2.
        """
        if history < 2:
            raise ValueError(f"history: a slope needs at least 2 visits, got {history}.")
        self.index = SampleIndex.empty() if index is None else index
        self.history_length = history
        self.keeps_drift = drift
        self.neighbour_count = neighbours if drift else 0
        self.device = torch.device("cpu")
        self._columns: dict[str, Tensor] = {}
        self._allocate(len(self.index))

    # -- size and place ----------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of ledger rows R."""
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns and the index take."""
        return sum(c.nbytes for c in self._columns.values()) + 3 * self.index.row_ids.nbytes

    def to(self, device: torch.device | str) -> SampleLedger:
        """Move every column to ``device`` and return the ledger."""
        self.device = torch.device(device)
        self._columns = {name: c.to(self.device) for name, c in self._columns.items()}
        self.index.to(self.device)
        return self

    def column(self, name: str) -> Tensor:
        """The column ``name`` as a view of length R; writing to it changes the ledger."""
        return self._columns[name][: len(self)]

    def put(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Write ``values`` [M] to a column at ``rows`` [M]; negative rows are left out."""
        column = self._columns[name]
        column[self._spare(rows)] = values.to(column.dtype)

    def _allocate(self, rows: int) -> None:
        """Grow every column to hold ``rows`` rows and one spare that swallows unused writes."""
        fresh = self._fresh(rows + 1)
        for name, old in self._columns.items():
            fresh[name][: len(old) - 1] = old[:-1]
        self._columns = fresh

    def _fresh(self, rows: int) -> dict[str, Tensor]:
        def filled(value: float, dtype: torch.dtype = torch.float32, *width: int) -> Tensor:
            return torch.full((rows, *width), value, dtype=dtype, device=self.device)

        columns = {name: filled(value) for name, value in _FLOATS.items()}
        columns |= {name: filled(0, dtype) for name, dtype in _INTEGERS.items()}
        for name in ("loss_ring", "grad_ring"):
            columns[name] = filled(torch.nan, torch.float32, self.history_length)
        if self.keeps_drift:
            columns["embedding"] = filled(0, torch.float16, EMBEDDING_SIZE)
        if self.neighbour_count:
            columns["neighbours"] = filled(-1, torch.int32, self.neighbour_count)
            columns["neighbour_distance"] = filled(torch.nan)
        return columns

    def add(self, ids: Tensor) -> None:
        """Give rows to ids that have none yet, in order of appearance; known ids are left alone.

        Args:
            ids: [M] int64. Copies to the host: call it at logging and saving, not in the step.
        """
        before = len(self)
        self.index.add(ids)
        # Room for half as much again, so that a stream of new samples does not copy each time.
        if len(self) >= len(self._columns["weight"]):
            self._allocate(max(len(self), before + before // 2))

    # -- visits ------------------------------------------------------------------------------

    def lookup(self, ids: Tensor) -> Tensor:
        """Ledger rows of ids: [M] int64, -1 where unknown; no host copy."""
        return self.index.lookup(ids)

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
        rings = (self._columns[name][spare].gather(1, position) for name in _RINGS)
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
        order, group, first = _group(rows)
        merged = _means(
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

    def _spare(self, rows: Tensor) -> Tensor:
        """Send negative rows to the spare row at the end."""
        return torch.where(rows >= 0, rows, len(self._columns["weight"]) - 1)

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

    def variability(self) -> Tensor:
        """[R] standard deviation over visits of exp(−loss) (data maps, Swayamdipta et al. 2020)."""
        mean = self.mean_of("probability")
        lifetime = self.column("lifetime").clamp(min=1)
        square = self.column("probability_square_sum") / lifetime
        return (square - mean.square()).clamp(min=0).sqrt()

    def to_pandas(self) -> pd.DataFrame:
        """Every sample that was seen, one row each.

        Returns:
            Columns ``id row visits loss loss_mean onset_loss loss_slope grad_norm drift weight
            weight_raw state suspicion opening_loss first_loss closing_loss`` and ``confidence
            variability lifetime n_tokens resamples``. ``loss`` and ``grad_norm`` are the last
            observed, ``loss_slope`` is nats per visit, ``state`` a name of :class:`SampleState`.
        """
        import pandas as pd

        from hf_glm_curriculum.signals.slopes import last_valid, slope

        rows = torch.nonzero(self.column("lifetime") > 0).squeeze(1)
        history = self.history(rows)
        data = {
            "id": self.index.row_ids[rows.cpu()],
            "row": self._data_rows(rows.cpu()),
            "visits": self.column("visits")[rows],
            "loss": last_valid(history.loss),
            "loss_mean": self.mean_of("loss", rows),
            "onset_loss": self.mean_of("onset", rows),
            "loss_slope": slope(history.loss),
            "grad_norm": last_valid(history.grad_norm),
            "drift": self.column("drift")[rows],
            "weight": self.column("weight")[rows],
            "weight_raw": self.column("weight_raw")[rows],
            "suspicion": self.column("suspicion")[rows],
            "opening_loss": self.mean_of("opening", rows),
            "first_loss": self.mean_of("first", rows),
            "closing_loss": self.mean_of("closing", rows),
            "confidence": self.mean_of("probability", rows),
            "variability": self.variability()[rows],
            "lifetime": self.column("lifetime")[rows],
            "n_tokens": self.column("n_tokens")[rows],
            "resamples": self.column("resamples")[rows],
        }
        frame = pd.DataFrame({name: value.cpu().numpy() for name, value in data.items()})
        states = self.column("state")[rows].cpu().tolist()
        frame.insert(11, "state", [SampleState(s).name for s in states])
        return frame

    def _data_rows(self, rows: Tensor) -> Tensor:
        """Rows of the data set behind ledger rows, which differ where the data set is packed."""
        packed = self.index.packed_row
        if packed is None:
            return rows
        table = torch.cat([torch.as_tensor(packed), torch.full((len(self) - len(packed),), -1)])
        return table[rows]

    # -- disk --------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Everything a copy needs, by name; suited to :meth:`from_tensors`."""
        columns = {name: c[: len(self)] for name, c in self._columns.items()}
        return {"ids": self.index.row_ids, **columns}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> SampleLedger:
        """Rebuild a ledger from :meth:`tensors`.

        Raises:
            StateError: if a column is missing or of another length than the ids.
        """
        try:
            ids = tensors["ids"]
            ledger = cls(
                SampleIndex(ids),
                history=tensors["loss_ring"].shape[1],
                drift="embedding" in tensors,
                neighbours=tensors["neighbours"].shape[1] if "neighbours" in tensors else 0,
            )
            for name, column in ledger._columns.items():
                column[:-1] = tensors[name]
        except (KeyError, RuntimeError, IndexError) as error:
            raise StateError(
                f"ledger: a saved column is missing or of the wrong length ({error}); the file is "
                "damaged or of another version, resume from another checkpoint."
            ) from error
        return ledger

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ledger to one safetensors file, atomically.

        Raises:
            StateError: if the file cannot be written.
        """
        save_tensors(path, self.tensors(), {"format": FORMAT})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SampleLedger:
        """Read a ledger written by :meth:`save`.

        Raises:
            StateError: if the file is missing, damaged or of another format.
        """
        tensors, metadata = load_tensors(path)
        if metadata.get("format") != FORMAT:
            raise StateError(
                f"{os.fspath(path)}: ledger format must be {FORMAT}, got "
                f"{metadata.get('format')}; it was written by another version of the package."
            )
        return cls.from_tensors(tensors)


_RINGS = ("loss_ring", "grad_ring")
_ROWS_PER_BLOCK = 16_384


def _group(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort [M] rows; return the order, each sorted entry's group number and group starts."""
    ordered, order = torch.sort(rows, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first.long().cumsum(0) - 1, first


def _means(values: dict[str, Tensor], order: Tensor, group: Tensor) -> dict[str, Tensor]:
    """Mean of each column over the finite members of each group: [M] → [M] by group number."""
    out = {}
    for name, value in values.items():
        ordered = value[order]
        finite = torch.isfinite(ordered)
        zero = torch.zeros_like(ordered)
        total = zero.clone().index_add_(0, group, torch.where(finite, ordered, zero))
        number = zero.clone().index_add_(0, group, finite.to(zero))
        out[name] = torch.where(number > 0, total / number.clamp(min=1), torch.nan)
    return out
