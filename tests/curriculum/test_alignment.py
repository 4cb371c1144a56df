"""The alignment monitor: its rule, its switches on both kinds of sources, and what is exact."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer

from hf_glm_curriculum import CurriculumMixture, MixtureCallback
from hf_glm_curriculum.curriculum.alignment_callback import AlignmentMonitorCallback
from hf_glm_curriculum.curriculum.alignment_config import AlignmentConfig
from hf_glm_curriculum.curriculum.alignment_switch import (
    VarianceSwitch,
    alignment_score,
    moments,
    pooled_variance,
)
from hf_glm_curriculum.curriculum.lane_callback import LaneCallback
from hf_glm_curriculum.curriculum.lane_config import LaneConfig
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.migration.callback import ObjectiveMigrationCallback
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.reporting import read_metrics
from tests.curriculum.lane_runs import SAME_NUMBERS, laned, parameters
from tests.curriculum.lane_runs import train as train_lanes
from tests.lifespan.runs import Collator, Recorder, arguments, build_model, random_rows

SOURCES = {name: random_rows(30, seed=seed) for name, seed in (("hard", 1), ("base", 2))}
JUMPY = AlignmentConfig(
    threshold=1.0, release=0.5, relative=False, smoothing=0.0, warmup_steps=1, min_stay=2
)
"""Switches on any variance above 1, back on any below 0.5."""


def mixture() -> CurriculumMixture:
    rows = {name: Dataset.from_list(found) for name, found in SOURCES.items()}
    return CurriculumMixture(rows, {"hard": 0.75, "base": 0.25}, unit="rows")


class Script:
    """A score whose variance in each optimizer step is what the test says."""

    def __init__(self, variances: dict[int, float], micro_batches: int = 1) -> None:
        self.variances, self.micro_batches, self.calls = variances, micro_batches, 0

    def __call__(self, signals: Any) -> torch.Tensor:
        step = self.calls // self.micro_batches + 1
        self.calls += 1
        wanted = self.variances.get(step, 0.75)
        half = torch.tensor([1.0, -1.0]).repeat(len(signals.loss) // 2)
        n = len(half) * self.micro_batches
        return half * math.sqrt(wanted * (n - 1) / n)


def run(folder, mixed, callbacks, *, fail_at: int = 0, resume: bool = False, **settings):
    settings = {"max_steps": 16, "per_device_train_batch_size": 4, **settings}

    class Killer(Recorder):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == fail_at:
                raise RuntimeError("killed")

    trainer = Trainer(
        model=build_model(),
        args=arguments(folder, **settings),
        train_dataset=mixed,
        data_collator=Collator(),
        callbacks=[*callbacks, Killer()],
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


def events(folder) -> list[dict[str, Any]]:
    path = folder / "monitor" / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- the rule --------------------------------------------------------------------------------------


def test_scores_are_the_geometric_mean_probability_and_pool_like_one_batch():
    signals = type("Signals", (), {"loss": torch.tensor([0.0, math.log(2.0), math.nan])})()
    assert alignment_score(signals)[:2].tolist() == pytest.approx([1.0, 0.5])
    scores = torch.rand(9, dtype=torch.float64)
    parts = [scores[:1], torch.tensor([math.nan]), scores[1:3], scores[3:]]
    pooled = moments(parts, torch.device("cpu")).tolist()
    assert pooled_variance(*pooled) == pytest.approx(float(scores.var()), rel=1e-12)
    assert pooled_variance(1.0, 3.0, 9.0) is None


def drive(config: AlignmentConfig, variances: list[float], lag: int = 2) -> list[tuple[int, bool]]:
    """(step, to base) of every switch."""
    rule, found = VarianceSwitch(config), []
    for step, variance in enumerate(variances, 1):
        switch = rule.step(variance, step, lag)
        if switch is not None:
            found.append((step, switch.to_base))
    return found


def test_hysteresis_needs_the_release_level():
    calm = [0.1] * 3
    assert drive(JUMPY, [*calm, 1.1, *[0.7] * 20]) == [(4, True)]
    assert drive(JUMPY, [*calm, 1.1, *[0.7] * 6, 0.4]) == [(4, True), (11, False)]


def test_minimum_stay_counts_from_where_a_switch_shows():
    jumping = [0.1] * 2 + [2.0, 0.1] * 10
    assert [step for step, _ in drive(JUMPY, jumping)] == [3, 8, 13, 18]
    assert [step for step, _ in drive(JUMPY, jumping, lag=0)] == [3, 6, 9, 12, 15, 18, 21]


def test_the_longest_stay_ends_where_variance_does_not_fall():
    config = AlignmentConfig(
        threshold=1.0, relative=False, smoothing=0.0, warmup_steps=1, min_stay=2, max_stay=5
    )
    found = drive(config, [0.1, *[3.0] * 20], lag=1)
    assert found == [(2, True), (8, False), (11, True), (17, False), (20, True)]


def test_relative_levels_follow_the_median_of_the_course_alone():
    config = AlignmentConfig(threshold=2.0, smoothing=0.0, warmup_steps=4, min_stay=3)
    for scale in (1.0, 1e-6):
        seen = [x * scale for x in [1, 0.9, 1.1, 1, 2.5, *[0.01] * 3, 1, 1, 1, 1.9, 2.1]]
        assert drive(config, seen, lag=0) == [(5, True), (8, False), (13, True)]
    assert drive(config, [1.0, 1.0, 9.0, 1.0]) == []  # before the end of the warm-up


def test_the_smoothed_variance_is_an_exponential_mean():
    rule = VarianceSwitch(AlignmentConfig(smoothing=0.9))
    for step, variance in enumerate([1.0, 2.0, None, 0.0]):
        rule.step(variance, step, 2)
    assert rule.smoothed == pytest.approx(0.9 * (0.9 * 1.0 + 0.1 * 2.0))


# -- a mixture -------------------------------------------------------------------------------------


def test_it_switches_a_mixture_to_the_base_and_back(tmp_path):
    """At step 4 the variance rises, at 9 it falls; the loader's lag is two steps."""
    mixed = mixture()
    script = Script({4: 2.0, 9: 0.1})
    monitor = AlignmentMonitorCallback(mixed, "base", JUMPY, score=script)
    run(tmp_path, mixed, [monitor])
    steps = [mixed.drawn(step)["hard"]["rows"] for step in range(17)]
    drawn = [after - before for before, after in itertools.pairwise(steps)]
    assert mixed.lag_steps == 2
    assert drawn == [3] * 6 + [0] * 5 + [3] * 5  # steps 7 to 11 are all base
    assert [(e["step"], e["event"], e["acts_from"]) for e in events(tmp_path)] == [
        (4, "to_base", 6),
        (9, "back", 11),
    ]
    assert "variance of the scores 2" in events(tmp_path)[0]["reason"]
    assert events(tmp_path)[0]["ratios_after"] == {"hard": 0.0, "base": 1.0}
    lines = [m for m in read_metrics(tmp_path) if "monitor/variance" in m]
    assert [m["monitor/ratio_base"] for m in lines] == [0.25] * 6 + [1.0] * 5 + [0.25] * 5
    assert [m["monitor/at_base"] for m in lines] == [0.0] * 3 + [1.0] * 5 + [0.0] * 8
    assert [m["monitor/switch"] for m in read_metrics(tmp_path) if "monitor/switch" in m] == [1, -1]
    assert (tmp_path / "monitor" / "monitor.png").exists()


