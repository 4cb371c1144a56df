"""`quickstart` on a tiny model: the whole way, again, after a kill, on the user's own data."""

import json

import pandas as pd
import pytest

from hf_glm_curriculum.commands.quickstart import (
    QuickstartConfig,
    demo_records,
    plan_quickstart,
    training_config,
)
from hf_glm_curriculum.commands.sft_data import read_check
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.evaluation.run_folder import read_json_lines

FAST = ("--fast", "--samples", 24)


def files(folder):
    """What two equal runs must agree on, byte for byte."""
    names = ("lifespan/samples.csv", "evaluation/generations.jsonl", "evaluation/detection.json")
    return {name: (folder / name).read_text("utf-8") for name in names}


@pytest.fixture(scope="module")
def finished(tiny_folder, tmp_path_factory):
    """A finished quickstart on the tiny model."""
    from hf_glm_curriculum.commands.main import main

    folder = tmp_path_factory.mktemp("quickstart") / "run"
    arguments = ["quickstart", "--model", tiny_folder, "--output-dir", folder, *FAST]
    assert main([str(argument) for argument in arguments]) == 0
    return folder


def test_the_whole_way(finished):
    about = json.loads((finished / "run.json").read_text())
    assert about["command"] == "quickstart" and about["status"] == "finished"
    samples = pd.read_csv(finished / "lifespan" / "samples.csv")
    assert len(samples) == 24 and (samples["visits"] == 2).all()
    detection = json.loads((finished / "evaluation" / "detection.json").read_text())
    assert detection["n_faulty"] == 5 and detection["auroc"] is not None
    train = read_json_lines(finished / "demo_data" / "train.jsonl")
    planted = {str(row): entry["fault"] for row, entry in enumerate(train) if entry["fault"]}
    assert detection["faults"] == planted
    answers = json.loads((finished / "evaluation" / "answers.json").read_text())
    assert answers["before"]["checkable"] == answers["after"]["checkable"] == 8
    text = (finished / "report.html").read_text("utf-8")
    for title in (
        "Planted faults",
        "Answers before and after",
        "Most suspicious samples",
        "Data map",
    ):
        assert f"<h2>{title}</h2>" in text
    assert 'class="absent"' not in text


def test_a_finished_run_is_shown_and_not_run_again(finished, cli, tiny_folder):
    before = (finished / "run.json").read_text()
    status, shown, errors = cli(
        "quickstart", "--model", tiny_folder, "--output-dir", finished, *FAST
    )
    assert status == 0, errors
    assert "holds this run already" in shown and "planted faults: 5 in 24 samples" in shown
    assert "held-out loss" in shown
    assert (finished / "run.json").read_text() == before


@pytest.mark.parametrize("flags", [["--seed", 1], ["--samples", 30], ["--fault-share", 0.1]])
def test_other_settings_in_the_same_folder_are_refused(finished, refused, tiny_folder, flags):
    line = refused("quickstart", "--model", tiny_folder, "--output-dir", finished, *FAST, *flags)
    assert "holds a run with other settings" in line and "--overwrite" in line


def test_the_same_seed_gives_the_same_run(finished, cli, tiny_folder, tmp_path):
    status, _, errors = cli(
        "quickstart", "--model", tiny_folder, "--output-dir", tmp_path / "run", *FAST, "--no-ppo"
    )
    assert status == 0, errors
    assert files(tmp_path / "run") == files(finished)


@pytest.mark.ppo
def test_reward_heads_and_ppo_follow(finished):
    about = json.loads((finished / "run.json").read_text())
    assert about["stages"].pop("left_out") == {}
    assert set(about["stages"]) == {"stages/reward", "stages/ppo"}
    for stage in about["stages"]:
        one = json.loads((finished / stage / "run.json").read_text())
        assert one["status"] == "finished", stage
    ppo = json.loads((finished / "stages" / "ppo" / "run.json").read_text())
    assert ppo["global_step"] == 2 and ppo["config"]["model"] == str(finished)
    rows = read_json_lines(finished / "stages" / "ppo" / "evaluation" / "generations.jsonl")
    tuned = read_json_lines(finished / "evaluation" / "generations.jsonl")
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in tuned]
    assert [row["before"] for row in rows] == [row["after"] for row in tuned], "one policy"
    assert set(rows[0]["scores_after"]) == {"factual", "logic", "compliance"}
    data = finished / "demo_data"
    seen = {
        row["prompt"]
        for name in ("train", "heldout")
        for row in read_json_lines(data / f"{name}.jsonl")
    }
    assert not seen & {row["prompt"] for row in read_json_lines(data / "prompts.jsonl")}
    text = (finished / "report.html").read_text("utf-8")
    assert "<h2>Policy optimisation</h2>" in text and "by the reward they were trained on" in text
    assert "Heads of the reward model" in text


