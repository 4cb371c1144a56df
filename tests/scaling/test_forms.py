"""Every form: printed formula, gradients, inverse, optimum, changes of parametrisation."""
# ruff: noqa: SIM300  (N, D, L and E are the names of the field, not constants)

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.scaling.form_catalogue import FORMS
from hf_glm_curriculum.scaling.forms import form_named
from tests.scaling.laws import PARAMETERS, grid_runs, law_of, unique_tokens

NAMES = sorted(FORMS)


def printed(form, n, d, u=None):
    """The formula as it is printed, in torch."""
    p = {name: torch.tensor(value, dtype=torch.float64) for name, value in PARAMETERS[form].items()}
    return printed_with(form, p, n, d, u)


def printed_with(form, p, n, d, u=None):
    if form == "two_power":
        return (p["N_c"] / n) ** p["alpha_N"] + (p["D_c"] / d) ** p["alpha_D"]
    if form == "simplified":
        return p["A"] * ((n / 1e9) ** -p["alpha_N"] + (d / 1e9) ** -p["alpha_D"])
    if form == "kaplan":
        inner = (p["N_c"] / n) ** (p["alpha_N"] / p["alpha_D"]) + p["D_c"] / d
        return inner ** p["alpha_D"]
    if form == "data_limited":
        repeats = torch.clamp(d / u - 1, min=0)
        worth = torch.minimum(d, u) + u * p["R"] * (1 - torch.exp(-repeats / p["R"]))
        d = worth
    return p["E"] + p["A"] / n ** p["alpha"] + p["B"] / d ** p["beta"]


def inputs_of(form):
    n, d = grid_runs(4, 5)
    return (n, d, unique_tokens(d)) if form == "data_limited" else (n, d)


def theta_of(form):
    natural = np.array([list(PARAMETERS[form].values())])
    return FORMS[form].internal(natural)


@pytest.mark.parametrize("form", NAMES)
def test_predictions_are_the_printed_formula(form):
    inputs = inputs_of(form)
    expected = printed(form, *map(torch.from_numpy, inputs))
    np.testing.assert_allclose(law_of(form).predict(*inputs), expected, rtol=1e-12)


@pytest.mark.parametrize("form", NAMES)
def test_gradients_by_inputs_equal_autograd(form):
    inputs = [torch.from_numpy(one).requires_grad_() for one in inputs_of(form)]
    slopes = torch.autograd.grad(printed(form, *inputs).sum(), inputs[:2])
    found = law_of(form).gradient(*(one.detach().numpy() for one in inputs))
    plain = [one.detach().numpy() for one in inputs]
    # At D = U the data-limited form has a kink, where autograd takes the middle of two slopes.
    smooth = plain[1] != plain[-1] if len(plain) > 2 else np.ones(len(plain[0]), bool)
    for mine, theirs in zip(found, slopes, strict=True):
        np.testing.assert_allclose(mine[smooth], theirs[smooth], rtol=1e-9)
        assert (mine < 0).all()