def test_the_variance_is_pooled_over_the_accumulated_batches(tmp_path):
    runs = {}
    for batch, accumulation in ((8, 1), (2, 4)):
        mixed = mixture()
        monitor = AlignmentMonitorCallback(mixed, "base")
        folder = tmp_path / str(batch)
        run(
            folder,
            mixed,
            [monitor],
            max_steps=1,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
        )
        runs[batch] = [m for m in read_metrics(folder) if "monitor/variance" in m][-1]
    assert runs[8]["monitor/samples"] == runs[2]["monitor/samples"] == 8
    assert runs[2]["monitor/variance"] == pytest.approx(runs[8]["monitor/variance"], rel=1e-4)


@pytest.mark.parametrize("kind", ["infinite", "observe"])
def test_a_monitor_that_never_acts_changes_nothing(tmp_path, kind):
    settings = {
        "infinite": AlignmentConfig(threshold=math.inf, warmup_steps=1),
        "observe": AlignmentConfig(**{**vars(JUMPY), "observe_only": True}),
    }
    plain = run(tmp_path / "a", mixture(), [])
    mixed = mixture()
    script = Script({3: 2.0, 9: 0.1})
    monitor = AlignmentMonitorCallback(mixed, "base", settings[kind], score=script)
    ours = run(tmp_path / "b", mixed, [monitor])
    assert torch.equal(parameters(ours), parameters(plain))
    found = events(tmp_path / "b")
    assert [e["acted"] for e in found] == ([False, False] if kind == "observe" else [])


