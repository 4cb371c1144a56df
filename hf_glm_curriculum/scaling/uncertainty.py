"""How sure a fit is: covariance, draws of the parameters, percentiles of whatever follows.

Every interval of a law is the spread of what its draws say, so that it carries the correlations
between parameters: A and alpha may each be uncertain where their prediction is not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEVEL = 0.95
STEEP = 6.0
"""An exponent beyond this is no power law: only the smallest runs differ."""

_GAUSSIAN_DRAWS = 400


def robust_covariance(jacobian: Array, residuals: Array, delta: float) -> Array:
    """[P, P] covariance of a Huber estimate: H⁻¹·(Σ ψᵢ²·jᵢjᵢᵀ)·H⁻¹, H = Σ ψ′ᵢ·jᵢjᵢᵀ.

    With a threshold below the noise ψ′ is nearly always 0; its expectation is then counted in a
    window as wide as the residuals' robust scale (Powell's estimator). Runs may differ in noise.
    Source: Huber, *Robust Statistics*, §6.3; Koenker, *Quantile Regression*, §3.4.2.

    Args:
        jacobian: [n, P] derivatives of the predictions.
        residuals: [n].
        delta: Huber's threshold.
    """
    n, parameters = jacobian.shape
    scale = 1.4826 * float(np.median(np.abs(residuals)))
    window = max(delta, scale)
    density = np.where(np.abs(residuals) <= window, delta / window if scale > delta else 1.0, 0.0)
    psi = np.clip(residuals, -delta, delta)
    bend = np.linalg.pinv((jacobian * density[:, None]).T @ jacobian, hermitian=True)
    noise = (jacobian * psi[:, None] ** 2).T @ jacobian
    return n / max(1, n - parameters) * bend @ noise @ bend


def gaussian_draws(theta: Array, covariance: Array, seed: int) -> Array:
    """[K, P] draws of internal parameters where there are no bootstraps."""
    generator = np.random.default_rng(seed)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    root = vectors * np.sqrt(np.clip(values, 0, None))
    return theta + generator.standard_normal((_GAUSSIAN_DRAWS, len(theta))) @ root.T


def usable(draws: Array, exponents: list[int]) -> Array:
    """The draws that are finite and in which the loss falls with every input as a power."""
    slopes = draws[:, exponents]
    with np.errstate(all="ignore"):
        good = np.isfinite(draws).all(1) & (slopes > 0).all(1) & (slopes < STEEP).all(1)
    return draws[good]


def percentiles(values: Array, level: float = LEVEL) -> tuple[Array, Array]:
    """Lower and upper bound over the first axis, NaN left out.

    Args:
        values: [K, …] one for each draw.
        level: Share between the bounds.
    """
    tail = 100 * (1 - level) / 2
    with np.errstate(all="ignore"):
        ordered = np.where(np.isnan(values), np.inf, values)
        low, high = np.percentile(ordered, [tail, 100 - tail], axis=0, method="nearest")
    return low, high


def interval(values: Array, level: float = LEVEL) -> tuple[float, float]:
    """`percentiles` of scalars, as two floats."""
    low, high = percentiles(values, level)
    return float(low), float(high)
