"""Runs that cannot identify a law are refused with the reason; odd runs are flagged, never lost."""
# ruff: noqa: SIM300  (N, D, L and E are the names of the field, not constants)

import numpy as np
import pytest

from hf_glm_curriculum import fit_scaling_law
from hf_glm_curriculum.errors import DataError
from tests.scaling.laws import law_of, runs_of

LAW = law_of("chinchilla")


def refusal(n, d, loss=None, **more):
    n, d = np.asarray(n, float), np.asarray(d, float)
    with pytest.raises(DataError) as caught:
        fit_scaling_law(n, d, LAW.predict(n, d) if loss is None else loss, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_one_model_size_is_refused():
    d = np.geomspace(1e8, 1e11, 20)
    message = refusal(np.full(20, 1e8), d)
    assert "under-identified: N has 1 distinct value" in message and "add runs" in message


def test_one_size_of_data_is_refused():
    assert "D has 1 distinct value " in refusal(np.geomspace(1e7, 1e10, 20), np.full(20, 1e9))


def test_sizes_within_a_hairs_breadth_are_refused():
    n = np.repeat([1e8, 1.1e8, 1.2e8, 1.3e8], 5)
    message = refusal(n, np.tile(np.geomspace(1e8, 1e11, 5), 4))
    assert "over a factor of 1.3" in message


def test_fewer_runs_than_parameters_are_refused():
    assert "5 distinct runs for the 5 parameters" in refusal(
        [1e7, 1e8, 1e9, 1e8, 1e7], [1e9, 1e10, 1e11, 1e9, 1e11]
    )


def test_repeated_rows_do_not_make_enough_runs():
    n = np.tile([1e7, 1e8, 1e9, 1e8], 10)
    d = np.tile([1e9, 1e10, 1e11, 1e9], 10)
    assert "4 distinct runs for the 5 parameters" in refusal(n, d)


def test_twenty_tokens_a_parameter_everywhere_is_refused():
    n = np.geomspace(1e7, 1e10, 20)
    message = refusal(n, 20 * n)
    assert "D is a fixed power of N (D ∝ N^1.00" in message


def test_one_budget_everywhere_is_refused():
    n = np.geomspace(1e7, 1e10, 20)
    assert "D ∝ N^-1.00" in refusal(n, 1e20 / 6 / n)


def test_losses_that_do_not_fall_are_refused():
    n, d, _, _ = runs_of("chinchilla")
    generator = np.random.default_rng(0)
    message = refusal(n, d, 3 + 0.01 * generator.standard_normal(len(n)) + 0.1 * np.log(n / 1e7))
    assert "does not fall with N" in message or "runs away" in message


def test_repeats_need_several_numbers_of_epochs():
    n, d, loss, _ = runs_of("chinchilla")
    message = refusal(n, d, loss, form="data_limited", unique=d / 3)
    assert "needs runs of at least two numbers of epochs" in message


def test_a_law_without_a_floor_is_told_to_have_none():
    n, d, _, _ = runs_of("chinchilla")
    law = fit_scaling_law(n, d, 400 / n**0.34 + 900 / d**0.31)
    assert law.E < 1e-3 * law.predict(n, d).min()
    assert any("no irreducible loss" in words for words in law.report.warnings)


def test_a_form_that_misses_the_largest_runs_is_said_to():
    n, d, loss, _ = runs_of("chinchilla")
    bent = loss * np.where(6 * n * d > 1e21, 1.15, 1.0)
    law = fit_scaling_law(n, d, bent)
    left = law.report.largest_left_out
    assert left["mean_abs"] > 0.1 and left["bias"] < -0.1
    assert any("do not extrapolate far" in words for words in law.report.warnings)


def test_runs_without_a_loss_are_told_and_left_out():
    n, d, loss, _ = runs_of("chinchilla")
    loss[[2, 5]] = np.nan, np.inf
    law = fit_scaling_law(n, d, loss)
    flags = {flag.row: flag for flag in law.flags}
    assert flags[2].kind == flags[5].kind == "diverged" and not flags[2].used
    assert law.report.runs == len(n) - 2
    assert law.alpha == pytest.approx(LAW.alpha, rel=1e-3)


def test_a_run_above_a_smaller_one_is_flagged_and_kept():
    n, d, loss, _ = runs_of("chinchilla")
    loss[-1] = loss[0]
    law = fit_scaling_law(n, d, loss)
    (flag,) = [flag for flag in law.flags if flag.row == len(n) - 1]
    assert flag.kind == "diverged" and flag.used and "no more tokens" in flag.words
    assert law.report.runs == len(n)


def test_rows_left_out_by_request_stay_in_the_flags():
    n, d, loss, _ = runs_of("chinchilla")
    law = fit_scaling_law(n, d, loss, leave_out=[1, 1, 4])
    assert [(flag.row, flag.kind, flag.used) for flag in law.flags] == [
        (1, "left out", False),
        (4, "left out", False),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": (3, 0.0)}, "N: must be above 0 and finite, got 0.0 in row 3"),
        ({"n": (3, np.nan)}, "N: must be above 0 and finite, got nan in row 3"),
        ({"d": (0, -5.0)}, "D: must be above 0 and finite, got -5.0 in row 0"),
        ({"loss": (7, -1.0)}, "loss: must be above 0, got -1.0 in row 7"),
    ],
)
def test_rows_that_make_no_sense_are_named(change, words):
    n, d, loss, _ = runs_of("chinchilla")
    columns = {"n": n, "d": d, "loss": loss}
    for name, (row, value) in change.items():
        columns[name][row] = value
    assert words in refusal(*columns.values())


def test_columns_of_unequal_length_are_refused():
    n, d, loss, _ = runs_of("chinchilla")
    assert "N: has 41 values for 42 results" in refusal(n[:-1], d, loss)
    assert "must hold numbers" in refusal_text(["a"] * len(n), d, loss)
    assert "no run with a finite result" in refusal(n, d, np.full(len(n), np.nan))


def refusal_text(n, d, loss):
    with pytest.raises(DataError) as caught:
        fit_scaling_law(n, d, loss)
    return str(caught.value)
