"""What a law answers: losses, bounds, budgets, curves; and what it refuses."""
# ruff: noqa: SIM300  (N, D, L and E are the names of the field, not constants)

import numpy as np
import pytest

from hf_glm_curriculum import ScalingLaw, fit_scaling_law
from hf_glm_curriculum.errors import ConfigError, DataError
from tests.scaling.laws import law_of, runs_of


@pytest.fixture(scope="module")
def fitted():
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    return fit_scaling_law(n, d, loss, bootstraps=60)


def test_a_law_is_made_from_published_parameters():
    law = ScalingLaw(1.69, 406.4, 410.7, 0.34, 0.28)
    assert law.predict(70e9, 1.4e12) == pytest.approx(1.937, abs=0.002)
    assert (law.E, law.alpha) == (1.69, 0.34)
    assert law.intervals == {} and law.flags == [] and np.isnan(law.objective)
    assert "A=406.4" in repr(law)


def test_shapes_follow_the_inputs():
    law = law_of("chinchilla")
    assert isinstance(law.predict(1e8, 1e10), float)
    assert law.predict(np.ones((3, 1)) * 1e8, np.ones(4) * 1e10).shape == (3, 4)
    slopes = law.gradient(1e8, np.array([1e9, 1e10]))
    assert slopes[0].shape == slopes[1].shape == (2,)


def test_bounds_hold_the_prediction_and_widen_outside_the_runs(fitted):
    widths = []
    for scale in (1, 100, 10_000):
        low, high = fitted.predict_interval(1e9 * scale, 2e10 * scale)
        assert low < fitted.predict(1e9 * scale, 2e10 * scale) < high
        widths.append((high - low) / (low + high))
    assert widths[0] < widths[1] < widths[2]
    narrow = fitted.predict_interval(1e11, 2e12, level=0.5)
    wide = fitted.predict_interval(1e11, 2e12)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_bounds_of_the_optimum_hold_it(fitted):
    best, bounds = fitted.optimal(1e23), fitted.optimal_interval(1e23)
    for name in "NDL":
        assert bounds[name][0] < getattr(best, name) < bounds[name][1]
    n, d, loss = best
    assert loss == fitted.predict(n, d)


def test_a_valley_has_its_floor_at_the_optimum():
    law = law_of("chinchilla")
    best = law.optimal(1e21)
    sizes = best.N * np.geomspace(0.1, 10, 201)
    valley = law.iso_flop(1e21, sizes)
    assert valley.argmin() == 100 and valley[100] == pytest.approx(best.L)


def test_an_iso_loss_curve_has_one_loss():
    law = law_of("chinchilla")
    sizes = np.geomspace(1e8, 1e11, 20)
    tokens = law.iso_loss(2.3, sizes)
    reached = np.isfinite(tokens)
    assert reached.any() and not reached.all()
    np.testing.assert_allclose(law.predict(sizes[reached], tokens[reached]), 2.3)
    assert (np.diff(tokens[reached]) < 0).all()


def test_the_cheapest_budget_for_a_loss_reaches_it():
    law = law_of("chinchilla")
    flops = law.compute_for(2.1)
    assert law.optimal(flops).L == pytest.approx(2.1, rel=1e-9)
    assert law.optimal(flops * 0.99).L > 2.1
    assert law.compute_for(law.E * 0.999) == np.inf


def test_given_laws_have_no_bounds():
    law = law_of("chinchilla")
    with pytest.raises(DataError, match="given, not fitted"):
        law.predict_interval(1e9, 1e10)
    with pytest.raises(DataError, match="given, not fitted"):
        law.optimal_interval(1e20)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"E": 1.0}, "form 'chinchilla' lacks A, B, alpha, beta"),
        ({"form": "kaplan", "E": 1.0}, "form 'kaplan' lacks"),
        (
            {"E": 1, "A": 1, "B": 1, "alpha": 0.3, "beta": 0.3, "parameters": {"gamma": 1}},
            "has no gamma",
        ),
        ({"E": 1, "A": -1, "B": 1, "alpha": 0.3, "beta": 0.3}, "A: must be positive"),
        ({"E": np.nan, "A": 1, "B": 1, "alpha": 0.3, "beta": 0.3}, "E: must be positive"),
    ],
)
def test_parameters_are_checked(arguments, words):
    with pytest.raises(ConfigError, match=words):
        ScalingLaw(**arguments)


def test_a_law_may_have_no_floor():
    law = ScalingLaw(0.0, 406.4, 410.7, 0.34, 0.28)
    expected = 406.4 / 1e9**0.34 + 410.7 / 1e10**0.28
    assert law.predict(1e9, 1e10) == pytest.approx(expected)


def test_inputs_must_be_positive():
    law = law_of("chinchilla")
    with pytest.raises(DataError, match="N: must be above 0"):
        law.predict(0, 1e9)
    with pytest.raises(DataError, match="D: must be above 0"):
        law.predict([1e8, 1e9], [1e9, -1])
    with pytest.raises(DataError, match="C: a budget must be above 0"):
        law.optimal(0)
    with pytest.raises(AttributeError, match="no 'gamma'"):
        law.gamma  # noqa: B018