@pytest.mark.parametrize("at", [3, 5, 7, 10])
def test_resume_equals_an_uninterrupted_run(tmp_path, at):
    variances = {4: 2.0, 9: 0.1}
    settings = {"save_strategy": "steps", "save_steps": at}

    def fresh(start: int = 0):
        mixed, script = mixture(), Script(variances)
        script.calls = start
        return mixed, AlignmentMonitorCallback(mixed, "base", JUMPY, score=script)

    mixed, monitor = fresh()
    whole = run(tmp_path / "a", mixed, [monitor], **settings)
    mixed, monitor = fresh()
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "b", mixed, [monitor], fail_at=at + 1, **settings)
    mixed, monitor = fresh(at)
    again = run(tmp_path / "b", mixed, [monitor], resume=True, **settings)
    assert torch.equal(parameters(again), parameters(whole))
    assert events(tmp_path / "b") == events(tmp_path / "a")
    last = f"checkpoint-{16 // at * at}/hf_glm_curriculum/monitor.json"
    states = [json.loads((tmp_path / run / last).read_text()) for run in ("a", "b")]
    assert states[0]["switch"] == states[1]["switch"]


# -- who wins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_monitor_wins_over_a_migration_whatever_the_order(tmp_path, order):
    rows = {name: Dataset.from_list(found) for name, found in SOURCES.items()}
    mixed = CurriculumMixture(rows, {"base": 1.0, "hard": 0.0}, unit="rows")
    config = MigrationConfig(window=0.75, pretrain_steps=16, increment=0.05, gates=False)
    migration = ObjectiveMigrationCallback(
        config, mixture=mixed, pretrain_source="base", instruction_source="hard"
    )
    monitor = AlignmentMonitorCallback(mixed, "base", JUMPY, score=Script({4: 2.0, 8: 0.1}))
    callbacks = [migration, monitor, MixtureCallback(mixed)]
    run(tmp_path, mixed, [callbacks[i] for i in order])
    alone = CurriculumMixture(rows, {"base": 1.0, "hard": 0.0}, unit="rows")
    migration = ObjectiveMigrationCallback(
        config, mixture=alone, pretrain_source="base", instruction_source="hard"
    )
    run(tmp_path, alone, [migration])
    shares = [[one.ratios_at(step)["hard"] for step in range(16)] for one in (mixed, alone)]
    assert shares[0] == [*shares[1][:6], *[0.0] * 4, *shares[1][10:]]
    assert shares[1][6] > 0 and shares[1][10] > shares[1][6]


def test_held_ratios_stay_until_the_release():
    mixed = mixture()
    mixed.hold({"base": 1.0})
    mixed.set_ratios({"hard": 0.5, "base": 0.5})
    assert mixed.ratios == {"hard": 0.0, "base": 1.0}
    mixed.hold({"base": 1.0})
    mixed.release()
    assert mixed.ratios == {"hard": 0.5, "base": 0.5}
    mixed.release()
    assert mixed.ratios == {"hard": 0.5, "base": 0.5}


# -- a laned data set ------------------------------------------------------------------------------


