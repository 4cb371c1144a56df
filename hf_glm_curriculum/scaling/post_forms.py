"""Forms of post-training laws: a loss or a reward against rows, pairs and episodes.

Each input has a power of its own over a common floor (losses) or under a common ceiling (rewards),
so that Chinchilla's form is the case of two inputs. A straight line in log-log coordinates is the
case of a floor at 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_glm_curriculum.scaling.forms import Array, PowerSum, Pullback
from hf_glm_curriculum.scaling.starts import exponent_grid, floor_starts, power_starts

INPUTS = {
    "parameters": "parameters of the model",
    "pretrain_tokens": "tokens of pre-training",
    "sft_rows": "rows of supervised fine-tuning",
    "preference_pairs": "pairs that the reward model is trained on",
    "ppo_episodes": "answers generated and scored in PPO",
}
"""Input → what it counts."""

_POINTS = {1: 12, 2: 7, 3: 4, 4: 3, 5: 2}
_CEILINGS = (0.02, 0.1, 0.3, 1.0, 3.0)


class LossAgainstRows(PowerSum):
    """L = E + Σ_k B_k/x_k^beta_k."""

    name = "loss_against_rows"
    formula = "L = E + Σ B_k / x_k^beta_k"
    source = "Chinchilla's form (Hoffmann et al. 2022) with an input for each stage"
    floor_is_log = True

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        scales = tuple(f"B_{name}" for name in inputs)
        exponents = tuple(f"beta_{name}" for name in inputs)
        self.names = ("E", *scales, *exponents)
        self.units = {
            "E": "unit of the result",
            **{f"B_{name}": f"result · {name}^beta" for name in inputs},
            **dict.fromkeys(exponents, "none"),
        }

    @property
    def _width(self) -> int:
        return len(self.inputs)

    def design(self, x: Array) -> Array:
        """[n, K + 1, 2K + 1]: the terms of the inputs, then the floor."""
        k = self._width
        found = np.zeros((len(x), k + 1, 2 * k + 1))
        found[:, k, 0] = 1
        for place in range(k):
            found[:, place, 1 + place] = 1
            found[:, place, 1 + k + place] = -x[:, place]
        return found

    def slope_places(self) -> list[tuple[int, int, int]]:
        """See `PowerSum.slope_places`."""
        return [(place, place, 1 + self._width + place) for place in range(self._width)]

    def natural(self, theta: Array) -> Array:
        """Exponentials of floor and scales."""
        k = 1 + self._width
        return np.concatenate([np.exp(theta[:, :k]), theta[:, k:]], 1)

    def internal(self, natural: Array) -> Array:
        """Logarithms of floor and scales."""
        k = 1 + self._width
        logs = np.log(np.maximum(natural[:, :k], 1e-300))
        return np.concatenate([logs, natural[:, k:]], 1)

    def shift(self, theta: Array, centre: Array) -> Array:
        """See `Form.shift`."""
        k = self._width
        found = theta.copy()
        found[:, 1 : 1 + k] += theta[:, 1 + k :] * centre
        return found

    def starts(self, x: Array, loss: Array) -> Array:
        """Floors and exponents on a grid, scales by least squares."""
        return floor_starts(x, loss, _POINTS[self._width])


class RewardAgainstRows(LossAgainstRows):
    """R = R_max − Σ_k B_k/x_k^beta_k, in units of the rewards' range; may be negative."""

    name = "reward_against_rows"
    formula = "R = R_max − Σ B_k / x_k^beta_k"
    floor_is_log = False

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__(inputs)
        self.names = ("R_max", *self.names[1:])
        self.units = {"R_max": "unit of the result", **dict(list(self.units.items())[1:])}

    def log_loss(self, theta: Array, x: Array) -> tuple[Array, Pullback]:
        """[S, n] the reward itself, in spite of the name it has in `Form`, and its pullback."""
        k = self._width
        logs = theta[:, None, 1 : 1 + k] - theta[:, None, 1 + k :] * x[None]
        terms = np.exp(np.minimum(logs, 300.0))

        def pull(v: Array) -> Array:
            weighted = v[:, :, None] * terms
            by_exponent = (weighted * x[None]).sum(1)
            return np.concatenate([v.sum(1)[:, None], -weighted.sum(1), by_exponent], 1)

        return theta[:, :1] - terms.sum(2), pull

    def natural(self, theta: Array) -> Array:
        """The ceiling as it is, exponentials of the scales."""
        return np.concatenate([theta[:, :1], super().natural(theta)[:, 1:]], 1)

    def internal(self, natural: Array) -> Array:
        """The ceiling as it is, logarithms of the scales."""
        return np.concatenate([natural[:, :1], super().internal(natural)[:, 1:]], 1)

    def starts(self, x: Array, loss: Array) -> Array:
        """Ceilings above the best reward and exponents on a grid, scales by least squares."""
        exponents = exponent_grid(self._width, _POINTS[self._width], 0.05, 1.5)
        span = max(float(np.ptp(loss)), 1e-9)
        found = []
        for share in _CEILINGS:
            ceiling = loss.max() + share * span
            part = power_starts(x, ceiling - loss, exponents)
            found.append(np.concatenate([np.full((len(part), 1), ceiling), part], 1))
        return np.concatenate(found)