@pytest.mark.parametrize("form", NAMES)
def test_gradients_by_parameters_equal_finite_differences(form):
    chosen, theta = FORMS[form], theta_of(form)[0]
    x = np.log(np.stack(inputs_of(form), 1))
    found = chosen.jacobian(theta, x)
    for place in range(len(theta)):
        step = np.zeros_like(theta)
        step[place] = 1e-6
        ahead = chosen.log_loss((theta + step)[None], x)[0][0]
        behind = chosen.log_loss((theta - step)[None], x)[0][0]
        np.testing.assert_allclose(found[:, place], (ahead - behind) / 2e-6, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", NAMES)
def test_elasticities_equal_finite_differences(form):
    chosen, theta = FORMS[form], theta_of(form)
    x = np.log(np.stack(inputs_of(form), 1))
    # Where D = U the data-limited form has a kink: differences across it are neither side's.
    smooth = np.ones(len(x), bool) if x.shape[1] == 2 else np.abs(x[:, 1] - x[:, 2]) > 1e-3
    for place in range(x.shape[1]):
        step = np.zeros(x.shape[1])
        step[place] = 1e-6
        change = chosen.log_loss(theta, x + step)[0] - chosen.log_loss(theta, x - step)[0]
        found = chosen.elasticity(theta, x)[0, :, place]
        np.testing.assert_allclose(found[smooth], (change[0] / 2e-6)[smooth], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("form", NAMES)
def test_inverses_give_the_inputs_back(form):
    law, inputs = law_of(form), inputs_of(form)
    for place in range(len(inputs[0])):
        n, d, *rest = (float(one[place]) for one in inputs)
        loss = law.predict(n, d, *rest)
        assert law.tokens_for(loss, n, *rest) == pytest.approx(d, rel=1e-6)
        assert law.parameters_for(loss, d, *rest) == pytest.approx(n, rel=1e-8)


@pytest.mark.parametrize("form", NAMES)
def test_losses_that_cannot_be_reached_need_infinitely_much(form):
    law = law_of(form)
    unique = (1e9,) if form == "data_limited" else ()
    bottom = law.predict(1e9, 1e60, *unique)
    assert law.tokens_for(bottom * 0.999, 1e9, *unique) == np.inf
    assert np.isfinite(law.tokens_for(bottom * 1.01, 1e9, *unique))


@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize("flops", [1e17, 3e21, 1e25])
def test_the_optimum_is_where_a_search_finds_it(form, flops):
    law = law_of(form)
    unique = 2e9 if form == "data_limited" else None
    best = law.optimal(flops, unique)

    def loss(log_n):
        return law.predict(np.exp(log_n), flops / 6 / np.exp(log_n), unique)

    found = minimize_scalar(loss, bounds=(0, 60), method="bounded", options={"xatol": 1e-10})
    assert best.L == pytest.approx(found.fun, rel=1e-9)
    assert np.log(best.N) == pytest.approx(found.x, abs=2e-3)
    assert best.N * best.D * 6 == pytest.approx(flops, rel=1e-9)


def test_the_optimum_is_the_closed_form_and_not_equal_shares():
    law = law_of("chinchilla")
    p = law.parameters
    for flops in (1e18, 5.76e23):
        ratio = p["alpha"] * p["A"] / (p["beta"] * p["B"])
        n = (ratio * (flops / 6) ** p["beta"]) ** (1 / (p["alpha"] + p["beta"]))
        best = law.optimal(flops)
        assert best.N == pytest.approx(n, rel=1e-12)
        assert best.D == pytest.approx(flops / (6 * n), rel=1e-12)
        assert abs(np.log(best.N / best.D)) > 1
        assert best.L == pytest.approx(law.predict(best.N, best.D), rel=1e-12)
    assert law.compute_exponent == pytest.approx(p["beta"] / (p["alpha"] + p["beta"]))


def test_repeated_tokens_are_worth_less_and_new_ones_the_same():
    law, plain = law_of("data_limited"), law_of("chinchilla")
    assert law.predict(1e9, 1e10, 1e10) == law.predict(1e9, 1e10)
    once, four, forty = (law.predict(1e9, epochs * 1e9, 1e9) for epochs in (1, 4, 40))
    fresh = law.predict(1e9, 4e9)
    assert fresh < four < once and forty < four
    # Muennighoff et al.: up to four epochs repeated data are nearly as good as new ones.
    assert four - fresh < 0.15 * (once - fresh)
    limit = law.predict(1e9, 1e6 * 1e9, 1e9)
    assert limit == pytest.approx(law.predict(1e9, 16e9), rel=1e-9)
    assert law.optimal(1e22, unique=1e10).N > law.optimal(1e22).N
    assert plain.predict(1e9, 1e9) > plain.predict(1e9, 4e9)


@pytest.mark.parametrize("form", NAMES)
def test_natural_and_internal_parameters_convert_both_ways(form):
    natural = np.array([list(PARAMETERS[form].values())])
    np.testing.assert_allclose(FORMS[form].natural(FORMS[form].internal(natural)), natural)


@pytest.mark.parametrize("form", sorted({*NAMES} - {"simplified"}))
def test_shifted_parameters_predict_the_same(form):
    chosen, theta = FORMS[form], theta_of(form)
    x = np.log(np.stack(inputs_of(form), 1))
    centre = np.array([20.0, 23.0, 23.0])[: x.shape[1]]
    shifted = chosen.shift(theta, centre)
    expected = chosen.log_loss(theta, x - centre)[0]
    np.testing.assert_allclose(chosen.log_loss(shifted, x)[0], expected, rtol=1e-9)


@pytest.mark.parametrize("form", NAMES)
def test_every_parameter_has_a_unit(form):
    chosen = FORMS[form]
    assert set(chosen.units) == set(chosen.names)
    assert chosen.formula and chosen.source


def test_kaplans_form_is_not_the_sum_that_articles_print():
    parameters = PARAMETERS["kaplan"]
    assert parameters.keys() == PARAMETERS["two_power"].keys()
    n, d = 1e9, 2e10
    from hf_glm_curriculum.scaling.law import ScalingLaw

    joint = ScalingLaw(form="kaplan", parameters=parameters).predict(n, d)
    added = ScalingLaw(form="two_power", parameters=parameters).predict(n, d)
    assert added > 1.5 * joint


def test_an_unknown_form_is_refused():
    with pytest.raises(ConfigError, match=r"form: must be one of chinchilla.*got 'chinchila'"):
        form_named("chinchila")
