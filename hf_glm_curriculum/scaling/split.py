"""The cheapest way to a result: compute over stages so that a post-training law is smallest.

With N fixed the problem is convex: minimise Σ B_k·x_k^−β_k with Σ c_k·x_k = C. At the optimum every
unit of compute buys the same, β_k·B_k·x_k^(−β_k−1) = λ·c_k, so one price λ gives all x_k; it is
found by bisection. N itself is found on a grid of its logarithm that is narrowed four times.

Shape letters: S laws (draws), G sizes, k inputs that are bought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BISECTIONS, _POINTS, _ZOOMS = 80, 64, 5


@dataclass
class Problem:
    """What is split.

    Attributes:
        scales: [S, k] B of every input that is bought.
        exponents: [S, k] their β.
        budget: FLOPs.
        cost: N [G] → [G, k] FLOPs of one unit of each input.
        fixed_cost: N [G] → [G] FLOPs that are spent whatever is bought.
        most: [k] units there are; inf for no limit.
        size_scale: [S] B of the parameters; None if the law does not know them.
        size_exponent: [S] their β.
    """

    scales: Array
    exponents: Array
    budget: float
    cost: Callable[[Array], Array]
    fixed_cost: Callable[[Array], Array]
    most: Array
    size_scale: Array | None = None
    size_exponent: Array | None = None


def units_bought(scales: Array, exponents: Array, cost: Array, budget: Array, most: Array) -> Array:
    """[…, k] units that minimise Σ B·x^−β for a budget.

    Args:
        scales: […, k].
        exponents: […, k].
        cost: […, k] of one unit.
        budget: […] above 0; what is left when all limits are reached stays unspent.
        most: [k].
    """
    gain = np.log(exponents * scales / cost)
    low, high = np.full(budget.shape, -2000.0), np.full(budget.shape, 2000.0)
    limit = np.log(most)

    def bought(price: Array) -> Array:
        return np.minimum((gain - price[..., None]) / (exponents + 1), limit)

    log_cost, log_budget = np.log(cost), np.log(budget)
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        spent = np.logaddexp.reduce(bought(price) + log_cost, axis=-1)
        over = spent > log_budget
        low, high = np.where(over, price, low), np.where(over, high, price)
    return np.exp(bought(high))


def at_size(problem: Problem, sizes: Array) -> tuple[Array, Array]:
    """The best split for given sizes.

    Args:
        problem: What is split.
        sizes: [S, G] parameters.

    Returns:
        Units [S, G, k], and what the law says beyond its floor [S, G]; inf where the fixed costs
        alone exceed the budget.
    """
    flat = sizes.reshape(-1)
    cost = problem.cost(flat).reshape(*sizes.shape, -1)
    left = problem.budget - problem.fixed_cost(flat).reshape(sizes.shape)
    scales, exponents = problem.scales[:, None], problem.exponents[:, None]
    shape = cost.shape
    units = units_bought(
        np.broadcast_to(scales, shape),
        np.broadcast_to(exponents, shape),
        cost,
        np.maximum(left, 1e-6 * problem.budget),
        problem.most,
    )
    result = (scales * units**-exponents).sum(-1)
    if problem.size_scale is not None and problem.size_exponent is not None:
        result = result + problem.size_scale[:, None] * sizes ** -problem.size_exponent[:, None]
    return units, np.where(left > 0, result, np.inf)


def best_size(problem: Problem, low: float = 1e3, high: float = 1e16) -> Array:
    """[S] parameters at which the best split is best.

    Args:
        problem: What is split; the law knows the parameters.
        low: Smallest size tried.
        high: Largest.
    """
    count = len(problem.scales)
    first, last = np.full(count, np.log(low)), np.full(count, np.log(high))
    best = first
    for _ in range(_ZOOMS):
        grid = first[:, None] + (last - first)[:, None] * np.linspace(0, 1, _POINTS)
        _, result = at_size(problem, np.exp(grid))
        place = result.argmin(1)
        best = grid[np.arange(count), place]
        step = (last - first) / (_POINTS - 1)
        first, last = best - step, best + step
    return np.exp(best)
