"""FLOPs of each training stage, counted part by part.

A forward pass costs 2 FLOPs a parameter and token, a backward pass 4 (2 for the activations and 2
for the weights); attention scores are left out, as in C = 6·N·D. With adapters the backward pass
through frozen weights costs 2. A token generated with a KV cache costs one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_glm_curriculum.errors import ConfigError

STAGES = {
    "pretrain": ("parameters", "pretrain_tokens"),
    "sft": ("sft_rows",),
    "rlhf": ("preference_pairs", "ppo_episodes"),
}
"""Stage → what it spends compute on."""

GENERATION = "rollout"
"""The part that generates, and runs at a device's utilisation in generation."""


@dataclass
class SftCost:
    """What a row of supervised fine-tuning costs."""

    tokens: float = 512
    """Tokens of a row, prompt and answer."""

    epochs: float = 3
    """Times each row is read."""

    trained: Literal["full", "lora"] = "full"
    """All weights, or adapters on frozen ones."""


@dataclass
class RewardCost:
    """What a preference pair costs in the training of the reward model."""

    tokens: float = 512
    """Tokens of a prompt with one of its two answers."""

    epochs: float = 1
    """Times each pair is read; heads on a frozen backbone read it once, whatever this says."""

    trained: Literal["full", "lora", "heads"] = "full"
    """All weights, adapters, or heads over cached features."""

    parameters: float | None = None
    """Parameters of the reward model; null takes the policy's."""


@dataclass
class PpoCost:
    """What an episode of PPO costs."""

    prompt_tokens: float = 256
    """Tokens of a prompt."""

    response_tokens: float = 256
    """Tokens of an answer."""

    epochs: float = 4
    """Optimisation passes over each episode."""

    trained: Literal["full", "lora"] = "full"
    """All weights of the policy, or adapters on frozen ones."""

    value_parameters: float | None = None
    """Parameters of the value model; null takes the policy's, 0 is a head on the policy's trunk."""

    reference: bool = True
    """Whether a reference model scores each answer."""


@dataclass
class StageCosts:
    """Sizes that decide what every stage costs."""

    sft: SftCost = field(default_factory=SftCost)
    """Supervised fine-tuning."""

    reward: RewardCost = field(default_factory=RewardCost)
    """Training of the reward model, a part of the stage rlhf."""

    ppo: PpoCost = field(default_factory=PpoCost)
    """PPO, the other part of the stage rlhf."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        for name in ("sft", "reward", "ppo"):
            for key, value in vars(getattr(self, name)).items():
                low = 0 if key == "value_parameters" else 1e-9
                if isinstance(value, int | float) and not isinstance(value, bool) and value < low:
                    raise ConfigError(f"{name}.{key}: must be above 0, got {value}")


def unit_flops(unit: str, parameters: Any, costs: StageCosts) -> dict[str, Any]:
    """Part → FLOPs that one unit costs (a token, a row, a pair, an episode).

    Args:
        unit: "pretrain_tokens", "sft_rows", "preference_pairs" or "ppo_episodes".
        parameters: N, a number or an array.
        costs: Sizes.

    Raises:
        ConfigError: The unit is none of these.
    """
    if unit == "pretrain_tokens":
        return {"forward": 2 * parameters, "backward": 4 * parameters}
    if unit == "sft_rows":
        tokens = costs.sft.tokens * costs.sft.epochs
        return _trained(parameters, tokens, costs.sft.trained)
    if unit == "preference_pairs":
        size = parameters if costs.reward.parameters is None else costs.reward.parameters
        if costs.reward.trained == "heads":
            return {"forward": 2 * size * 2 * costs.reward.tokens}
        tokens = 2 * costs.reward.tokens * costs.reward.epochs
        return _trained(size, tokens, costs.reward.trained)
    if unit == "ppo_episodes":
        return _episode(parameters, costs)
    raise ConfigError(f"{unit!r} costs no FLOPs of its own")


def _trained(parameters: Any, tokens: float, how: str) -> dict[str, Any]:
    backward = 4 if how == "full" else 2
    return {"forward": 2 * parameters * tokens, "backward": backward * parameters * tokens}


def _episode(parameters: Any, costs: StageCosts) -> dict[str, Any]:
    """An episode: generate, score by every model, optimise."""
    ppo = costs.ppo
    tokens = ppo.prompt_tokens + ppo.response_tokens
    reward = parameters if costs.reward.parameters is None else costs.reward.parameters
    value = parameters if ppo.value_parameters is None else ppo.value_parameters
    policy_pass = 2 + (4 if ppo.trained == "full" else 2)
    return {
        GENERATION: 2 * parameters * tokens,
        "log-probabilities": 2 * parameters * tokens,
        "reference": 2 * parameters * tokens * ppo.reference,
        "reward": 2 * reward * tokens,
        "value": 2 * value * tokens,
        "optimisation": ppo.epochs * tokens * (policy_pass * parameters + 6 * value),
    }
