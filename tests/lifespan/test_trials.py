"""Hyperparameter search: each trial's state lies in the trial's own folder."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from hf_glm_curriculum import SampleLifespanCallback
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.storage import load_tensors
from tests.lifespan.runs import train
from tests.trials import search_trials

SETTINGS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture
def search(monkeypatch, tmp_path):
    """Run a search of two trials; returns its trainer."""

    def run(callback, trials=2, **search):
        return search_trials(
            monkeypatch, tmp_path, [callback], trials=trials, search=search, **SETTINGS
        )

    return run


@pytest.mark.parametrize("named", [False, True])
def test_state_lies_beside_the_checkpoint_of_the_trial(search, tmp_path, named):
    names = {"hp_name": lambda trial: f"try{trial.number}"} if named else {}
    search(SampleLifespanCallback(), **names)
    for number in range(2):
        folder = tmp_path / (f"try{number}" if named else f"run-{number}")
        for step in (2, 4):
            checkpoint = folder / f"checkpoint-{step}"
            assert (
                json.loads((checkpoint / "trainer_state.json").read_text())["global_step"] == step
            )
            _, about = load_tensors(checkpoint / "hf_glm_curriculum" / "lifespan.safetensors")
            assert about["step"] == str(step)
        samples = pd.read_csv(folder / "lifespan" / "samples.csv")
        assert samples["lifetime"].sum() == 8
        rates = [m["learning_rate"] for m in read_metrics(folder) if "learning_rate" in m]
        assert rates[0] == pytest.approx(1e-2 * (1 + number))
    others = {p.name for p in tmp_path.iterdir()} - {"try0", "try1", "run-0", "run-1"}
    assert not [name for name in others if name.startswith(("checkpoint", "lifespan", "metrics"))]


def test_a_trial_resumes_as_it_would_have_gone_on(search, tmp_path):
    whole = SampleLifespanCallback()
    search(whole, trials=1)
    expected = whole.ledger.to_pandas()
    again = SampleLifespanCallback()
    search(again, trials=1, checkpoint=str(tmp_path / "run-0" / "checkpoint-2"))
    pd.testing.assert_frame_equal(again.ledger.to_pandas(), expected)


def test_runs_that_are_no_trials_stay_where_they_were(tmp_path):
    train([SampleLifespanCallback()], output_dir=tmp_path, **SETTINGS)
    assert (tmp_path / "checkpoint-2" / "hf_glm_curriculum" / "lifespan.safetensors").exists()
    assert (tmp_path / "lifespan" / "samples.csv").exists()