@pytest.mark.ppo
@pytest.mark.parametrize("where", ["fine-tuned", "reward", "ppo"])
def test_a_kill_at_any_stage_goes_on_there(
    finished, cli, tiny_folder, tmp_path, monkeypatch, where
):
    from hf_glm_curriculum.commands import quickstart_stages, reward_run
    from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    arguments = ["quickstart", "--model", tiny_folder, "--output-dir", folder, *FAST]
    places = {
        "fine-tuned": (quickstart_stages, "run_stages"),
        "reward": (reward_run, "_write"),
        "ppo": (RewardHackingMonitor, "on_save"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*places[where], die)
        assert cli(*arguments)[0] == 130
    if where != "fine-tuned":
        patched = (folder / "stages" / where / "run.json").read_text()
        assert json.loads(patched)["status"] == "interrupted"
    before = (folder / "lifespan" / "samples.csv").stat().st_mtime_ns
    status, shown, errors = cli(*arguments)
    assert status == 0, errors
    assert (folder / "lifespan" / "samples.csv").stat().st_mtime_ns == before
    name = "stages/ppo/evaluation/generations.jsonl"
    assert (folder / name).read_text("utf-8") == (finished / name).read_text("utf-8")
    assert "fine-tuned" in shown and "after PPO" in shown


def test_without_ppo_in_trl_the_rest_is_done(cli, tiny_folder, tmp_path, monkeypatch):
    from hf_glm_curriculum.commands import ppo_train

    reason = "ppo: TRL 1.16.0 has no PPOTrainer"
    monkeypatch.setattr(ppo_train, "left_out", lambda: reason)
    folder = tmp_path / "run"
    arguments = ["quickstart", "--model", tiny_folder, "--output-dir", folder, *FAST]
    status, shown, errors = cli(*arguments)
    assert status == 0, errors
    assert f"PPO left out: {reason}" in shown and "held-out loss" in shown
    assert (folder / "stages" / "reward" / "model").is_dir()
    assert not (folder / "stages" / "ppo").exists()
    text = (folder / "report.html").read_text("utf-8")
    assert reason in text and "Heads of the reward model" in text
    status, shown, _ = cli(*arguments)
    assert status == 0 and "holds this run already" in shown


def test_the_users_own_data(cli, tiny_folder, train_file, tmp_path):
    folder = tmp_path / "run"
    status, shown, errors = cli(
        "quickstart", "--model", tiny_folder, "--data", train_file, "--output-dir", folder, "--fast"
    )
    assert status == 0, errors
    assert not (folder / "demo_data").exists() and not (folder / "stages").exists()
    assert "reward model and PPO left out" in shown and "--preferences FILE" in shown
    assert "PPO was left out" in (folder / "report.html").read_text("utf-8")
    about = json.loads((folder / "run.json").read_text())
    assert about["data"]["train"] == str(train_file) and about["data"]["heldout_rows"] == 4
    assert "held-out loss" in shown


def test_demo_data_are_checkable_apart_and_planted():
    settings = QuickstartConfig()
    records = demo_records(settings, training_config(settings))
    assert records.heldout is not None
    assert len(records.train) == settings.rows
    faults = [fault for fault in records.train["fault"] if fault]
    assert len(faults) == round(settings.fault_share * settings.rows) and len(set(faults)) == 6
    assert not set(records.train["prompt"]) & set(records.heldout["prompt"])
    assert all(read_check(check) for check in records.heldout["answer_check"])
    assert not any(records.heldout["fault"])
    again = demo_records(settings, training_config(settings))
    assert again.train.to_list() == records.train.to_list()
    other = QuickstartConfig(seed=1)
    assert demo_records(other, training_config(other)).train["prompt"] != records.train["prompt"]


def test_bad_settings_and_folders(tmp_path):
    with pytest.raises(ConfigError, match="samples: must be at least 8, got 3"):
        QuickstartConfig(samples=3)
    with pytest.raises(ConfigError, match="fault_share"):
        QuickstartConfig(fault_share=0.9)
    (tmp_path / "run.json").write_text('{"command": "sft", "status": "finished"}')
    with pytest.raises(StateError, match="pass --overwrite"):
        plan_quickstart(QuickstartConfig(output_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ('{"kind": "number", "value": 4}', {"kind": "number", "value": 4}),
        ({"kind": "exact", "value": "a", "any_of": None}, {"kind": "exact", "value": "a"}),
        ("null", None),
    ],
)
def test_checks_survive_arrow_and_json(value, expected):
    assert read_check(value) == expected