def test_it_switches_laned_data_to_whole_steps_of_the_base(tmp_path):
    hard, base = random_rows(20), random_rows(6, seed=9)
    data = laned(hard, LaneConfig(**SAME_NUMBERS), base=Dataset.from_list(base))
    script = Script({2: 2.0, 6: 0.1})
    monitor = AlignmentMonitorCallback(data, "base", JUMPY, score=script)
    seen, _ = train_lanes(tmp_path, data, hard + base, [LaneCallback(data), monitor])
    kinds = ["b" if max(step) >= 20 else "c" for step in seen.flat]
    assert "".join(kinds) == "cccc" + "bbbb" + "c" * 8  # lag of two steps
    assert all(min(step) >= 20 and len(step) == 2 for step in seen.flat[4:8])
    assert seen.used[4:8] == seen.after[4:8]  # neither lane's rate
    lines = [m for m in read_metrics(tmp_path) if "lanes/loss_base" in m]
    assert [m["step"] for m in lines] == [5, 6, 7, 8]


@pytest.mark.parametrize(("at", "workers"), [(3, 0), (5, 2)])
def test_laned_data_resume_within_a_switch(tmp_path, at, workers):
    hard, base = random_rows(20), random_rows(6, seed=9)
    settings = {"save_strategy": "steps", "save_steps": at, "dataloader_num_workers": workers}

    def once(folder, start=0, **more):
        data = laned(hard, base=Dataset.from_list(base))
        script = Script({2: 2.0, 8 + workers * 2: 0.1})
        script.calls = start
        monitor = AlignmentMonitorCallback(data, "base", JUMPY, score=script)
        ours = [monitor, LaneCallback(data)]
        return train_lanes(folder, data, hard + base, ours, **settings, **more)

    straight, whole = once(tmp_path / "a")
    with pytest.raises(RuntimeError, match="killed"):
        once(tmp_path / "b", fail_at=at + 1)
    resumed, again = once(tmp_path / "b", start=at, resume=True)
    assert resumed.flat == straight.flat[at:]
    assert any(max(step) >= 20 for step in straight.flat)
    assert torch.equal(parameters(again), parameters(whole))


def test_the_easiest_rows_may_be_the_base(tmp_path):
    rows = random_rows(20)
    data = laned(rows, LaneConfig(**SAME_NUMBERS), base_share=0.2)
    monitor = AlignmentMonitorCallback(data, "base", JUMPY, score=Script({2: 2.0}))
    seen, _ = train_lanes(tmp_path, data, rows, [LaneCallback(data), monitor], num_train_epochs=1)
    assert all(max(step) < 4 for step in seen.flat[4:8])


# -- refusals --------------------------------------------------------------------------------------


def test_what_cannot_be_switched_is_refused():
    with pytest.raises(ConfigError, match="mixture: there is nothing to switch"):
        AlignmentMonitorCallback(None)
    with pytest.raises(ConfigError, match="base_source: no source 'easy'; there are hard, base"):
        AlignmentMonitorCallback(mixture(), "easy")
    with pytest.raises(ConfigError, match="give build_lanes base= or base_share="):
        AlignmentMonitorCallback(laned(random_rows(4)))
    with pytest.raises(ConfigError, match="observe_only: rows keep their places"):
        laned(random_rows(4), LaneConfig(observe_only=True), base_share=0.5)
    with pytest.raises(ConfigError, match=r"base_share: must lie in \(0, 1\], got 2"):
        laned(random_rows(4), base_share=2.0)
    with pytest.raises(DataError, match="base: must have the columns of the data set"):
        laned(random_rows(4), base=Dataset.from_list([{"text": "a"}]))
    for setting, value in (
        ("threshold", 0.0),
        ("release", 9.0),
        ("smoothing", 1.0),
        ("min_stay", 0),
        ("max_stay", 1),
    ):
        with pytest.raises(ConfigError, match=f"{setting}: must"):
            AlignmentConfig(**{setting: value})


def test_watching_needs_no_mixture(tmp_path):
    config = AlignmentConfig(**{**vars(JUMPY), "observe_only": True})
    monitor = AlignmentMonitorCallback(config=config, debug_dir=tmp_path / "debug")
    run(tmp_path, Dataset.from_list(SOURCES["hard"]), [monitor], max_steps=3)
    lines = (tmp_path / "debug" / "monitor_samples.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 * 4
    loss, score = map(float, lines[1].split(",")[2:])
    assert score == pytest.approx(math.exp(-loss), rel=1e-5)
