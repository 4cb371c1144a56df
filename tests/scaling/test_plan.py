"""Plans: stage costs by hand, splits against brute force, refusals, intervals, money."""

from itertools import product

import numpy as np
import pytest

from hf_glm_curriculum import fit_scaling_law
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.scaling.money import DEFAULT_TABLE, load_device
from hf_glm_curriculum.scaling.plan import compare_sizes, plan
from hf_glm_curriculum.scaling.post_law import fit_post_training_law
from hf_glm_curriculum.scaling.stage_costs import (
    PpoCost,
    RewardCost,
    SftCost,
    StageCosts,
    unit_flops,
)
from tests.scaling.laws import law_of, runs_of

ALL = ("pretrain", "sft", "rlhf")
BUDGET = 1e20


def post_runs(count=90, noise=0.003):
    generator = np.random.default_rng(0)
    inputs = {
        "parameters": generator.choice([1e7, 3e7, 1e8, 3e8], count),
        "pretrain_tokens": generator.choice([1e9, 3e9, 1e10, 3e10], count),
        "sft_rows": generator.choice([1e3, 3e3, 1e4, 3e4, 1e5], count),
        "ppo_episodes": generator.choice([1e3, 1e4, 1e5, 1e6], count),
    }
    clean = (
        1.0
        + 60 / inputs["parameters"] ** 0.3
        + 300 / inputs["pretrain_tokens"] ** 0.3
        + 3 / inputs["sft_rows"] ** 0.4
        + 2 / inputs["ppo_episodes"] ** 0.3
    )
    return inputs, clean * np.exp(noise * generator.standard_normal(count))


@pytest.fixture(scope="module")
def post_law():
    return fit_post_training_law(*post_runs(), bootstraps=30)


@pytest.fixture(scope="module")
def base_law():
    n, d, loss, _ = runs_of("chinchilla", noise=0.005)
    return fit_scaling_law(n, d, loss, bootstraps=30)


# What a unit costs


def test_every_part_of_a_stage_is_counted_by_hand():
    n = 1e9
    costs = StageCosts(
        SftCost(tokens=100, epochs=2),
        RewardCost(tokens=50, epochs=1, parameters=2e8),
        PpoCost(prompt_tokens=30, response_tokens=70, epochs=4, value_parameters=5e8),
    )
    assert sum(unit_flops("pretrain_tokens", n, costs).values()) == 6 * n
    assert sum(unit_flops("sft_rows", n, costs).values()) == 6 * n * 200
    assert sum(unit_flops("preference_pairs", n, costs).values()) == 6 * 2e8 * 100
    assert unit_flops("ppo_episodes", n, costs) == {
        "rollout": 2 * n * 100,
        "log-probabilities": 2 * n * 100,
        "reference": 2 * n * 100,
        "reward": 2 * 2e8 * 100,
        "value": 2 * 5e8 * 100,
        "optimisation": 4 * 100 * (6 * n + 6 * 5e8),
    }


def test_adapters_heads_and_shared_trunks_cost_less():
    n = 1e9
    lora = StageCosts(SftCost(trained="lora"), RewardCost(trained="heads", tokens=10))
    full = StageCosts()
    assert sum(unit_flops("sft_rows", n, lora).values()) / sum(
        unit_flops("sft_rows", n, full).values()
    ) == pytest.approx(4 / 6)
    assert unit_flops("preference_pairs", n, lora) == {"forward": 2 * n * 20}
    shared = StageCosts(ppo=PpoCost(value_parameters=0, reference=False, trained="lora"))
    parts = unit_flops("ppo_episodes", n, shared)
    assert parts["value"] == parts["reference"] == 0
    assert parts["optimisation"] == 4 * 512 * 4 * n


def test_costs_are_checked():
    with pytest.raises(ConfigError, match=r"sft.tokens: must be above 0, got 0"):
        StageCosts(SftCost(tokens=0))
    with pytest.raises(ConfigError, match="costs no FLOPs"):
        unit_flops("parameters", 1e9, StageCosts())


# Pre-training alone


def test_pretraining_alone_is_the_laws_optimum(base_law):
    made = plan(1e22, law=base_law)
    best = base_law.optimal(1e22)
    assert made.parameters.value == best.N and made.result.value == pytest.approx(best.L)
    tokens = made.stage("pretrain").units["pretrain_tokens"]
    assert tokens.value == best.D and tokens.low < best.D < tokens.high
    assert made.result.low < best.L < made.result.high
    assert sum(made.stage("pretrain").flops.values()) == pytest.approx(1e22)


def test_a_size_may_be_given(base_law):
    made = plan(1e22, law=base_law, fixed={"parameters": 1e9})
    assert made.stage("pretrain").units["pretrain_tokens"].value == pytest.approx(1e22 / 6e9)
    assert made.result.value > plan(1e22, law=base_law).result.value


