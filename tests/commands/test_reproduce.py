"""`reproduce`: the same run again, on the same data, with the same figures."""

import json

import pytest

from hf_glm_curriculum.commands.reproduce import _again
from hf_glm_curriculum.commands.reproduction import (
    changed_inputs,
    compare,
    compare_exactly,
    differences,
    figures_of,
    fingerprints_of,
    input_digests,
)
from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.config import load_config

QUICK = (
    *("--epochs", 1, "--held-out", 0.2, "--answers", 2, "--max-new-tokens", 3),
    *("--logging-steps", 1, "--learning-rate", 0.01, "--max-length", 128, "--cpu"),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_folder, train_file):
    """A finished `sft` run, and the file it was trained on."""
    from hf_glm_curriculum.commands.main import main

    folder = tmp_path_factory.mktemp("runs")
    data = folder / "data.jsonl"
    data.write_bytes(train_file.read_bytes())
    words = ["sft", "--model", tiny_folder, "--data", data, "--output-dir", folder / "run", *QUICK]
    assert main([str(word) for word in words]) == 0
    return folder / "run", data


def read(path):
    return json.loads(path.read_text("utf-8"))


def test_run_json_says_what_the_run_was_made_of(finished):
    run, data = finished
    about = read(run / "run.json")
    assert about["inputs"] == {str(data): input_digests(str(data))[str(data)]}
    assert {"versions", "git", "git_changes", "seed", "config", "argv"} <= about.keys()


def test_a_run_comes_to_the_same_to_the_bit(finished, cli, tmp_path):
    run, _ = finished
    status, shown, errors = cli("reproduce", run, "--output-dir", tmp_path / "again")
    assert status == 0, errors + shown
    found = read(tmp_path / "again" / "reproduction.json")
    assert found["counts"].keys() == {"equal"} and found["counts"]["equal"] > 10
    assert found["figures"]["heldout.after.loss"]["verdict"] == "equal"
    assert "versions, code and data are as they were" in shown
    assert {e["verdict"] for e in found["fingerprints"].values()} == {"equal"}
    assert found["fingerprints"].keys() == {"model", "data"}


def test_null_stays_null_and_nothing_goes_outside_again(finished, tmp_path, monkeypatch):
    about = read(finished[0] / "run.json")
    about["config"] |= {"max_length": None, "debug_dir": str(tmp_path / "debug")}
    given = []
    monkeypatch.setattr("hf_glm_curriculum.commands.main.main", lambda argv: given.append(argv))
    _again(about, tmp_path / "new")
    config = load_config(SftCommandConfig, given[0][2])
    assert config.max_length is None and config.debug_dir is None
    assert config.learning_rate == about["config"]["learning_rate"]


def test_another_model_under_the_old_name_is_told(tmp_path):
    for name, model in (("a", "1"), ("b", "2")):
        (tmp_path / name / "stages" / "ppo").mkdir(parents=True)
        about = {"model": {"fingerprint": model}, "data": {"rows": 3}}
        for place in (tmp_path / name, tmp_path / name / "stages" / "ppo"):
            (place / "run.json").write_text(json.dumps(about), "utf-8")
    found = compare_exactly(fingerprints_of(tmp_path / "a"), fingerprints_of(tmp_path / "b"))
    assert {name: e["verdict"] for name, e in found.items()} == {
        "model": "different",
        "ppo: model": "different",
    }


@pytest.mark.slow
def test_a_quickstart_and_its_stages_come_to_the_same(tiny_folder, cli, tmp_path):
    words = ("--model", tiny_folder, "--output-dir", tmp_path / "run", "--fast", "--samples", 16)
    assert cli("quickstart", *words)[0] == 0
    status, shown, errors = cli("reproduce", tmp_path / "run", "--output-dir", tmp_path / "again")
    assert status == 0, errors + shown
    found = read(tmp_path / "again" / "reproduction.json")
    assert found["counts"].keys() == {"equal"}
    stages = {name.partition(": ")[0] for name in found["figures"] if ": " in name}
    assert stages <= {"reward", "ppo"} and "reward" in stages
    for stage in sorted(stages):
        run = tmp_path / "run" / "stages" / stage
        status, shown, errors = cli("reproduce", run, "--output-dir", tmp_path / stage)
        assert status == 0, errors + shown
        assert read(tmp_path / stage / "reproduction.json")["counts"].keys() == {"equal"}


def test_changed_or_absent_data_are_refused_by_name(finished, cli, refused, tmp_path):
    run, data = finished
    before = data.read_text("utf-8")
    try:
        data.write_text(before.replace("e", "a"), "utf-8")
        assert f"{data} (changed)" in refused("reproduce", run, "--output-dir", tmp_path / "x")
        status, shown, _ = cli("reproduce", run, "--check")
        assert status == 0 and "changed" in shown
        data.unlink()
        assert f"{data} (absent)" in refused("reproduce", run, "--output-dir", tmp_path / "x")
    finally:
        data.write_text(before, "utf-8")
    assert not (tmp_path / "x").exists()


def test_other_data_with_force_are_told_apart(finished, cli, tmp_path):
    run, data = finished
    before = data.read_text("utf-8")
    try:
        data.write_text("\n".join(before.splitlines()[::-1]) + "\n", "utf-8")
        status, shown, _ = cli("reproduce", run, "--output-dir", tmp_path / "x", "--force")
    finally:
        data.write_text(before, "utf-8")
    assert status == 1 and "different" in shown
    assert read(tmp_path / "x" / "reproduction.json")["inputs"] == {str(data): "changed"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "holds no run.json"),
        ({"command": "scaling sweep"}, "what can be repeated: sft"),
        ({"status": "failed"}, "finish it with --resume"),
        ({"config": None}, "nothing to compare with"),
    ],
)
def test_what_cannot_be_repeated_is_named(tmp_path, refused, change, words):
    if change is not None:
        about = {"command": "sft", "status": "finished", "config": {}, **change}
        (tmp_path / "run.json").write_text(json.dumps(about), "utf-8")
    assert words in refused("reproduce", tmp_path)


def test_a_folder_in_use_is_not_written_over(finished, refused, tmp_path):
    (tmp_path / "mine.txt").write_text("x", "utf-8")
    assert "is not empty" in refused("reproduce", finished[0], "--output-dir", tmp_path)


def test_figures_are_compared_one_by_one():
    found = compare({"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0}, {"a": 1.0, "b": 2.0005, "c": 4.0})
    assert [entry["verdict"] for entry in found.values()] == [
        "equal",
        "close",
        "different",
        "missing",
    ]
    assert differences({"x": 1, "y": 2}, {"x": 1, "y": 3, "z": 4}) == {"y": (2, 3), "z": (None, 4)}


def test_clock_times_are_no_figures(tmp_path):
    line = {"step": 3, "loss": 1.5, "steps": 3, "train_runtime": 9.0, "ppo/seconds": 2.0, "eps": 4}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n", "utf-8")
    assert figures_of(tmp_path) == {"last loss": 1.5, "last steps": 3}


def test_inputs_are_files_that_settings_name(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("x", "utf-8")
    config = {"data": [str(path)], "model": "embedded", "n": 3, "inner": {"folder": str(tmp_path)}}
    found = input_digests(config)
    assert list(found) == [str(path)] and changed_inputs(found) == {}
    path.write_text("y", "utf-8")
    assert changed_inputs(found) == {str(path): "changed"}
