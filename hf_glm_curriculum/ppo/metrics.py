"""What an update came to, as numbers for logs. Names are TRL's where TRL has the number."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from hf_glm_curriculum.ppo.objective import PolicyTerms, ValueTerms
from hf_glm_curriculum.ppo.rollout import Rollout
from hf_glm_curriculum.ppo.scoring import REFUSAL_COLUMN, Judged
from hf_glm_curriculum.rewards.pipeline import PREFIX
from hf_glm_curriculum.rewards.readings import read_responses
from hf_glm_curriculum.signals.distributed import sum_over_ranks, world_size


class UpdateStats:
    """Sums over the optimisation of one update; stays on the device until `metrics`."""

    def __init__(self, critics: int, device: torch.device) -> None:
        self._sums = {
            name: torch.zeros(size, device=device)
            for name, size in (
                ("tokens", 1),
                ("states", critics),
                ("policy", 1),
                ("value", critics),
                ("ratio", 1),
                ("ratio_square", 1),
                ("kl", 1),
                ("clipped", 1),
                ("value_clipped", critics),
                ("passes", 1),
            )
        }
        self._moved = torch.zeros((), device=device)
        self.grad_norms: list[Tensor] = []
        self.stopped_early = False
        self.mini_batches = 0

    @torch.no_grad()
    def add_policy(self, terms: PolicyTerms, tokens: Tensor) -> None:
        """Take the policy's terms of a micro-batch in, over so many tokens."""
        found = {
            "tokens": tokens,
            "policy": terms.loss.detach(),
            "ratio": terms.ratio,
            "kl": terms.approx_kl,
            "clipped": terms.clipped,
            "ratio_square": (terms.ratio / tokens.clamp_min(1)).square(),
        }
        for name, number in found.items():
            self._sums[name] += number
        self._sums["passes"] += 1
        self._moved += terms.approx_kl

    @torch.no_grad()
    def add_value(self, terms: ValueTerms, states: Tensor) -> None:
        """Take the critics' terms of a micro-batch in, over so many states of each."""
        self._sums["states"] += states
        self._sums["value"] += terms.loss.detach()
        self._sums["value_clipped"] += terms.clipped

    def take_moved(self) -> Tensor:
        """This rank's summed approximate KL since the last call."""
        moved, self._moved = self._moved, torch.zeros_like(self._moved)
        return moved

    def metrics(self) -> dict[str, float]:
        """Means over tokens and states of all ranks."""
        if world_size() > 1:
            for total in self._sums.values():
                sum_over_ranks(total)
        sums = {name: total.double().cpu() for name, total in self._sums.items()}
        tokens = float(sums["tokens"].clamp_min(1))
        states = sums["states"].clamp_min(1)
        ratio = float(sums["ratio"]) / tokens
        found = {
            "loss/policy_avg": float(sums["policy"]) / tokens,
            "loss/value_avg": float((sums["value"] / states).mean()),
            "policy/approxkl_avg": float(sums["kl"]) / tokens,
            "policy/clipfrac_avg": float(sums["clipped"]) / tokens,
            "val/clipfrac_avg": float((sums["value_clipped"] / states).mean()),
            "val/ratio": ratio,
            "val/ratio_var": max(
                float(sums["ratio_square"] / sums["passes"].clamp_min(1)) - ratio**2, 0.0
            ),
            "ppo/mini_batches": float(self.mini_batches),
            "ppo/stopped_early": float(self.stopped_early),
        }
        if self.grad_norms:
            found["grad_norm"] = float(torch.stack(self.grad_norms).mean())
        return found


def rollout_metrics(rollout: Rollout, judged: Judged, kl: Tensor) -> dict[str, float]:
    """This rank's means over a scored rollout.

    Args:
        rollout: B rows.
        judged: the same rows.
        kl: KL estimates by token, [B, T], 0 off the answers.
    """
    tokens = rollout.tokens
    penalty = (judged.kl_coefficients[:, None] * kl).sum(dim=1)
    reward = judged.scored.reward
    known = ~torch.isnan(reward)
    score = float(reward[known].mean()) if bool(known.any()) else float("nan")
    found = {
        "objective/kl": float(kl.sum(dim=1).mean()),
        "objective/entropy": float(-torch.where(tokens, rollout.logprobs, 0.0).sum(1).mean()),
        "objective/non_score_reward": -float(penalty.mean()),
        "objective/scores": score,
        "objective/rlhf_reward": score - float(penalty.mean()),
        "policy/entropy_avg": float(torch.where(tokens, rollout.entropy, 0.0).sum() / tokens.sum()),
        "val/num_eos_tokens": float(rollout.ended.sum()),
        "ppo/kl_coef_mean": float(judged.kl_coefficients.mean()),
    }
    scored = judged.scored.metrics()
    if judged.scored.shaping is None:
        readings = read_responses(
            rollout.responses,
            n_tokens=rollout.lengths.cpu(),
            ended=rollout.ended.cpu(),
            refusal_ok=rollout.columns.get(REFUSAL_COLUMN),
        )
        scored |= {f"{PREFIX}{name}": value for name, value in readings.metrics().items()}
    scored[f"{PREFIX}open"] = float(judged.scored.mask.float().mean())
    scored[f"{PREFIX}eos_rate"] = float(rollout.ended.float().mean())
    scored[f"{PREFIX}tokens"] = float(rollout.lengths.float().mean())
    return found | scored


def over_ranks(metrics: dict[str, float]) -> dict[str, float]:
    """The mean of each number over the ranks that have it, the same on every rank."""
    if world_size() == 1:
        return metrics
    together: dict[str, list[float]] = defaultdict(list)
    for one in gather_object([metrics]):
        for name, value in one.items():
            if value == value:
                together[name].append(value)
    return {name: sum(values) / len(values) for name, values in together.items()}


def total_over_ranks(number: int | float, device: Any) -> float:
    """A number summed over all ranks."""
    total = torch.tensor(float(number), device=device)
    if world_size() > 1:
        sum_over_ranks(total)
    return float(total)


def weighted_means(parts: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Means over the rows of all ranks of figures that are means over the rows of a part."""
    if world_size() > 1:
        parts = gather_object(parts)
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rows, figures in parts:
        for name, value in figures.items():
            if value == value:
                totals[name][0] += rows * value
                totals[name][1] += rows
    return {name: total / rows for name, (total, rows) in totals.items()}