def test_a_given_law_plans_without_intervals():
    made = plan(1e22, law=law_of("chinchilla"))
    assert np.isnan(made.result.low) and "no intervals" in made.notes[0]


# Splits


def test_the_split_spends_the_budget_and_beats_every_other(post_law):
    fixed = {"preference_pairs": 20_000.0}
    made = plan(BUDGET, ALL, post_law=post_law, fixed=fixed)
    spent = sum(sum(stage.flops.values()) for stage in made.stages)
    assert spent == pytest.approx(BUDGET, rel=1e-6)
    assert sum(stage.share for stage in made.stages) == pytest.approx(1)
    costs, best = StageCosts(), made.result.value
    tried = 0
    for size, sft, rlhf in product(
        made.parameters.value * np.array([0.7, 1.0, 1.4]),
        np.array([0.5, 1.0, 2.0]),
        np.array([0.5, 1.0, 2.0]),
    ):
        rows = made.stage("sft").units["sft_rows"].value * sft
        episodes = made.stage("rlhf").units["ppo_episodes"].value * rlhf
        left = BUDGET
        for unit, many in (
            ("sft_rows", rows),
            ("ppo_episodes", episodes),
            ("preference_pairs", 2e4),
        ):
            left -= many * sum(unit_flops(unit, size, costs).values())
        if left > 0:
            tried += 1
            other = post_law.predict(
                parameters=size,
                pretrain_tokens=left / (6 * size),
                sft_rows=rows,
                ppo_episodes=episodes,
            )
            assert other >= best - 1e-9
    assert tried > 15


def test_intervals_are_carried_into_the_plan(post_law):
    made = plan(BUDGET, ALL, post_law=post_law, fixed={"preference_pairs": 2e4})
    for estimate in (
        made.parameters,
        made.result,
        made.stage("pretrain").units["pretrain_tokens"],
        made.stage("sft").units["sft_rows"],
        made.stage("rlhf").units["ppo_episodes"],
    ):
        assert estimate.low < estimate.value < estimate.high
    pairs = made.stage("rlhf").units["preference_pairs"]
    assert pairs.low == pairs.value == pairs.high == 2e4


def test_limits_hold_and_what_they_save_is_spent_elsewhere(post_law):
    fixed = {"preference_pairs": 2e4}
    free = plan(BUDGET, ALL, post_law=post_law, fixed=fixed)
    tight = plan(BUDGET, ALL, post_law=post_law, fixed=fixed, limits={"sft_rows": 5e4})
    assert tight.stage("sft").units["sft_rows"].value == pytest.approx(5e4)
    assert tight.stage("pretrain").share > free.stage("pretrain").share
    assert tight.result.value > free.result.value and tight.unspent == 0


def test_a_budget_that_no_limit_lets_be_spent_is_told(post_law):
    made = plan(
        1e20,
        ("sft", "rlhf"),
        post_law=post_law,
        fixed={"parameters": 1e8, "pretrain_tokens": 1e10, "preference_pairs": 1e4},
        limits={"sft_rows": 1e4, "ppo_episodes": 1e4},
    )
    assert made.unspent > 9e19
    assert any("every limit is reached" in words for words in made.notes)


def test_a_base_at_hand_is_not_paid_for(post_law):
    fixed = {"parameters": 1e8, "pretrain_tokens": 1e10, "preference_pairs": 1e4}
    made = plan(1e18, ("sft", "rlhf"), post_law=post_law, fixed=fixed)
    assert [stage.stage for stage in made.stages] == ["sft", "rlhf"]
    spent = sum(sum(stage.flops.values()) for stage in made.stages)
    assert spent == pytest.approx(1e18, rel=1e-6)


def test_what_lies_far_outside_the_runs_is_told(post_law):
    made = plan(1e24, ALL, post_law=post_law, fixed={"preference_pairs": 2e4})
    assert any("parameters" in words and "a guess there" in words for words in made.notes)


def test_sizes_are_compared_at_equal_compute(post_law):
    fixed = {"preference_pairs": 2e4}
    best = plan(BUDGET, ALL, post_law=post_law, fixed=fixed)
    sizes = [best.parameters.value / 8, best.parameters.value, best.parameters.value * 8]
    small, middle, large = compare_sizes(BUDGET, sizes, post_law=post_law, fixed=fixed)
    assert middle.result.value == pytest.approx(best.result.value, rel=1e-6)
    assert middle.result.value < min(small.result.value, large.result.value)
    assert middle.best > 0.9 and sum(one.best for one in (small, middle, large)) == pytest.approx(1)
    # The smaller model is post-trained far more heavily for the same FLOPs.
    assert small.units["ppo_episodes"] > 20 * large.units["ppo_episodes"]


