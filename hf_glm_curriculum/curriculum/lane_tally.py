"""Loss and pace of each lane between two logs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hf_glm_curriculum.curriculum.lane_config import BASE, LANES
from hf_glm_curriculum.signals.microbatch import SampleSignals

NAMES = (*LANES, "base")
_BASE_PLACE = len(LANES)
_LOSS, _TOKENS, _SAMPLES, _SECONDS, _STEPS = range(5)


class LaneTally:
    """Sums by lane, the same on every rank; they stay on the device until they are read."""

    def __init__(self, device: torch.device) -> None:
        """Start empty."""
        self._sums = torch.zeros((len(NAMES), 5), dtype=torch.float64, device=device)
        self._total = torch.zeros_like(self._sums)

    def add(
        self,
        parts: list[SampleSignals],
        lane: int | None,
        seconds: float,
        lane_of: Callable[[Tensor], Tensor] | None,
        reduce: Callable[[Tensor], None] | None,
    ) -> None:
        """Count one optimizer step.

        Args:
            parts: its micro-batches.
            lane: of the whole step; None where samples of several lanes are in it.
            seconds: it took on this rank.
            lane_of: gives ids [S] their lanes [S], where the step has none.
            reduce: adds a tensor up over the ranks, in place; None on a single one.
        """
        step = torch.zeros_like(self._sums)
        for part in parts:
            lanes = torch.full_like(part.ids, lane) if lane is not None else None
            lanes = lane_of(part.ids) if lanes is None and lane_of is not None else lanes
            if lanes is None:
                continue
            tokens = part.n_tokens.double()
            loss = torch.where(part.n_tokens > 0, part.loss.double() * tokens, 0.0)
            rows = torch.stack([loss, tokens, torch.ones_like(tokens)], dim=1)
            known = lanes >= BASE
            place = torch.where(lanes == BASE, _BASE_PLACE, lanes.clamp(min=0))
            step[:, :3].index_add_(0, place, rows * known.unsqueeze(1))
        if reduce is not None:
            reduce(step)
        if lane is not None:
            place = _BASE_PLACE if lane == BASE else lane
            step[place, _SECONDS], step[place, _STEPS] = seconds, 1.0
        self._sums += step
        self._total += step

    def flush(self) -> dict[str, float]:
        """Metrics of the steps since the last call."""
        sums, found = self._sums.tolist(), {}
        tokens = sum(row[_TOKENS] for row in sums)
        for name, row in zip(NAMES, sums, strict=True):
            if not row[_SAMPLES]:
                continue
            found[f"loss_{name}"] = row[_LOSS] / max(row[_TOKENS], 1.0)
            found[f"token_share_{name}"] = row[_TOKENS] / max(tokens, 1.0)
            if row[_STEPS]:
                found[f"steps_{name}"] = row[_STEPS]
                seconds = max(row[_SECONDS], 1e-9)
                found[f"label_tokens_per_second_{name}"] = row[_TOKENS] / seconds
                found[f"samples_per_second_{name}"] = row[_SAMPLES] / seconds
        self._sums.zero_()
        return found

    def totals(self) -> dict[str, dict[str, float]]:
        """Label tokens, samples, steps and seconds of each lane over the run."""
        names = ("label_tokens", "samples", "seconds", "steps")
        rows = self._total[:, 1:].tolist()
        return {n: dict(zip(names, row, strict=True)) for n, row in zip(NAMES, rows, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run goes on with."""
        return {"sums": self._sums.cpu(), "total": self._total.cpu()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`tensors`."""
        self._sums.copy_(tensors["sums"])
        self._total.copy_(tensors["total"])
