"""Hyperparameter search: each trial's state lies in the trial's own folder."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset
from transformers import Trainer
from transformers.hyperparameter_search import ALL_HYPERPARAMETER_SEARCH_BACKENDS
from transformers.trainer_utils import BestRun, HPSearchBackend

from hf_glm_curriculum import SampleLifespanCallback
from hf_glm_curriculum.reporting import read_metrics
from hf_glm_curriculum.storage import load_tensors
from tests.conftest import build_model
from tests.lifespan.runs import Collator, arguments, random_rows, train

SETTINGS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}


class InTurn:
    """A search backend that tries the trials 0, 1, … as Optuna's does, without Optuna."""

    name = "optuna"

    def ensure_available(self) -> None:
        """Nothing is needed."""

    def run(self, trainer, n_trials, direction, **kwargs):
        for number in range(n_trials):
            trial = SimpleNamespace(number=number, params={})
            trainer.train(resume_from_checkpoint=kwargs.get("checkpoint"), trial=trial)
        return BestRun("0", 0.0, {})


@pytest.fixture
def search(monkeypatch, tmp_path):
    """Run a search of two trials; returns its trainer."""
    monkeypatch.setitem(ALL_HYPERPARAMETER_SEARCH_BACKENDS, HPSearchBackend.OPTUNA, InTurn)
    # The one place that asks for Optuna's own type of trial.
    monkeypatch.setattr("transformers.integrations.hp_params", lambda trial: trial.params)

    def run(callback, trials=2, **kwargs):
        trainer = Trainer(
            model_init=lambda: build_model(),
            args=arguments(tmp_path, **SETTINGS),
            data_collator=Collator(),
            train_dataset=Dataset.from_list(random_rows()),
            callbacks=[callback],
        )
        trainer.hyperparameter_search(
            backend="optuna",
            n_trials=trials,
            hp_space=lambda trial: {"learning_rate": 1e-2 * (1 + trial.number)},
            **kwargs,
        )
        return trainer

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
