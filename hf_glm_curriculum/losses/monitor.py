"""What a composite loss remembers of its terms between two reports; all on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.losses.values import TermValue

_DECAY = 0.98
"""Of the running total, a micro-batch."""

AddUp = Callable[[Tensor], Any]


class TermMonitor:
    """Sums of term values since the last report, non-finite values, shares, a running total."""

    def __init__(self, keeps_history: bool = False) -> None:
        """Start empty.

        Args:
            keeps_history: also keep every micro-batch's sums until they are taken.
        """
        self.history: list[dict[str, tuple[float, Tensor, Tensor]]] | None = (
            [] if keeps_history else None
        )
        """Name → weight, sum and label tokens, a micro-batch."""
        self.running: Tensor | None = None
        """[2] decayed sums of the weighted total and of the label tokens."""
        self._sums: dict[str, Tensor] = {}
        self._bad: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    def note(self, totals: dict[str, tuple[float, Tensor]], n_tokens: Tensor) -> None:
        """Enter one micro-batch.

        Args:
            totals: name → weight and 0-dim sum over label tokens.
            n_tokens: 0-dim number of label tokens.
        """
        whole = torch.zeros_like(n_tokens, dtype=torch.float32)
        for name, (weight, total) in totals.items():
            finite = torch.isfinite(total)
            self._bad[name] = ~finite | self._bad.get(name, torch.zeros_like(finite))
            kept = torch.where(finite, total, 0.0)
            entry = torch.stack([kept, torch.where(finite, n_tokens, 0).float()])
            self._sums[name] = self._sums.get(name, torch.zeros_like(entry)) + entry
            whole = whole + weight * kept
        if self.history is not None:
            self.history.append({n: (w, t, n_tokens) for n, (w, t) in totals.items()})
        entry = torch.stack([whole, n_tokens.float()])
        self.running = entry if self.running is None else _DECAY * self.running + entry

    def note_shares(self, values: list[TermValue], norms: Tensor) -> None:
        """Enter gradient norms [K] of the weighted terms."""
        for value, norm in zip(values, norms, strict=True):
            square = norm.square()
            self._squares[value.name] = self._squares.get(value.name, torch.zeros_like(square))
            self._squares[value.name] += square

    def nonfinite(self, names: list[str], add_up: AddUp | None = None) -> list[str]:
        """Names of terms that returned NaN or infinity since the last call, on any rank.

        Args:
            names: all terms, in the same order on every rank.
            add_up: sums a tensor over all ranks in place; None on one process.
        """
        if not self._bad:
            return []
        device = next(iter(self._bad.values())).device
        clean = torch.zeros((), dtype=torch.bool, device=device)
        flags = torch.stack([self._bad.get(n, clean) for n in names]).float()
        if add_up is not None:
            add_up(flags)
        self._bad = {}
        return [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]

    def values(self, names: list[str], add_up: AddUp | None = None) -> dict[str, float]:
        """Name → mean over the label tokens since the last call, over all ranks."""
        found = self._drained(self._sums, names, 2, add_up)
        self._sums = {}
        return {name: total / count for name, (total, count) in found.items() if count > 0}

    def shares(self, names: list[str], add_up: AddUp | None = None) -> dict[str, float]:
        """Name → share of the summed gradient norms of the weighted terms, at the last look."""
        found = self._drained(self._squares, names, 1, add_up)
        self._squares = {}
        norms = {name: square**0.5 for name, (square,) in found.items()}
        whole = sum(norms.values())
        return {name: norm / whole for name, norm in norms.items()} if whole > 0 else {}

    def _drained(
        self, table: dict[str, Tensor], names: list[str], width: int, add_up: AddUp | None
    ) -> dict[str, list[float]]:
        """Rows of a table that were entered on any rank."""
        device = next(iter(table.values())).device if table else _device(self.running)
        empty = torch.zeros(width, device=device)
        rows = [table.get(name, empty).view(-1).float() for name in names]
        if not rows:
            return {}
        seen = torch.tensor([[float(n in table)] for n in names], device=device).float()
        whole = torch.cat([torch.stack(rows), seen], dim=1)
        if add_up is not None:
            add_up(whole)
        return {n: row[:-1] for n, row in zip(names, whole.tolist(), strict=True) if row[-1]}


def _device(tensor: Tensor | None) -> torch.device:
    return torch.device("cpu") if tensor is None else tensor.device
