"""The formulas of objective migration: pure functions of the step.

Source: article 1, §2.1 (gradual objective migration); the exponents per layer are ours.
Letters: L blocks; layer l runs from 0 (embeddings) over 1 … L (blocks) to L + 1 (final norm and
head); p is the progress of the migration, 0 to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.migration.config import MigrationConfig

PRETRAIN, INSTRUCTION, OTHER = 0, 1, 2
"""Numbers of the objectives; OTHER is whatever belongs to neither and trains at weight 1."""

INCREMENTS = 100
"""Increments in a window, where the config does not say how far they lie apart."""


def depths(blocks: int) -> Tensor:
    """u_l = l / (L + 1): float64 [L + 2], 0 at the embeddings, 1 at final norm and head."""
    return torch.arange(blocks + 2, dtype=torch.float64) / (blocks + 1)


def layer_progress(p: float, blocks: int, gamma_bottom: float, gamma_top: float) -> Tensor:
    """p_l = p^γ(u_l) with γ(u) = γ_bottom + (γ_top − γ_bottom)·u; float64 [L + 2].

    Raises:
        ConfigError: if ``p`` is not between 0 and 1.
    """
    if not 0.0 <= p <= 1.0:
        raise ConfigError(f"progress: must be at least 0 and at most 1, got {p}.")
    gamma = gamma_bottom + (gamma_top - gamma_bottom) * depths(blocks)
    return torch.tensor(p, dtype=torch.float64) ** gamma


def layer_weights(p: float, blocks: int, config: MigrationConfig) -> Tensor:
    """The weight of each objective in each layer.

    Pre-training: 1 − (1 − ``pretrain_floor``)·p_l. Instruction: max(p_l, ``instruction_floor``).

    Args:
        p: progress of the migration, 0 to 1.
        blocks: L, the number of transformer blocks.
        config: exponents and floors.

    Returns:
        float64 [2, L + 2], rows PRETRAIN and INSTRUCTION, columns from the embeddings upwards.

    Raises:
        ConfigError: if ``p`` is not between 0 and 1.
    """
    progress = layer_progress(p, blocks, config.gamma_bottom, config.gamma_top)
    pretrain = 1.0 - (1.0 - config.pretrain_floor) * progress
    return torch.stack([pretrain, progress.clamp(min=config.instruction_floor)])


def neutral_weights(blocks: int) -> Tensor:
    """Weight 1 for both objectives everywhere: what training without migration does."""
    return torch.ones(2, blocks + 2, dtype=torch.float64)


def effective_ratio(ratio: float, weights: Tensor) -> Tensor:
    """The instruction objective's share of what each layer is trained with.

    e_l = r·w_l(instruction) / (r·w_l(instruction) + (1 − r)·w_l(pre-training)) for the share r of
    instructions among the label tokens; 0 where neither has weight.

    Args:
        ratio: r, between 0 and 1.
        weights: float64 [2, L + 2] from :func:`layer_weights`.

    Returns:
        float64 [L + 2].
    """
    ours, theirs = ratio * weights[INSTRUCTION], (1.0 - ratio) * weights[PRETRAIN]
    total = ours + theirs
    return torch.where(total > 0, ours / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


@dataclass(frozen=True)
class MigrationSchedule:
    """A config laid over the steps of a run; made by :func:`schedule_for`.

    Step k is the optimizer step that follows ``global_step == k``.
    """

    config: MigrationConfig
    begin: int
    """First step of the window."""
    end: int
    """First step after the window, and of instruction tuning."""
    post_ramp: int
    """Steps from ``end`` until the share of instructions is ``sft_ratio``."""
    max_steps: int
    """Steps of the run."""

    def progress(self, step: int) -> float:
        """Progress p = (step − begin) / (end − begin), between 0 and 1."""
        return min(1.0, max(0.0, (step - self.begin) / (self.end - self.begin)))

    def injected_ratio(self, step: int) -> float:
        """Share of instructions among the label tokens to draw at a step.

        0 before the window; inside, start + increment·⌊(step − begin)/every⌋; after it, linear
        from what the window ends with to ``sft_ratio`` over ``post_ramp`` steps. Never above
        ``sft_ratio``.
        """
        if step < self.begin:
            return 0.0
        if step < self.end:
            return self._inside(step)
        reached = self._inside(self.end)
        done = 1.0 if self.post_ramp == 0 else min(1.0, (step - self.end) / self.post_ramp)
        return self.config.sft_ratio - (self.config.sft_ratio - reached) * (1.0 - done)

    def _inside(self, step: int) -> float:
        config = self.config
        every = config.increment_every
        if every is None:
            every = (self.end - self.begin) / INCREMENTS
        # The small term keeps a quotient such as 2.9999999999999996 from losing an increment.
        count = int((step - self.begin) / every + 1e-9)
        return min(config.sft_ratio, config.start_ratio + config.increment * count)

    def weights(self, step: int, blocks: int) -> Tensor:
        """Layer weights at a step, float64 [2, L + 2]; 1 everywhere without gates."""
        if not self.config.gates:
            return neutral_weights(blocks)
        return layer_weights(self.progress(step), blocks, self.config)


def schedule_for(config: MigrationConfig, max_steps: int) -> MigrationSchedule:
    """Lay a config over a run.

    Args:
        config: the settings.
        max_steps: optimizer steps of the run (``state.max_steps``).

    Raises:
        ConfigError: if window or ramp reach outside the run.
    """
    end = config.pretrain_steps or max_steps
    if max_steps < 1 or end > max_steps:
        raise ConfigError(
            f"pretrain_steps: must not exceed the {max_steps} steps of the run, got {end}; train "
            "longer or end pre-training earlier."
        )
    begin = end - round(config.window * end)
    if begin >= end:
        raise ConfigError(
            f"window: must hold at least one step, got {config.window} of {end} steps; make it "
            f"at least {1 / end:.3g}, or train longer."
        )
    left = max_steps - end
    ramp = config.post_ramp
    if ramp is None:
        ramp = min(left, _even_ramp(MigrationSchedule(config, begin, end, 0, max_steps)))
    if ramp > left:
        raise ConfigError(
            f"post_ramp: must end within the run, whose {max_steps} steps leave {left} after "
            f"pre-training, got {ramp}; shorten it or train longer."
        )
    return MigrationSchedule(config, begin, end, ramp, max_steps)


def _even_ramp(schedule: MigrationSchedule) -> int:
    """Length R of the ramp that gives back what the window injects.

    Over the ramp Σ (sft_ratio − r) = (sft_ratio − r_end)·(R + 1)/2, over the window it is Σ r.
    """
    injected = sum(schedule.injected_ratio(step) for step in range(schedule.begin, schedule.end))
    missing = schedule.config.sft_ratio - schedule._inside(schedule.end)
    return max(0, round(2 * injected / missing - 1)) if missing > 0 else 0