def test_rewards_are_compared_the_right_way_round():
    inputs, loss = post_runs()
    law = fit_post_training_law(inputs, 3.0 - loss, rises=True, metric="reward")
    fixed = {"preference_pairs": 2e4}
    best = plan(BUDGET, ALL, post_law=law, fixed=fixed)
    sizes = [best.parameters.value, best.parameters.value * 10]
    good, bad = compare_sizes(BUDGET, sizes, post_law=law, fixed=fixed)
    assert good.result.value > bad.result.value and good.best > bad.best


# Refusals


def test_a_split_without_a_fitted_law_is_refused(base_law):
    with pytest.raises(DataError, match="needs a fitted post-training law"):
        plan(1e21, ALL, law=base_law)
    with pytest.raises(DataError, match="needs a fitted law"):
        plan(1e21)


@pytest.mark.parametrize(
    ("stages", "fixed", "error", "words"),
    [
        (ALL, {}, DataError, "does not know preference_pairs"),
        (("sft", "rlhf"), {"parameters": 1e8, "preference_pairs": 1e4}, DataError, "pretrain_tok"),
        (("sft",), {}, DataError, "depends on parameters"),
        (("pretrain", "dpo"), {}, ConfigError, "stages: must be some of pretrain, sft, rlhf"),
        (("sft", "sft"), {}, ConfigError, "each once"),
        (ALL, {"pairs": 1}, ConfigError, "fixed: 'pairs' is unknown"),
        (ALL, {"preference_pairs": -1}, ConfigError, "fixed.preference_pairs: must be above 0"),
        (ALL, {"preference_pairs": 1e15}, DataError, "does not pay for what is fixed"),
    ],
)
def test_plans_that_nothing_supports_are_refused(post_law, stages, fixed, error, words):
    with pytest.raises(error, match=words):
        plan(1e18, stages, post_law=post_law, fixed=fixed)


def test_a_law_of_one_size_compares_no_sizes():
    rows = np.geomspace(1e2, 1e5, 12)
    law = fit_post_training_law({"sft_rows": rows}, 1 + 5 / rows**0.4)
    with pytest.raises(DataError, match="does not know the models' size"):
        compare_sizes(1e18, [1e8, 1e9], ("sft",), post_law=law)
    made = plan(1e16, ("sft",), post_law=law, fixed={"parameters": 1e8})
    assert made.stage("sft").units["sft_rows"].value == pytest.approx(1e16 / (6e8 * 512 * 3))


@pytest.mark.parametrize("flops", [0, -1, np.inf, np.nan])
def test_budgets_must_be_positive(base_law, flops):
    with pytest.raises(ConfigError, match="flops: must be above 0"):
        plan(flops, law=base_law)


# Hours and money


def test_hours_and_money_follow_the_table(tmp_path, base_law, post_law):
    table = tmp_path / "hardware.yaml"
    table.write_text(
        "currency: EUR\ndevices:\n"
        "  mine: {peak_tflops: 100, training: 0.5, generation: 0.1, price: 2.0}\n"
    )
    device = load_device("mine", table)
    made = plan(3.6e20, law=base_law, device=device)
    assert made.hours == pytest.approx(3.6e20 / 5e13 / 3600)
    assert made.money == pytest.approx(2 * made.hours) and device.currency == "EUR"
    fixed = {"preference_pairs": 2e4}
    split = plan(BUDGET, ALL, post_law=post_law, fixed=fixed, device=device)
    parts = split.stage("rlhf").flops
    rest = sum(flops for part, flops in parts.items() if part != "rollout")
    expected = (parts["rollout"] / 1e13 + rest / 5e13) / 3600
    assert split.stage("rlhf").hours == pytest.approx(expected)
    assert split.money == pytest.approx(2 * sum(stage.hours for stage in split.stages))


def test_the_shipped_table_is_whole():
    assert load_device("h100").peak_flops == pytest.approx(989e12)
    assert "price" in DEFAULT_TABLE.read_text()
    with pytest.raises(ConfigError, match="did you mean h100"):
        load_device("h1000")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("devices: {}", "needs a mapping `devices`"),
        ("devices: {a: {peak_tflops: 1}}", "devices.a.training must be a number"),
        (
            "devices: {a: {peak_tflops: x, training: 1, generation: 1, price: 1}}",
            "devices.a.peak_tflops must be a number above 0, got 'x'",
        ),
        (
            "devices: {a: {peak_tflops: 1, training: 40, generation: 1, price: 1}}",
            "is a share of the peak, got 40",
        ),
        ("[", "is not valid YAML"),
    ],
)
def test_tables_of_devices_are_checked(tmp_path, text, words):
    table = tmp_path / "hardware.yaml"
    table.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_device("a", table)
