"""What a ledger keeps of each sample: its columns, their types and what an unseen sample has.

Shape letters: R ledger rows, M observations of one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.signals.microbatch import EMBEDDING_SIZE

RINGS = ("loss_ring", "grad_ring")
NOT_SEEN = 255
"""State of a sample when moves between states were last counted, if it was not seen by then."""
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


@dataclass(frozen=True)
class Column:
    """One column of a ledger."""

    dtype: torch.dtype
    fill: float
    """What a sample has that was never seen."""
    width: int = 0
    """Values a sample has; 0 for a single one, in a column of one dimension."""

    def shape(self, rows: int) -> tuple[int, ...]:
        """Shape of the column of ``rows`` rows."""
        return (rows, self.width) if self.width else (rows,)

    def full(self, rows: int, device: torch.device | str = "cpu") -> Tensor:
        """A new column of unseen samples."""
        return torch.full(self.shape(rows), self.fill, dtype=self.dtype, device=device)


def ledger_columns(history: int, drift: bool, neighbours: int) -> dict[str, Column]:
    """The columns of a ledger; see `SampleLedger` for the arguments."""
    columns = {name: Column(torch.float32, fill) for name, fill in _FLOATS.items()}
    columns |= {name: Column(dtype, 0) for name, dtype in _INTEGERS.items()}
    columns["counted_state"] = Column(torch.uint8, NOT_SEEN)
    for name in RINGS:
        columns[name] = Column(torch.float32, torch.nan, history)
    if drift:
        columns["embedding"] = Column(torch.float16, 0, EMBEDDING_SIZE)
    if neighbours:
        columns["neighbours"] = Column(torch.int32, -1, neighbours)
        columns["neighbour_distance"] = Column(torch.float32, torch.nan)
    return columns


def group_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort [M] rows; return the order, each sorted entry's group number and group starts."""
    ordered, order = torch.sort(rows, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first.long().cumsum(0) - 1, first


def group_means(values: dict[str, Tensor], order: Tensor, group: Tensor) -> dict[str, Tensor]:
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
