"""A temperature field in a training loss.

Shape letters: B rows, T positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_glm_curriculum.curriculum.temperature import TemperatureField
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.losses.context import LossContext
from hf_glm_curriculum.losses.terms import TemperatureLoss
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size

BY = ("distribution", "label")


class FieldTemperatures:
    """Temperatures of the positions of one forward pass, as a loss term asks for them.

    Args:
        field: the field; an online one counts what it sees, from the next optimizer step on and
            over all ranks.
        by: "distribution" reads what the model predicts; "label" the rarity of the token to come,
            which a loss knows and a generation does not.

    Raises:
        ConfigError: for another ``by``, or "label" with an entropy field.
    """

    def __init__(self, field: TemperatureField, by: str = "distribution") -> None:
        """Check that the field can be read that way."""
        if by not in BY:
            raise ConfigError(f"by: must be one of {BY}, got {by!r}.")
        if by == "label" and field.token_counts is None:
            raise ConfigError(
                "by='label': an entropy field knows no rarity of tokens; make the field with "
                "TemperatureField.fit(ids, vocab_size)."
            )
        self.field, self.by = field, by
        self._step = -1

    def __call__(self, context: LossContext) -> Tensor | float:
        """[B, T] temperatures, or the one that all positions have."""
        if self.field.constant:
            return self.field.low
        if self.by == "label":
            return self.field.of_tokens(context.targets.clamp(min=0))
        with torch.no_grad():
            readings = context.map_tokens(self.field.read)
            if self.field.online:
                self._count(readings, context)
            return self.field.from_readings(readings)

    def _count(self, readings: Tensor, context: LossContext) -> None:
        """Let earlier steps' readings count, then add this micro-batch's to the coming ones."""
        # One field for a whole optimizer step; a composite called by hand may know no step.
        if context.host == "alone" or context.step != self._step:
            self.field.ranks.to(readings.device)  # collectives may need them there
            self.field.commit(sum_over_ranks if world_size() > 1 else None)
            self._step = context.step
        self.field.observe(readings, (context.targets >= 0).to(readings))


class TemperatureFieldLoss(TemperatureLoss):
    """Next-token cross-entropy at a field's temperatures: a term of ``CompositeLoss``.

    The temperatures are constants to the gradient: through them a model could lower its loss by
    changing its entropy alone.

    Args:
        field: the field.
        by: "distribution" or "label", see :class:`FieldTemperatures`. By the label the term is
            biased: no distribution of logits makes softmax(z/τ) right for every label at once.
        rescale: undo the factor 1/τ of the gradient, see ``TemperatureLoss``.

    Raises:
        ConfigError: for another ``by``, or "label" with an entropy field.
    """

    def __init__(
        self, field: TemperatureField, by: str = "distribution", *, rescale: bool = False
    ) -> None:
        """Check that the field can be read that way."""
        super().__init__(FieldTemperatures(field, by), rescale=rescale)
        self.field = field
