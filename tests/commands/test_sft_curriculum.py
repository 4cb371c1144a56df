"""`sft` with lanes, a monitor and loss terms."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from hf_glm_curriculum.curriculum import lane_scores
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from tests.conftest import REPOSITORY

QUICK = (
    *("--epochs", 2, "--held-out", 0.2, "--answers", 0, "--logging-steps", 1),
    *("--learning-rate", 0.01, "--max-length", 128, "--batch-size", 2, "--cpu"),
)
EAGER = ("threshold=1e-9", "relative=false", "warmup_steps=1", "min_stay=1", "max_stay=2")


class Longest:
    """Stands for the entropy estimator, whose tables take a while to load."""

    def score(self, texts):
        return [float(len(text)) for text in texts]


@pytest.fixture
def sft(cli, tiny_folder, train_file, tmp_path, monkeypatch):
    monkeypatch.setattr(lane_scores, "_entropy", Longest)

    def call(*flags):
        given = ("--model", tiny_folder, "--data", train_file, "--output-dir", tmp_path / "run")
        return cli("sft", *given, *QUICK, *flags)

    return call


def test_the_shipped_file_trains_in_lanes(sft, tmp_path):
    status, _, errors = sft("--config", REPOSITORY / "configs" / "sft" / "curriculum.yaml")
    assert status == 0, errors
    folder = tmp_path / "run"
    lanes = json.loads((folder / "lanes" / "lanes.json").read_text())
    assert lanes["lanes"]["fast"]["samples"] + lanes["lanes"]["refine"]["samples"] == 2 * 19
    names = {name for line in read_json_lines(folder / "metrics.jsonl") for name in line}
    assert names >= {"lanes/loss_fast", "monitor/variance_smoothed"}
    assert any(name.startswith("losses/") for name in names)
    assert (folder / "monitor" / "monitor.png").exists()
    samples = pd.read_csv(folder / "lifespan" / "samples.csv")
    assert sorted(samples["row"]) == list(range(19))


def test_base_data_are_what_the_monitor_goes_back_to(sft, tmp_path):
    base = tmp_path / "base.jsonl"
    rows = [{"prompt": f"Say {i}.", "response": f"{i}"} for i in range(4)]
    base.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, errors = sft("--monitor", *EAGER, "--base-data", base)
    assert status == 0, errors
    events = read_json_lines(tmp_path / "run" / "monitor" / "events.jsonl")
    assert events[0]["event"] == "to_base" and events[0]["ratios_after"]["base"] == 1.0
    samples = pd.read_csv(tmp_path / "run" / "lifespan" / "samples.csv")
    assert samples[samples["row"] >= 19]["lifetime"].sum() > 0
    assert read_json_lines(tmp_path / "run" / "lifespan" / "observation_pool.jsonl") is not None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--lanes", "quantil=0.5"], "lanes.quantil is not a setting; did you mean"),
        (["--lanes", "quantile=2"], "quantile: must lie in [0, 1], got 2"),
        (["--base-data", "x.jsonl"], "base_data: is what the monitor goes back to"),
        (["--losses", "z=0.1", "--teacher", "self"], "losses: the teacher composes the loss"),
        (["--monitor", "min_stay=0"], "min_stay: must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_loaded(sft, tmp_path, flags, words):
    status, _, errors = sft(*flags)
    assert status == 2 and words in errors
    assert not (tmp_path / "run").exists()
