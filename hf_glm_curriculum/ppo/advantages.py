"""From scores and log-probabilities to advantages. Pure functions; every tensor is detached.

Shape letters: B rows, T response positions, D reward dimensions. Masks are bool. Means and
variances are over all ranks, so that splitting a batch over processes changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size

_LEAST_VARIANCE = 1e-8


def token_mask(lengths: Tensor, columns: int) -> Tensor:
    """True on the tokens of each response, [B, T]."""
    return torch.arange(columns, device=lengths.device) < lengths[:, None]


def state_mask(lengths: Tensor, columns: int) -> Tensor:
    """True on the states that have a value: before each token and after the last, [B, T].

    The state after the last token of a response that fills all columns has no column.
    """
    return torch.arange(columns, device=lengths.device) <= lengths[:, None]


def terminal_columns(lengths: Tensor, longest: int, where: str = "after_last") -> Tensor:
    """The column that a row's score goes to, int64 [B].

    ``"after_last"`` is the state after the last token: the reward of having arrived there, which
    the critic also learns to predict. A response of the `longest` length there can be has no such
    column; its score goes to the last token. TRL decides by the longest response *of the batch*,
    so that a row's reward moves with the company it is in; here only the row's own length counts.
    ``"last"`` is the last token always.

    Args:
        lengths: response tokens of each row, [B], at least 1.
        longest: most tokens a response can have.
        where: ``"after_last"`` or ``"last"``.
    """
    last = lengths - 1
    return torch.where(lengths < longest, lengths, last) if where == "after_last" else last


def kl_per_token(
    logprobs: Tensor, reference: Tensor, mask: Tensor, estimator: str = "k1"
) -> Tensor:
    """Estimates of KL(π‖π₀) at the tokens drawn, 0 off the mask, [B, T].

    ``"k1"`` is log π − log π₀, ``"k3"`` is (π₀/π − 1) − log(π₀/π) (Schulman 2020).
    """
    ratio = reference - logprobs
    kl = -ratio if estimator == "k1" else ratio.exp() - 1 - ratio
    return torch.where(mask, kl, 0.0)


def token_rewards(scores: Tensor, kl: Tensor, coefficients: Tensor, columns: Tensor) -> Tensor:
    """R = −β·KL at every token, plus the score at the row's terminal column, [B, T, D].

    Args:
        scores: [B, D], finite.
        kl: [B, T].
        coefficients: β, [B].
        columns: where each row's score goes, [B].
    """
    penalty = -coefficients[:, None] * kl
    rewards = penalty[:, :, None].repeat(1, 1, scores.shape[1])
    rows = torch.arange(len(scores), device=scores.device)
    rewards[rows, columns] += scores.to(rewards)
    return rewards


def generalised_advantages(
    rewards: Tensor, values: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """GAE (Schulman et al. 2016): δ_t = r_t + γ·V_{t+1} − V_t, A_t = δ_t + γλ·A_{t+1}.

    Args:
        rewards: [B, T, D].
        values: [B, T, D], 0 where there is no state.
        gamma: discount.
        lam: λ.

    Returns:
        Advantages and returns (advantages + values), [B, T, D] each.
    """
    running = torch.zeros_like(rewards[:, 0])
    following = torch.zeros_like(rewards[:, 0])
    found = torch.empty_like(rewards)
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = delta + gamma * lam * running
        following = values[:, t]
        found[:, t] = running
    return found, found + values


def moments(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and unbiased variance of the values on the mask, over all ranks; 0-dim each."""
    kept = torch.where(mask, values, 0.0)
    total = torch.stack([mask.sum().to(values.dtype), kept.sum()])
    _reduce(total)
    number, mean = total[0], total[1] / total[0].clamp_min(1)
    squares = torch.where(mask, (values - mean) ** 2, 0.0).sum()
    _reduce(squares)
    return number, mean, squares / (number - 1).clamp_min(1)


def whiten(values: Tensor, mask: Tensor, *, shift: bool = True) -> Tensor:
    """(x − mean)/√(var + 1e-8) on the mask, 0 off it; without `shift` the mean is put back.

    A single value has no spread: it becomes 0 (its own value without `shift`).
    """
    number, mean, variance = moments(values, mask)
    scale = torch.where(number > 1, torch.rsqrt(variance + _LEAST_VARIANCE), 1.0)
    found = (values - mean) * scale
    return torch.where(mask, found if shift else found + mean, 0.0)


def combined_advantages(
    advantages: Tensor, tokens: Tensor, opened: Tensor, importance: Tensor, least_spread: float
) -> Tensor:
    """whiten(Σ_d ω_d·(A_d − mean_d)/std_d), [B, T].

    ω_d = w_d/Σ w over the dimensions that are open anywhere. Mean and std are those of the rows in
    which d is open, so that being open pays nothing; std is at least `least_spread` times the
    widest dimension's. With 0, each dimension is brought to unit spread, so that none drowns
    another whatever its unit (the decoupling of GDPO, arXiv 2601.05242, carried to PPO); but one
    that is as good as satisfied is then all noise at full volume. With 1 they are summed as they
    are, which is right where they share a scale.

    A row that is closed in d has nothing but the KL penalty in that stream (`shape` and
    `advantages` of the trainer see to it), about its own mean. So a closed dimension says nothing,
    the open ones grow no louder for it, and KL counts once in every row. Rows in which nothing is
    open are 0. With one dimension this is the whitening of its advantages.

    Args:
        advantages: [B, T, D].
        tokens: the tokens of each response, [B, T].
        opened: bool [B, D].
        importance: w, [D], at least 0.
        least_spread: in [0, 1].
    """
    known = tokens & opened.any(dim=1, keepdim=True)
    if advantages.shape[2] == 1:
        return whiten(advantages[:, :, 0], known)
    pairs = list(zip(advantages.unbind(2), opened.unbind(1), strict=True))
    found = [moments(stream, tokens & rows[:, None]) for stream, rows in pairs]
    numbers, means, variances = (torch.stack(column) for column in zip(*found, strict=True))
    widest = variances.max()
    scales = torch.maximum(variances, least_spread**2 * widest).add(_LEAST_VARIANCE).rsqrt()
    used = importance.to(advantages) * (numbers > 0)
    total = torch.zeros_like(advantages[:, :, 0])
    for d, (stream, rows) in enumerate(pairs):
        closed = moments(stream, known & ~rows[:, None])[1]
        alone = (stream - closed) * torch.rsqrt(widest + _LEAST_VARIANCE)
        scored = (stream - means[d]) * scales[d]
        total = total + used[d] * torch.where(rows[:, None], scored, alone)
    return whiten(total, known)


def _reduce(tensor: Tensor) -> None:
    if world_size() > 1:
        sum_over_ranks(tensor)
