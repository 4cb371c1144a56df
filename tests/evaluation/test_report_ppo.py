"""The report's section on PPO, from folders as runs leave them."""

from __future__ import annotations

import json

import pytest

from hf_glm_curriculum.evaluation.report import render_report
from hf_glm_curriculum.evaluation.report_ppo import alarm_spans
from hf_glm_curriculum.evaluation.run_folder import read_run


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def run(tmp_path):
    """A run of eight updates with an alarm, scores and answers."""
    about = {"command": "ppo", "status": "finished", "global_step": 8, "alarm_window": 6}
    about["reward"] = {"name": "runs/reward", "dimensions": ["factual"]}
    (tmp_path / "run.json").write_text(json.dumps(about))
    metrics = [
        {
            "step": step,
            "objective/kl": step / 10,
            "structured/score_factual": 0.5 + step / 100,
            "structured/open_factual": 0.4,
            "structured/tokens": 20 - step,
            "objective/entropy": 3.0,
            "reward_monitor/alarms": float(step > 6),
            "reward_monitor/alarm_length_down": float(step > 6),
        }
        for step in range(1, 9)
    ]
    (tmp_path / "metrics.jsonl").write_text(lines(*metrics))
    folder = tmp_path / "evaluation"
    folder.mkdir()
    stage = {"factual": {"n": 1, "score": 0.25, "confidence": 0.9, "open_share": 1.0}}
    after = {"factual": {**stage["factual"], "score": 0.75}}
    (folder / "scores.json").write_text(json.dumps({"before": stage, "after": after}))
    answer = {"prompt": "<b>q</b>", "before": "x", "after": "y", "correct_after": None}
    answer |= {"scores_before": {"factual": 0.25}, "scores_after": {"factual": None}}
    (folder / "generations.jsonl").write_text(lines(answer))
    sampled = {"step": 8, "prompt": "p", "response": "<script>", "scores": {"factual": 0.5}}
    (tmp_path / "completions.jsonl").write_text(lines(sampled, sampled) + '{"step": 9, "pro')
    return tmp_path


def test_a_run_shows_alarms_scores_curves_and_answers(run):
    page = render_report(read_run(run))
    assert "<h2>Policy optimisation</h2>" in page and "Planted faults" not in page
    assert "<b>length down</b>: updates 7 to 8" in page
    assert "0.250" in page and "0.750" in page and "Sampled in update 8" in page
    assert "KL to the reference, nats an answer" in page and "0.8 nats" in page
    assert "<script>" not in page.split("<footer>")[0].split("<main>")[1]
    assert "factual <b>0.25</b>" in page and "factual <b>–</b>" in page


def test_no_alarm_means_little_in_a_short_run(run):
    assert list(alarm_spans([{"step": 1, "m/alarm_kl": 0.0}])) == []
    rows = [{"step": step, "reward_monitor/alarms": 0.0} for step in (1, 2)]
    (run / "metrics.jsonl").write_text(lines(*rows))
    assert "2 updates are too few to tell" in render_report(read_run(run))


def test_a_run_of_several_stages_shows_its_ppo_stage(run, tmp_path_factory):
    whole = tmp_path_factory.mktemp("whole")
    (whole / "stages").mkdir()
    run.rename(whole / "stages" / "ppo")
    (whole / "run.json").write_text(json.dumps({"command": "quickstart"}))
    heads = whole / "stages" / "reward" / "rewards"
    heads.mkdir(parents=True)
    figures = {"split": "test", "figures": {"test": {"factual": {"pairs": 8, "ece": 0.1}}}}
    (heads / "figures.json").write_text(json.dumps(figures))
    page = render_report(read_run(whole))
    assert "Heads of the reward model, on test prompts" in page and "Sampled in update 8" in page
    about = {"command": "quickstart", "stages": {"left_out": {"stages/ppo": "no TRL <1.13"}}}
    (whole / "run.json").write_text(json.dumps(about))
    page = render_report(read_run(whole))
    assert "PPO was left out: no TRL &lt;1.13" in page and "Heads of the reward model" in page


def test_other_runs_do_not_miss_it(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"command": "sft"}))
    assert "Policy optimisation" not in render_report(read_run(tmp_path))
