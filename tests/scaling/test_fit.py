"""Fits: known laws recovered, the published points, repeats, bootstraps, saved laws."""
# ruff: noqa: SIM300  (N, D, L and E are the names of the field, not constants)

import csv
import json
import time

import numpy as np
import pytest

from hf_glm_curriculum import ScalingLaw, fit_scaling_law
from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.scaling.conventions import Conventions
from tests.scaling.laws import PARAMETERS, runs_of


@pytest.fixture(scope="module")
def published(shared_data):
    """The 240 points and the published fits."""
    folder = shared_data / "scaling_chinchilla"
    if not folder.is_dir():
        pytest.skip(f"no Chinchilla points at {folder}")
    text = (folder / "svg_extracted_data.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    n, c, loss = (
        np.array([float(row[name]) for row in rows])
        for name in ("Model Size", "Training FLOP", "loss")
    )
    keep = loss < np.sort(loss)[-5]
    fits = json.loads((shared_data / "scaling_published_fits/published_fits.json").read_text())
    return n[keep], (c / 6 / n)[keep], loss[keep], fits


@pytest.fixture(scope="module")
def published_law(published):
    n, d, loss, _ = published
    return fit_scaling_law(n, d, loss, bootstraps=100)


@pytest.mark.parametrize("form", sorted(PARAMETERS))
def test_noiseless_runs_give_the_law_back_to_a_hundredth(form):
    n, d, loss, unique = runs_of(form)
    law = fit_scaling_law(n, d, loss, form=form, unique=unique)
    assert law.parameters == pytest.approx(PARAMETERS[form], rel=0.01)
    assert law.objective < 1e-12
    assert law.report.at_best > 0.5


def test_the_published_points_give_the_published_minimum(published, published_law):
    reference = published[3]["recomputed_here"]["minimum_240_runs"]
    assert published_law.objective <= reference["objective"] * (1 + 1e-7)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert getattr(published_law, name) == pytest.approx(reference[name], rel=1e-4)
    slope = reference["beta_over_alpha_plus_beta"]
    assert published_law.compute_exponent == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("name", ["besiroglu2024_notebook", "besiroglu_notebook_grid"])
def test_published_fits_lie_in_the_intervals(published, published_law, name):
    fit = next(fit for fit in published[3]["fits"] if fit["name"] == name)
    for parameter in ("E", "A", "B", "alpha", "beta"):
        low, high = published_law.intervals[parameter]
        assert low < fit[parameter] < high, parameter
    low, high = published_law.intervals["a"]
    assert low < fit["beta"] / (fit["alpha"] + fit["beta"]) < high


def test_standard_errors_are_the_published_ones(published, published_law):
    expected = published[3]["recomputed_here"]["bootstrap_300_se"]
    for name in ("E", "alpha", "beta"):
        assert published_law.standard_errors[name] == pytest.approx(expected[name], rel=0.35), name


def test_a_hundred_bootstraps_take_seconds(published):
    n, d, loss, _ = published
    start = time.process_time()
    law = fit_scaling_law(n, d, loss, bootstraps=100)
    assert time.process_time() - start < 30
    assert law.report.bootstraps == 100 and law.report.bootstraps_failed == 0


def test_the_largest_published_runs_are_predicted(published_law):
    left = published_law.report.largest_left_out
    assert left["factor"] == 10 and left["predicted"] >= 15
    assert left["mean_abs"] < 0.015


def test_repeated_rows_change_nothing():
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    once = fit_scaling_law(n, d, loss, bootstraps=20)
    rows = [*range(len(n)), 3, 3, 7, *range(10)]
    again = fit_scaling_law(n[rows], d[rows], loss[rows], bootstraps=20)
    assert again.parameters == pytest.approx(once.parameters, rel=1e-9)
    assert again.objective == pytest.approx(once.objective, rel=1e-9)
    assert again.report.runs == len(n)
    flags = [flag for flag in again.flags if flag.kind == "repeated"]
    assert len(flags) == 13 and not any(flag.used for flag in flags)


