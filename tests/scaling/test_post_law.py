"""Post-training laws: recovered, for losses and rewards; how much more; refusals."""

import json

import numpy as np
import pytest

from hf_glm_curriculum.errors import ConfigError, DataError, StateError
from hf_glm_curriculum.scaling.post_law import PostTrainingLaw, fit_post_training_law

ROWS = np.repeat(np.geomspace(300, 100_000, 6), 5)
PAIRS = np.tile(np.geomspace(500, 60_000, 5), 6)


def losses(noise=0.0, seed=0):
    clean = 1.1 + 6.0 / ROWS**0.45 + 2.5 / PAIRS**0.3
    return clean * np.exp(noise * np.random.default_rng(seed).standard_normal(len(ROWS)))


def rewards():
    return 0.8 - 5.0 / ROWS**0.4 - 3.0 / PAIRS**0.35


@pytest.fixture(scope="module")
def law():
    inputs = {"sft_rows": ROWS, "preference_pairs": PAIRS}
    return fit_post_training_law(inputs, losses(0.002), bootstraps=40)


def test_losses_against_rows_and_pairs_are_recovered():
    law = fit_post_training_law({"sft_rows": ROWS, "preference_pairs": PAIRS}, losses())
    expected = {
        "E": 1.1,
        "B_sft_rows": 6.0,
        "B_preference_pairs": 2.5,
        "beta_sft_rows": 0.45,
        "beta_preference_pairs": 0.3,
    }
    assert law.parameters == pytest.approx(expected, rel=0.01)


def test_rewards_rise_to_a_ceiling_and_may_be_negative():
    assert rewards().min() < 0
    law = fit_post_training_law(
        {"sft_rows": ROWS, "preference_pairs": PAIRS}, rewards(), rises=True, metric="reward"
    )
    assert law.parameters == pytest.approx(
        {
            "R_max": 0.8,
            "B_sft_rows": 5.0,
            "B_preference_pairs": 3.0,
            "beta_sft_rows": 0.4,
            "beta_preference_pairs": 0.35,
        },
        rel=0.01,
    )
    predicted = law.predict(sft_rows=ROWS, preference_pairs=PAIRS)
    np.testing.assert_allclose(predicted, rewards(), atol=1e-6)
    low, high = law.predict_interval(sft_rows=1e5, preference_pairs=1e5)
    assert low <= law.predict(sft_rows=1e5, preference_pairs=1e5) <= high


def test_more_rows_give_the_loss_that_was_asked_for(law):
    at = {"sft_rows": 2000.0, "preference_pairs": 5000.0}
    more = law.more_for("sft_rows", 0.01, **at)
    now = law.predict(**at)
    then = law.predict(**{**at, "sft_rows": at["sft_rows"] + more.value})
    assert then == pytest.approx(0.99 * now, rel=1e-9)
    assert more.low < more.value < more.high
    # The truth: 6/2000^0.45 must fall by a hundredth of the loss.
    truth = 1.1 + 6 / 2000**0.45 + 2.5 / 5000**0.3
    rows = (6 / (6 / 2000**0.45 - 0.01 * truth)) ** (1 / 0.45) - 2000
    assert more.value == pytest.approx(rows, rel=0.05)


def test_more_rows_cannot_go_below_the_floor(law):
    assert law.more_for("sft_rows", 0.2, sft_rows=1e7, preference_pairs=1e7).value == np.inf
    with pytest.raises(ConfigError, match=r"change: must lie in \(0, 1\)"):
        law.more_for("sft_rows", 1.5, sft_rows=1e3, preference_pairs=1e3)
    with pytest.raises(ConfigError, match="'ppo_episodes' is not in this law"):
        law.more_for("ppo_episodes", sft_rows=1e3, preference_pairs=1e3)


def test_more_rows_for_a_reward_are_a_share_of_its_range():
    law = fit_post_training_law(
        {"sft_rows": ROWS, "preference_pairs": PAIRS}, rewards(), rises=True
    )
    at = {"sft_rows": 1000.0, "preference_pairs": 5000.0}
    more = law.more_for("preference_pairs", 0.02, **at)
    then = law.predict(**{**at, "preference_pairs": at["preference_pairs"] + more.value})
    assert then - law.predict(**at) == pytest.approx(0.02 * np.ptp(rewards()), rel=1e-9)


def test_inputs_that_do_not_vary_are_kept_apart():
    inputs = {"sft_rows": ROWS, "parameters": np.full(len(ROWS), 1.35e8)}
    law = fit_post_training_law(inputs, 1.1 + 6 / ROWS**0.45)
    assert law.inputs == ("sft_rows",) and law.constants == {"parameters": 1.35e8}
    with pytest.raises(DataError, match="sft_rows has one value in all runs"):
        fit_post_training_law({"sft_rows": np.full(9, 100.0)}, np.linspace(2, 1, 9))


def test_two_sizes_of_data_are_refused():
    rows, noise = np.repeat([1e3, 1e4], 5), np.linspace(0, 0.01, 10)
    with pytest.raises(DataError, match="sft_rows has 2 distinct values"):
        fit_post_training_law({"sft_rows": rows}, 1 + 5 / rows**0.4 + noise)


def test_unknown_inputs_and_missing_values_are_refused(law):
    with pytest.raises(ConfigError, match="did you mean sft_rows"):
        fit_post_training_law({"sft_row": ROWS}, losses())
    with pytest.raises(DataError, match="give preference_pairs too"):
        law.predict(sft_rows=1e3)
    with pytest.raises(DataError, match="leave out ppo_episodes"):
        law.predict(sft_rows=1e3, preference_pairs=1e3, ppo_episodes=1)
    with pytest.raises(DataError, match="sft_rows: must be above 0"):
        law.predict(sft_rows=0, preference_pairs=1e3)


@pytest.mark.parametrize("rises", [False, True])
def test_a_saved_law_is_the_law(tmp_path, rises):
    values = rewards() if rises else losses(0.01)
    law = fit_post_training_law(
        {"sft_rows": ROWS, "preference_pairs": PAIRS}, values, rises=rises, metric="m"
    )
    law.save(tmp_path / "law.json")
    again = PostTrainingLaw.load(tmp_path / "law.json")
    assert again.parameters == law.parameters and again.intervals == law.intervals
    at = {"sft_rows": 7e3, "preference_pairs": 2e4}
    assert again.predict_interval(**at) == law.predict_interval(**at)
    kept = json.loads((tmp_path / "law.json").read_text())
    kept["kind"] = "other"
    (tmp_path / "law.json").write_text(json.dumps(kept))
    with pytest.raises(StateError, match="holds no post-training law"):
        PostTrainingLaw.load(tmp_path / "law.json")
