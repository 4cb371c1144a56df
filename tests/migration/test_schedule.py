"""The schedule's formulas against hand-computed values, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.schedule import (
    depths,
    effective_ratio,
    layer_progress,
    layer_weights,
    schedule_for,
)


def test_depths_run_from_embeddings_to_head():
    assert depths(3).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_progress_of_a_layer_is_a_power():
    found = layer_progress(0.25, 3, 3.0, 0.5)
    gammas = [3.0, 2.375, 1.75, 1.125, 0.5]
    assert found.tolist() == pytest.approx([0.25**g for g in gammas], rel=1e-14)
    assert found.dtype == torch.float64


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.1, 0.5, 1.0])
def test_weights_of_a_layer(p):
    config = MigrationConfig(gamma_bottom=3.0, gamma_top=0.5)
    pretrain, instruction = layer_weights(p, 4, config)
    progress = layer_progress(p, 4, 3.0, 0.5)
    assert torch.equal(pretrain, 1 - 0.8 * progress)
    assert torch.equal(instruction, progress.clamp(min=1e-4))
    # The top is never behind the bottom.
    assert (pretrain.diff() <= 0).all() and (instruction.diff() >= 0).all()


def test_weights_at_both_ends():
    config = MigrationConfig()
    first, last = layer_weights(0.0, 2, config), layer_weights(1.0, 2, config)
    assert first[0].tolist() == [1.0] * 4 and first[1].tolist() == [1e-4] * 4
    assert last[0].tolist() == pytest.approx([0.2] * 4) and last[1].tolist() == [1.0] * 4


def test_article_schedule_of_a_run_of_its_size():
    """100,000 steps: a window of 10,000, +0.3 % every 100 steps from 0.5 %."""
    schedule = schedule_for(MigrationConfig(), 100_000)
    assert (schedule.begin, schedule.end, schedule.post_ramp) == (90_000, 100_000, 0)
    assert schedule.injected_ratio(89_999) == 0.0
    assert schedule.injected_ratio(90_000) == 0.005
    assert schedule.injected_ratio(90_099) == 0.005
    assert schedule.injected_ratio(90_100) == pytest.approx(0.008)
    assert schedule.injected_ratio(99_999) == pytest.approx(0.005 + 99 * 0.003)
    assert schedule.progress(89_000) == 0.0 and schedule.progress(95_000) == 0.5


def test_a_short_run_reaches_what_a_long_one_does():
    short = schedule_for(MigrationConfig(pretrain_steps=200), 300)
    long = schedule_for(MigrationConfig(pretrain_steps=20_000), 30_000)
    assert (short.begin, short.end) == (180, 200)
    assert short.injected_ratio(199) == pytest.approx(0.005 + 0.003 * 95)
    assert long.injected_ratio(19_999) == pytest.approx(0.005 + 0.003 * 99)


def test_the_ramp_after_the_window_is_linear_and_ends_at_sft_ratio():
    config = MigrationConfig(window=0.1, pretrain_steps=100, sft_ratio=0.9, post_ramp=20)
    schedule = schedule_for(config, 150)
    reached = 0.005 + 100 * 0.003
    assert schedule.injected_ratio(100) == pytest.approx(reached)
    assert schedule.injected_ratio(110) == pytest.approx((reached + 0.9) / 2)
    assert schedule.injected_ratio(120) == schedule.injected_ratio(149) == pytest.approx(0.9)
    assert schedule.progress(149) == 1.0


def test_the_ratio_never_falls_and_never_passes_sft_ratio():
    config = MigrationConfig(increment=0.05, increment_every=1, sft_ratio=0.4, pretrain_steps=500)
    schedule = schedule_for(config, 600)
    found = [schedule.injected_ratio(step) for step in range(600)]
    assert found == sorted(found) and max(found) == 0.4


def test_the_ramp_gives_back_what_the_window_took():
    """A run holds as much of both kinds as one that switches at once."""
    for config in (
        MigrationConfig(pretrain_steps=1000),
        MigrationConfig(pretrain_steps=1000, window=0.2, increment=0.006),
        MigrationConfig(pretrain_steps=1000, sft_ratio=0.8),
    ):
        schedule = schedule_for(config, 1400)
        total = sum(schedule.injected_ratio(step) for step in range(1400))
        assert total == pytest.approx(400 * config.sft_ratio, abs=0.5)
        assert 0 < schedule.post_ramp < 400


def test_a_ramp_fits_itself_into_what_is_left():
    assert schedule_for(MigrationConfig(pretrain_steps=100), 103).post_ramp == 3
    assert schedule_for(MigrationConfig(pretrain_steps=100), 100).post_ramp == 0
    full = MigrationConfig(pretrain_steps=100, increment=0.1)
    assert schedule_for(full, 400).post_ramp == 0


def test_without_gates_every_weight_is_one():
    schedule = schedule_for(MigrationConfig(gates=False), 100)
    assert torch.equal(schedule.weights(97, 3), torch.ones(2, 5, dtype=torch.float64))
    assert schedule.injected_ratio(97) > 0


def test_effective_ratio():
    weights = torch.tensor([[1.0, 0.5, 0.0], [0.1, 0.5, 0.0]], dtype=torch.float64)
    found = effective_ratio(0.2, weights)
    assert found.tolist() == pytest.approx([0.02 / 0.82, 0.2, 0.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0.0}, "window: must be above 0 and at most 1, got 0.0"),
        ({"window": 1.2}, "window: must be above 0 and at most 1, got 1.2"),
        ({"start_ratio": -0.1}, "start_ratio: must be at least 0"),
        ({"start_ratio": float("nan")}, "start_ratio: .* got nan"),
        ({"increment": 2.0}, "increment: .* at most 1, got 2.0"),
        ({"increment_every": 0}, "increment_every: must be above 0, got 0"),
        ({"sft_ratio": 0.0}, "sft_ratio: must be above 0"),
        ({"start_ratio": 0.5, "sft_ratio": 0.4}, "must not exceed sft_ratio, got 0.5 > 0.4"),
        ({"gamma_bottom": 0.0}, "gamma_bottom: must be above 0"),
        ({"gamma_top": float("inf")}, "gamma_top: .* got inf"),
        ({"pretrain_floor": 1.5}, "pretrain_floor: .* got 1.5"),
        ({"instruction_floor": -1e-4}, "instruction_floor: must be at least 0"),
        ({"post_ramp": -1}, "post_ramp: must be at least 0, got -1"),
        ({"pretrain_steps": 0}, "pretrain_steps: must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ConfigError, match=message):
        MigrationConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "steps", "message"),
    [
        ({"pretrain_steps": 200}, 100, "must not exceed the 100 steps of the run, got 200"),
        ({"window": 0.01}, 20, "window: must hold at least one step, got 0.01 of 20 steps"),
        ({"pretrain_steps": 90, "post_ramp": 11}, 100, "leave 10 after pre-training, got 11"),
        ({}, 0, "must not exceed the 0 steps"),
    ],
)
def test_schedules_outside_the_run(settings, steps, message):
    with pytest.raises(ConfigError, match=message):
        schedule_for(MigrationConfig(**settings), steps)


def test_a_progress_outside_is_refused():
    with pytest.raises(ConfigError, match=r"progress: .* got 1\.5"):
        layer_progress(1.5, 2, 1.0, 1.0)


def test_every_setting_can_be_read_from_yaml(tmp_path):
    from hf_glm_curriculum.config import dump_config, load_config

    config = MigrationConfig(window=0.2, pretrain_steps=50, increment_every=2.5, post_ramp=3)
    dump_config(config, tmp_path / "migration.yaml")
    assert load_config(MigrationConfig, tmp_path / "migration.yaml") == config
    assert all(field.name for field in dataclasses.fields(config))