def test_the_order_of_the_rows_changes_nothing():
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    order = np.random.default_rng(0).permutation(len(n))
    once, again = fit_scaling_law(n, d, loss), fit_scaling_law(n[order], d[order], loss[order])
    assert again.parameters == pytest.approx(once.parameters, rel=1e-6)


def test_the_same_seed_gives_the_same_intervals_and_another_others():
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    one, two, other = (fit_scaling_law(n, d, loss, bootstraps=10, seed=s) for s in (1, 1, 2))
    assert one.intervals == two.intervals != other.intervals


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    inside = dict.fromkeys(("alpha", "beta", "E"), 0)
    for seed in range(20):
        n, d, loss, _ = runs_of("chinchilla", noise=0.005, seed=seed)
        law = fit_scaling_law(n, d, loss)
        for name in inside:
            low, high = law.intervals[name]
            inside[name] += low <= PARAMETERS["chinchilla"][name] <= high
    assert all(15 <= count for count in inside.values()), inside


def test_covariance_and_bootstrap_agree_on_plain_noise():
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    plain, resampled = fit_scaling_law(n, d, loss), fit_scaling_law(n, d, loss, bootstraps=200)
    for name in ("alpha", "beta"):
        ratio = plain.standard_errors[name] / resampled.standard_errors[name]
        assert 0.5 < ratio < 2, name
    assert plain.covariance.shape == (5, 5)
    # A and alpha go together: that is why their own intervals are wide.
    deviations = np.sqrt(np.diag(plain.covariance))
    assert (plain.covariance / np.outer(deviations, deviations))[1, 3] > 0.9


def test_one_diverged_run_hardly_moves_the_law_and_is_flagged():
    n, d, loss, _ = runs_of("chinchilla", noise=0.003)
    bad = loss.copy()
    bad[20] *= 1.4
    law, clean = fit_scaling_law(n, d, bad), fit_scaling_law(n, d, loss)
    assert law.alpha == pytest.approx(clean.alpha, abs=0.02)
    (flag,) = [flag for flag in law.flags if flag.row == 20]
    assert flag.used and flag.kind in ("diverged", "outlier")


def test_the_conventions_are_stored_and_decide_the_optimum(tmp_path):
    n, d, loss, _ = runs_of("chinchilla")
    kept = Conventions("matmul", 8.0, "bits per byte", "BPE of 512")
    law = fit_scaling_law(n, d, loss, conventions=kept)
    best = law.optimal(1e21)
    assert 8 * best.N * best.D == pytest.approx(1e21)
    law.save(tmp_path / "law.json")
    assert ScalingLaw.load(tmp_path / "law.json").conventions == kept


def test_a_saved_law_is_the_law(tmp_path):
    n, d, loss, _ = runs_of("chinchilla", noise=0.01)
    loss[4] = np.nan
    law = fit_scaling_law(n, d, loss, bootstraps=10)
    law.save(tmp_path / "law.json")
    again = ScalingLaw.load(tmp_path / "law.json")
    assert again.parameters == law.parameters and again.intervals == law.intervals
    assert again.flags == law.flags and again.report == law.report
    assert again.optimal_interval(1e22) == law.optimal_interval(1e22)
    text = json.loads((tmp_path / "law.json").read_text())
    assert text["conventions"]["flops_per_parameter_token"] == 6


def test_files_of_something_else_are_refused(tmp_path):
    (tmp_path / "law.json").write_text("{}")
    with pytest.raises(StateError, match="holds no scaling law"):
        ScalingLaw.load(tmp_path / "law.json")


def test_settings_out_of_range_are_refused():
    n, d, loss, _ = runs_of("chinchilla")
    with pytest.raises(ConfigError, match="huber: must be above 0"):
        fit_scaling_law(n, d, loss, huber=0)
    with pytest.raises(ConfigError, match="bootstraps: must be at least 0"):
        fit_scaling_law(n, d, loss, bootstraps=-1)
    with pytest.raises(ConfigError, match="needs unique="):
        fit_scaling_law(n, d, loss, form="data_limited")
    with pytest.raises(ConfigError, match="takes no unique="):
        fit_scaling_law(n, d, loss, unique=d)
    with pytest.raises(DataError, match="row 400 is not in"):
        fit_scaling_law(n, d, loss, leave_out=[400])
