"""The batched optimiser against scipy's, start by start."""

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from hf_glm_curriculum.scaling.lbfgs import minimise


def rosenbrock(theta, which):
    return np.array([rosen(one) for one in theta]), np.array([rosen_der(one) for one in theta])


def test_every_start_reaches_the_minimum_by_itself():
    starts = np.random.default_rng(0).uniform(-2, 2, (12, 4))
    found = minimise(rosenbrock, starts, iterations=2000, tolerance=1e-9)
    assert found.converged.all()
    # In four dimensions the function has this local minimum besides the global one.
    local = np.array([-0.775659, 0.613093, 0.382063, 0.145972])
    for end in found.theta:
        assert end == pytest.approx(np.ones(4), abs=1e-3) or end == pytest.approx(local, abs=1e-3)
    assert (found.value < 1e-8).sum() >= 6


def test_the_minimum_is_scipys():
    start = np.array([-1.2, 1.0, 0.5])
    theirs = minimize(rosen, start, jac=rosen_der, method="L-BFGS-B", tol=1e-14)
    mine = minimise(rosenbrock, start[None], tolerance=1e-9)
    assert mine.theta[0] == pytest.approx(theirs.x, abs=1e-4)
    assert mine.iterations[0] < 3 * theirs.nit + 30


def test_starts_do_not_disturb_each_other():
    starts = np.random.default_rng(1).uniform(-2, 2, (5, 3))
    together = minimise(rosenbrock, starts).theta
    alone = np.concatenate([minimise(rosenbrock, one[None]).theta for one in starts])
    np.testing.assert_array_equal(together, alone)


def test_a_start_without_a_finite_value_is_left_where_it_is():
    def objective(theta, which):
        with np.errstate(invalid="ignore"):
            return np.log(theta[:, 0]) ** 2, 2 * np.log(theta) / theta

    found = minimise(objective, np.array([[-1.0], [5.0]]))
    assert not np.isfinite(found.value[0]) and not found.converged[0]
    assert found.theta[1, 0] == pytest.approx(1, abs=1e-4)


def test_nearly_non_smooth_objectives_end_at_the_median():
    values = np.array([1.0, 2.0, 4.0, 9.0, 30.0])

    def objective(theta, which):
        residual = theta - values
        size, delta = np.abs(residual), 1e-3
        loss = np.where(size <= delta, 0.5 * residual**2 / delta, size - delta / 2)
        return loss.sum(1), np.clip(residual / delta, -1, 1).sum(1, keepdims=True)

    found = minimise(objective, np.array([[0.0], [50.0], [4.2]]))
    np.testing.assert_allclose(found.theta[:, 0], 4.0, atol=2e-3)
