from __future__ import annotations

import logging

import numpy as np
import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_glm_curriculum import RewardHackingMonitor
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.rewards.hacking import trend

STEPS = 40


def rising(to: float, start: float = 0.0, noise: float = 0.01, seed: int = 0) -> list[float]:
    random = np.random.default_rng(seed)
    return (np.linspace(start, to, STEPS) + noise * random.standard_normal(STEPS)).tolist()


def run(monitor: RewardHackingMonitor | None = None, **series) -> set[str]:
    """Every kind of alarm that a run raises."""
    monitor = monitor or RewardHackingMonitor()
    found = set()
    for values in zip(*series.values(), strict=True):
        alarms = monitor.update(**dict(zip(series, values, strict=True)))
        found |= {alarm.kind for alarm in alarms}
    return found


def flat(level: float, noise: float = 0.0, seed: int = 1) -> list[float]:
    return rising(level, level, noise, seed)


REWARD = rising(0.8, 0.4)


@pytest.mark.parametrize(
    ("series", "kind"),
    [
        ({"length": rising(160, 80, 3)}, "length_up"),
        ({"length": rising(12, 50, 2)}, "length_down"),
        ({"diversity": rising(0.4, 0.9)}, "diversity"),
        ({"refusals": rising(0.6, 0.05)}, "refusals"),
        ({"judge": rising(0.4, 0.6)}, "judge"),
    ],
)
def test_reward_up_while_something_goes_wrong(series, kind):
    assert run(reward=REWARD, **series) == {kind}
    # The same without a rising reward is no gaming of it.
    assert run(reward=flat(0.5, 0.01), **series) == set()


def test_a_run_that_gets_better_raises_nothing():
    healthy = {
        "length": flat(50, 2.0, 2),
        "diversity": flat(0.8, 0.02, 3),
        "refusals": flat(0.05, 0.01, 4),
        "judge": rising(0.7, 0.4, 0.02, 5),
        "kl": (4 * np.sqrt(np.linspace(0, 1, STEPS))).tolist(),
        "entropy": rising(1.8, 2.0, 0.02, 6),
    }
    assert run(reward=REWARD, **healthy) == set()


def autoregressive(random, likeness: float, number: int = 100) -> np.ndarray:
    """Noise whose neighbours resemble each other, of deviation 1."""
    values = random.standard_normal(number)
    for step in range(1, number):
        fresh = np.sqrt(1 - likeness**2) * values[step]
        values[step] = likeness * values[step - 1] + fresh
    return values


@pytest.mark.parametrize(("likeness", "most"), [(0.0, 0), (0.5, 0), (0.9, 5)])
def test_noise_raises_next_to_nothing(likeness, most):
    levels = {"reward": (0.5, 0.05), "length": (60, 6), "diversity": (0.7, 0.03)}
    levels |= {"refusals": (0.1, 0.03), "judge": (0.5, 0.03), "kl": (5, 0.5), "entropy": (1.5, 0.1)}
    alarms = 0
    for seed in range(25):
        random = np.random.default_rng(seed)
        alarms += bool(
            run(
                **{
                    name: (level + spread * autoregressive(random, likeness)).tolist()
                    for name, (level, spread) in levels.items()
                }
            )
        )
    assert alarms <= most


def test_kl_that_runs_away_and_entropy_that_collapses():
    assert run(kl=np.exp(np.linspace(0, 4, STEPS)).tolist()) == {"kl"}
    assert run(kl=np.linspace(1, 9, STEPS).tolist()) == set()
    assert run(entropy=rising(0.5, 2.0)) == {"entropy"}


def test_one_dimension_paid_for_by_another():
    monitor = RewardHackingMonitor()
    for reward, lost in zip(REWARD, rising(0.3, 0.6), strict=True):
        alarms = monitor.update(reward=reward, dimensions={"factual": lost, "compliance": 0.9})
    assert [alarm.kind for alarm in alarms] == ["dimension_factual"]
    assert "factual fell by" in alarms[0].message


