"""What each objective had in the steps since the last log, counted on the device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.migration.objectives import UNKNOWN
from hf_glm_curriculum.migration.schedule import INSTRUCTION, OTHER, PRETRAIN
from hf_glm_curriculum.signals.microbatch import SampleSignals

NAMES = {PRETRAIN: "pretrain", INSTRUCTION: "instruction", OTHER: "other"}
"""Objectives as metrics name them; OTHER takes what is UNKNOWN in."""

_CODES = UNKNOWN + 1


class ObjectiveTally:
    """Mean loss and label tokens per objective, and how many steps held both."""

    def __init__(self, note: str, device: torch.device) -> None:
        """Start from nothing.

        Args:
            note: the note of a micro-batch that holds each sample's objective.
            device: where signals come from.
        """
        self._note = note
        self._device = device
        self._recent = self._zeros()
        self._total = self._zeros()

    def _zeros(self) -> Tensor:
        """[codes, 4] float64: Σ loss·tokens, tokens, samples, steps; row OTHER + both in col 3."""
        kind = torch.float32 if self._device.type == "mps" else torch.float64
        return torch.zeros(_CODES, 4, dtype=kind, device=self._device)

    def add(self, parts: list[SampleSignals], reduce: Callable[[Tensor], None] | None) -> None:
        """Enter one optimizer step; must be called on every rank.

        Args:
            parts: signals of this rank's micro-batches.
            reduce: adds a tensor up over all ranks in place; None on one process.
        """
        step = self._zeros()
        for signals in parts:
            code = signals.notes[self._note].long()
            seen = torch.isfinite(signals.loss)
            tokens = torch.where(seen, signals.n_tokens, 0).to(step.dtype)
            loss = torch.where(seen, signals.loss, 0.0).to(step.dtype)
            rows = torch.stack([loss * tokens, tokens, torch.ones_like(tokens)], dim=1)
            step[:, :3].index_add_(0, code, rows)
        if reduce is not None:
            reduce(step)
        held = step[:, 1] > 0
        step[:, 3] = held.to(step.dtype)
        step[OTHER, 3] = (held[PRETRAIN] & held[INSTRUCTION]).to(step.dtype)
        self._recent += step
        self._total += step

    def flush(self, steps: int) -> dict[str, float]:
        """Figures of the steps since the last call; copies to the host once.

        Args:
            steps: optimizer steps since then.

        Returns:
            ``loss_<objective>`` (nats a label token) for those that had any, ``ratio_trained``
            (instruction's share of the two objectives' label tokens), ``steps_with_both`` (a
            share), ``unknown`` (samples of no known source).
        """
        recent, self._recent = self._recent.tolist(), self._zeros()
        found: dict[str, float] = {}
        for code, name in NAMES.items():
            loss, tokens = recent[code][:2]
            if code == OTHER:
                loss, tokens = loss + recent[UNKNOWN][0], tokens + recent[UNKNOWN][1]
            if tokens:
                found[f"loss_{name}"] = loss / tokens
        both = recent[PRETRAIN][1] + recent[INSTRUCTION][1]
        if both:
            found["ratio_trained"] = recent[INSTRUCTION][1] / both
        if steps:
            found["steps_with_both"] = recent[OTHER][3] / steps
        found["unknown"] = recent[UNKNOWN][2]
        return found

    def totals(self) -> dict[str, float]:
        """Label tokens of each objective since the run began; copies to the host."""
        total = self._total[:, 1].tolist()
        return {name: total[code] for code, name in NAMES.items()} | {"unknown": total[UNKNOWN]}

    def tensors(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {"recent": self._recent, "total": self._total}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`tensors`.

        Raises:
            StateError: if something is missing or of another shape.
        """
        for name in ("recent", "total"):
            value = tensors.get(name)
            if value is None or value.shape != (_CODES, 4):
                raise StateError(
                    f"migration: the saved state has no {name!r} of the expected shape; resume "
                    "from another checkpoint."
                )
        self._recent = tensors["recent"].to(self._recent)
        self._total = tensors["total"].to(self._total)
