"""Grids of starts: exponents (and floors) on a grid, scales by least squares.

Given exponents and a floor, every form here is linear in its scales, so a grid over exponents
alone reaches what a grid over all parameters would, with hundreds of starts instead of thousands.

Shape letters: G starts, n runs, K inputs.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_FLOORS = (0.05, 0.4, 0.7, 0.85, 0.95)
_LEAST_SHARE = 1e-3


def exponent_grid(inputs: int, points: int, low: float = 0.03, high: float = 1.5) -> Array:
    """[points^inputs, inputs] exponents, evenly spaced in logarithms."""
    return np.array(list(product(np.geomspace(low, high, points), repeat=inputs)))


def power_starts(x: Array, target: Array, exponents: Array) -> Array:
    """[G, 2K] logarithms of scales, then exponents, of target ≈ Σ scale·exp(−exponent·x).

    Args:
        x: [n, K] logarithms of the inputs.
        target: [n] positive values.
        exponents: [G, K].
    """
    # Columns are taken relative to their largest entry, so that nothing overflows.
    raw = -exponents[:, None, :] * x[None]
    top = raw.max(1, keepdims=True)
    basis = np.exp(raw - top) / target[None, :, None]
    gram = basis.transpose(0, 2, 1) @ basis
    gram += 1e-9 * np.trace(gram, axis1=1, axis2=2)[:, None, None] * np.eye(x.shape[1])
    scales = np.linalg.solve(gram, basis.sum(1)[..., None])[..., 0]
    # A scale that least squares makes negative starts as a small share of the largest target.
    scales = np.maximum(scales, _LEAST_SHARE * target.max())
    return np.concatenate([np.log(scales) - top[:, 0], exponents], 1)


def floor_starts(x: Array, loss: Array, points: int = 7) -> Array:
    """[G, 2K + 1] starts with the floor's logarithm in front.

    Args:
        x: [n, K] logarithms of the inputs.
        loss: [n] losses.
        points: Exponents tried for each input.
    """
    exponents = exponent_grid(x.shape[1], points, 0.05, 1.2)
    found = []
    for share in _FLOORS:
        floor = share * loss.min()
        part = power_starts(x, loss - floor, exponents)
        found.append(np.concatenate([np.full((len(part), 1), np.log(floor)), part], 1))
    return np.concatenate(found)