def test_alarms_begin_after_the_window_and_the_patience(caplog):
    monitor = RewardHackingMonitor(window=10, patience=3)
    with caplog.at_level(logging.WARNING):
        first = next(
            step
            for step, (reward, length) in enumerate(
                zip(rising(1, 0, 0), rising(200, 50, 0), strict=True), 1
            )
            if monitor.update(reward=reward, length=length)
        )
    assert first == 12
    assert caplog.text.count("answers grew") == 1
    assert monitor.metrics() == {"reward_monitor/alarms": 1.0, "reward_monitor/alarm_length_up": 1}


def test_unknown_figures_are_left_out():
    monitor = RewardHackingMonitor()
    for reward in REWARD:
        assert monitor.update(reward=reward, length=float("nan"), judge=None) == []


def test_trend_of_a_line_and_of_noise():
    line = trend([1.0, 3.0, 5.0, 7.0])
    assert (line.start, line.change, line.t) == (1.0, 6.0, float("inf"))
    assert trend([2.0] * 5).t == 0.0
    ragged = trend([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    assert abs(ragged.t) < 1


def events(tmp_path, monitor, logs, start: int = 0):
    """Fire a trainer's events with these logs; the control after the last."""
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], save_strategy="no")
    state, control = TrainerState(global_step=start), TrainerControl()
    monitor.on_train_begin(args, state, control)
    for values in logs:
        state.global_step += 1
        monitor.on_log(args, state, control, logs=values, model="the model")
        if control.should_training_stop:
            break
    monitor.on_save(args, state, control)
    monitor.on_train_end(args, state, control)
    return state, control


def test_as_callback_it_reads_the_log_and_reports(tmp_path):
    monitor = RewardHackingMonitor(stop=True)
    logs = [
        {"structured/plain_reward": r, "structured/length": n, "loss": 0.1, "reward": 0.0}
        for r, n in zip(REWARD, rising(10, 60), strict=True)
    ]
    state, control = events(tmp_path, monitor, logs)
    assert control.should_training_stop and state.global_step == 24
    lines = [line for line in read_metrics(tmp_path) if "reward_monitor/alarms" in line]
    assert lines[-1]["reward_monitor/alarm_length_down"] == 1
    assert lines[0]["reward_monitor/alarms"] == 0
    assert "reward_monitor/alarm_length_down" in state.log_history[-1]


def test_the_judge_is_asked_with_the_model(tmp_path):
    asked = []

    def judge(model):
        asked.append(model)
        return 1.0 - len(asked) / STEPS

    monitor = RewardHackingMonitor(judge=judge)
    logs = [{"reward": r} for r in REWARD] + [{"eval_loss": 1.0}]
    _, control = events(tmp_path, monitor, logs)
    assert asked == ["the model"] * STEPS
    assert [alarm.kind for alarm in monitor.alarms] == ["judge"]
    assert not control.should_training_stop


def test_other_names_in_the_log(tmp_path):
    monitor = RewardHackingMonitor(sources={"length": "my/length"})
    logs = [
        {"objective/scores": r, "my/length": n}
        for r, n in zip(REWARD, rising(160, 80), strict=True)
    ]
    events(tmp_path, monitor, logs)
    assert [alarm.kind for alarm in monitor.alarms] == ["length_up"]


def test_resumed_equals_uninterrupted(tmp_path):
    logs = [{"reward": r, "length": n} for r, n in zip(REWARD, rising(160, 80), strict=True)]
    names = {"sources": {"length": "length"}}
    straight = RewardHackingMonitor(**names)
    events(tmp_path / "straight", straight, logs)
    first, second = RewardHackingMonitor(**names), RewardHackingMonitor(**names)
    events(tmp_path / "cut", first, logs[:21])
    events(tmp_path / "cut", second, logs[21:], start=21)
    assert second.state_dict() == straight.state_dict()
    # A run from the beginning does not look back on another.
    events(tmp_path / "new", second, logs[:3])
    assert second.alarms == [] and second.state_dict()["seen"] == 3


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        RewardHackingMonitor(windw=3)
    with pytest.raises(ConfigError, match="window: must be at least 6"):
        RewardHackingMonitor(window=2)
    with pytest.raises(ConfigError, match="unknown quantity 'speed'"):
        RewardHackingMonitor(sources={"speed": "x"})
