"""Heads on pooled features: one for each dimension's score and one for its confidence.

Shapes: B rows (any leading dimensions), H the backbone's width, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x − mean) · scale with figures of the training features; the identity until they are set.

    Hidden states of language models have a few coordinates that dwarf the others, on which a
    small head would spend its training.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """Take mean and standard deviation from features [N, H]."""
        features = features.float()
        spread = features.std(0, correction=0)
        self.mean.copy_(features.mean(0))
        # A coordinate that never moves says nothing: it goes to 0 rather than to infinity.
        self.scale.copy_(torch.where(spread > 1e-6, 1 / spread.clamp(min=1e-6), 0.0))

    def forward(self, features: Tensor) -> Tensor:
        """[..., H] → [..., H]."""
        return (features.to(self.mean.dtype) - self.mean) * self.scale


def _head(width: int, hidden: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1)
    )


class RewardHeads(nn.Module):
    """A head a dimension (article 1, §3.3): Linear–hidden–ReLU–dropout–1 on standardised features.

    Args:
        width: H.
        dimensions: names of the heads.
        hidden: width inside a head.
        dropout: after the ReLU, in training.
    """

    def __init__(
        self, width: int, dimensions: Sequence[str], hidden: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.standardize = Standardize(width)
        self.heads = nn.ModuleDict({name: _head(width, hidden, dropout) for name in dimensions})

    def forward(self, features: Tensor) -> Tensor:
        """[..., H] → logits [..., D]."""
        features = self.standardize(features)
        return torch.cat([head(features) for head in self.heads.values()], dim=-1)

    @torch.no_grad()
    def shift(self, amounts: Tensor) -> None:
        """Add `amounts` [D] to the logits for good: how levels are anchored."""
        for head, amount in zip(self.heads.values(), amounts.tolist(), strict=True):
            head[-1].bias.add_(amount)  # pyright: ignore[reportIndexIssue]


class ConfidenceHeads(nn.Module):
    """How probable it is that a score lies on the right side of 0.5, a head a dimension.

    confidence = sigmoid((slope·|logit| + MLP(features) + offset) / temperature): what the head's
    own margin says, corrected by what the features say. `temperature` and `offset` come from
    calibration and are not trained by gradient.
    """

    temperature: Tensor
    offset: Tensor

    def __init__(self, width: int, dimensions: Sequence[str], hidden: int = 64) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: _head(width, hidden, 0.0) for name in dimensions})
        self.slope = nn.Parameter(torch.ones(len(dimensions)))
        self.register_buffer("temperature", torch.ones(len(dimensions)))
        self.register_buffer("offset", torch.zeros(len(dimensions)))

    def raw(self, features: Tensor, logits: Tensor) -> Tensor:
        """Standardised features [..., H] and logits [..., D] → [..., D] before calibration."""
        said = torch.cat([head(features) for head in self.heads.values()], dim=-1)
        return self.slope * logits.detach().abs() + said

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Standardised features [..., H] and logits [..., D] → confidence [..., D] in [0, 1]."""
        return torch.sigmoid((self.raw(features, logits) + self.offset) / self.temperature)
