"""What a structured reward model answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers.utils.generic import ModelOutput

from hf_glm_curriculum.errors import ModelError


@dataclass
class StructuredRewardOutput(ModelOutput):
    """Scores of B responses in D dimensions.

    Attributes:
        scores: [B, D] in [0, 1], the sigmoid of `logits`; 0.5 is the anchor between good and bad.
        confidence: [B, D] in [0, 1], calibrated probability that the score lies on the right side.
        logits: [B, D], anchored, before the sigmoid; what preferences are compared by.
    """

    scores: Tensor | None = None
    confidence: Tensor | None = None
    logits: Tensor | None = None

    def require_finite(self, dimensions: Sequence[str]) -> StructuredRewardOutput:
        """This output, if every number in it is finite.

        Raises:
            ModelError: A head gave NaN or infinity; names the dimension and the first row.
        """
        for name in ("logits", "confidence"):
            bad = ~torch.isfinite(cast(Tensor, getattr(self, name)))
            if bad.any():
                row, column = (int(place) for place in bad.nonzero()[0])
                raise ModelError(
                    f"{name}: the head of {dimensions[column]!r} gave a number that is not finite "
                    f"for row {row}; load an earlier checkpoint, or use float32 or bfloat16 in "
                    "place of float16"
                )
        return self
