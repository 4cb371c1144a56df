"""A temperature field in ``model.generate()``.

Shape letters: B rows, V vocabulary size, S steps, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from hf_glm_curriculum.curriculum.temperature import TemperatureField
from hf_glm_curriculum.errors import ConfigError, StateError


class TemperatureFieldLogitsProcessor(LogitsProcessor):
    """Divides each row's scores by the field's temperature for them.

    For ``generate(logits_processor=LogitsProcessorList([...]))``. It acts after transformers' own
    processors (penalties, bans) and before temperature, top-k and top-p, so that ``temperature=τ``
    multiplies the field's and top-p cuts what is left. The field reads the scores as they come in.
    Greedy choices stay as they are. Nothing is copied to the host.

    Args:
        field: the temperatures.
        renormalize: return log-probabilities, so that beams add up log-probabilities of the field's
            distribution. Without it the scores are only divided, as transformers' own temperature
            does it; beams then prefer warm positions. Sampling from one row is the same in both.
        record: how many steps' temperatures to keep for :meth:`recorded`.
        end_ids: end-of-sequence tokens; rows that have drawn one are no longer counted by an online
            field.
    """

    def __init__(
        self,
        field: TemperatureField,
        *,
        renormalize: bool = True,
        record: int = 0,
        end_ids: Sequence[int] = (),
    ) -> None:
        """Start a generation.

        Raises:
            ConfigError: if ``record`` is negative.
        """
        if record < 0:
            raise ConfigError(f"record: must be 0 or more steps, got {record}.")
        self.field = field
        self.renormalize = renormalize
        self.record = record
        self.end_ids = tuple(end_ids)
        self.reset()

    def reset(self) -> None:
        """Forget what was recorded; a change of batch, or a jump in length, does it too."""
        self._recorded: list[Tensor] = []
        self._shape: tuple[int, int] = (0, 0)
        self._prompt_length = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] at the field's temperatures; themselves where all are 1."""
        self._follow(input_ids)
        if self.field.neutral:
            self._keep(scores.new_ones(len(scores), dtype=torch.float32))
            return scores
        exact = scores if scores.dtype == torch.float64 else scores.float()
        temperatures = self._temperatures(input_ids, exact)
        self._keep(temperatures)
        warmed = exact / temperatures[:, None]
        if self.renormalize:
            warmed = warmed.log_softmax(-1)
        return warmed.to(scores.dtype)

    def recorded(self, sequences: Tensor | None = None) -> Tensor:
        """Temperatures of the steps since generation began.

        Args:
            sequences: [B, T] what ``generate`` returned, to tell the steps after a row's end by
                ``end_ids``.

        Returns:
            [B, S] float32; NaN after a row's end where ``sequences`` is given. With beams, rows are
            beams as they stood at each step.

        Raises:
            StateError: if nothing was recorded.
        """
        if not self._recorded:
            raise StateError("temperatures: nothing was recorded; pass record= the steps to keep.")
        found = torch.stack(self._recorded, dim=1).float()
        if sequences is None:
            return found
        drawn = sequences[:, self._prompt_length :][:, : found.shape[1]]
        ends = self._is_end(drawn).int()
        return found.masked_fill(ends.cumsum(1) - ends > 0, torch.nan)

    def _temperatures(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.field.constant:
            return self.field.temperatures(scores)
        readings = self.field.read(scores)
        temperatures = self.field.from_readings(readings)
        if self.field.online:
            self.field.observe(readings, self._running(input_ids))
            self.field.commit()
        return temperatures

    def _running(self, input_ids: Tensor) -> Tensor | None:
        """[B] 1 for rows that have not drawn an end token."""
        if not self.end_ids:
            return None
        return (~self._is_end(input_ids[:, self._prompt_length :]).any(1)).float()

    def _is_end(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(self.end_ids, dtype=ids.dtype, device=ids.device))

    def _keep(self, temperatures: Tensor) -> None:
        if len(self._recorded) < self.record:
            self._recorded.append(temperatures)

    def _follow(self, input_ids: Tensor) -> None:
        rows, length = input_ids.shape
        if (rows, length) != (self._shape[0], self._shape[1] + 1):
            self.reset()
            self._prompt_length = length
        self._shape = rows, length
