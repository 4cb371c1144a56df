"""PPO's clipped losses, as sums: who calls divides by what the whole mini-batch holds.

Shape letters: B rows, T response positions, D critics. Masks are bool.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyTerms:
    """Sums over the tokens of some rows; only `loss` carries a gradient."""

    loss: Tensor
    """Σ v·max(−A·ρ, −A·clip(ρ, 1 ± ε))."""

    clipped: Tensor
    """Tokens where the clipped term is the larger."""

    ratio: Tensor
    """Σ ρ."""

    approx_kl: Tensor
    """Σ ½·(log ρ)²."""


@dataclass(frozen=True)
class ValueTerms:
    """Sums over the states of some rows, [D] each; only `loss` carries a gradient."""

    loss: Tensor
    """Σ v·½·max((V − R)², (clip(V, V₀ ± ε) − R)²)."""

    clipped: Tensor
    """States where the clipped term is the larger."""


def policy_terms(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    weights: Tensor,
    cliprange: float,
) -> PolicyTerms:
    """The clipped surrogate of PPO (Schulman et al. 2017), with a weight for each row.

    Args:
        logprobs: of the policy as it is, [B, T], with gradient.
        old_logprobs: of the policy that answered, [B, T].
        advantages: [B, T].
        mask: tokens that count, [B, T].
        weights: v, [B].
        cliprange: ε.
    """
    difference = torch.where(mask, logprobs - old_logprobs, 0.0)
    ratio = difference.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1.0 - cliprange, 1.0 + cliprange)
    weighted = torch.maximum(plain, clipped) * weights[:, None]
    return PolicyTerms(
        loss=_total(weighted, mask),
        clipped=((clipped > plain) & mask).sum(),
        ratio=_total(ratio.detach(), mask),
        approx_kl=0.5 * difference.detach().square().sum(),
    )


def value_terms(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    weights: Tensor,
    cliprange: float,
) -> ValueTerms:
    """The clipped squared error of each critic.

    Args:
        values: of the critics as they are, [B, T, D], with gradient.
        old_values: of the critics that judged the rollout, [B, T, D].
        returns: [B, T, D].
        mask: states that count, by critic (a row closed in d does not train critic d), [B, T, D].
        weights: v, [B].
        cliprange: ε.
    """
    near = torch.clamp(values, old_values - cliprange, old_values + cliprange)
    plain, clipped = (values - returns).square(), (near - returns).square()
    weighted = torch.maximum(plain, clipped) * (0.5 * weights[:, None, None])
    counts = (clipped > plain) & mask
    return ValueTerms(
        loss=torch.where(mask, weighted, 0.0).sum(dim=(0, 1)), clipped=counts.sum(dim=(0, 1))
    )


def _total(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum()
