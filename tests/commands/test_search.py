"""`search`: what is tried, kept, stopped, resumed and written back."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml

from hf_glm_curriculum.commands import search_child, search_study, search_trial
from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.commands.search import prepare
from hf_glm_curriculum.commands.search_config import SearchConfig, grid_values
from hf_glm_curriculum.commands.search_trial import TrialFailed, read_objective
from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.optional import available
from tests.conftest import REPOSITORY

needs_optuna = pytest.mark.skipif(not available("optuna"), reason="optuna is not installed")

SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}, "epochs": {"choices": [1, 2]}}


@pytest.fixture
def search_file(tmp_path):
    """`search_file(**settings)` writes a search's YAML and returns its path."""

    def write(**settings):
        path = tmp_path / "search.yaml"
        tree = {"output_dir": str(tmp_path / "out"), "space": SPACE, "trials": 6, **settings}
        path.write_text(yaml.safe_dump(tree), "utf-8")
        return path

    return write


@pytest.fixture
def bowl(monkeypatch):
    """Trials without processes: the objective is least at a learning rate of 0.01."""
    seen = []

    def run_trial(command, settings, folder, objective, should_stop, stopping):
        import math

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run").mkdir(exist_ok=True)
        seen.append(settings)
        return (math.log10(settings["learning_rate"]) + 2) ** 2 + settings["epochs"] / 10

    monkeypatch.setattr(search_study, "run_trial", run_trial)
    return seen


@needs_optuna
def test_the_best_settings_come_back_as_a_config_of_the_command(search_file, bowl, tmp_path, cli):
    base = tmp_path / "base.yaml"
    base.write_text("lora_rank: 4\nlifespan:\n  history: 3\n", "utf-8")
    status, shown, errors = cli("search", "--config", search_file(trials=25, base=str(base)))
    assert status == 0, errors
    best = tmp_path / "out" / "best.yaml"
    assert best.read_text("utf-8").startswith("# hf-glm-curriculum sft --config ")
    config = load_config(SftCommandConfig, best)
    assert config.lora_rank == 4 and config.lifespan.history == 3 and config.epochs == 1
    assert 2e-3 < config.learning_rate < 5e-2
    lines = (tmp_path / "out" / "trials.csv").read_text("utf-8").splitlines()
    assert set(lines[0].split(",")) >= {"trial", "state", "value", "learning_rate", "epochs"}
    assert len(lines) == 26
    assert (tmp_path / "out" / "search.png").is_file() and "25 trials" in shown


@needs_optuna
def test_only_the_best_run_is_kept_unless_all_are_asked_for(search_file, bowl, tmp_path):
    assert main(["search", "--config", str(search_file())]) == 0
    assert len(list((tmp_path / "out").glob("trial-*/run"))) == 1
    again = search_file(output_dir=str(tmp_path / "all"), keep="all")
    assert main(["search", "--config", str(again)]) == 0
    assert len(list((tmp_path / "all").glob("trial-*/run"))) == 6


@needs_optuna
def test_a_grid_tries_everything_once_in_any_number_of_calls(search_file, bowl, tmp_path):
    space = {"epochs": {"choices": [1, 2, 3]}, "learning_rate": {"choices": [0.1, 0.01]}}
    path = search_file(space=space, sampler="grid", trials=4)
    assert main(["search", "--config", str(path)]) == 0 and len(bowl) == 4
    path = search_file(space=space, sampler="grid", trials=100)
    assert main(["search", "--config", str(path)]) == 0
    tried = {(settings["epochs"], settings["learning_rate"]) for settings in bowl}
    assert len(bowl) == 6 and len(tried) == 6


@needs_optuna
def test_a_search_goes_on_and_does_not_begin_again(search_file, bowl, tmp_path):
    assert main(["search", "--config", str(search_file(trials=3))]) == 0
    assert main(["search", "--config", str(search_file(trials=5))]) == 0
    assert len(bowl) == 5
    assert main(["search", "--config", str(search_file(trials=5))]) == 0
    assert len(bowl) == 5


@needs_optuna
def test_a_failed_trial_is_told_and_the_search_goes_on(search_file, monkeypatch, tmp_path, cli):
    def run_trial(command, settings, folder, objective, should_stop, stopping):
        if settings["epochs"] == 2:
            raise TrialFailed("learning_rate: too high")
        return settings["learning_rate"]

    monkeypatch.setattr(search_study, "run_trial", run_trial)
    status, _, errors = cli("search", "--config", search_file(trials=10))
    assert status == 0, errors
    table = (tmp_path / "out" / "trials.csv").read_text("utf-8")
    assert "fail" in table and "learning_rate: too high" in table and table.count("\n") == 11


@needs_optuna
def test_where_every_trial_fails_it_says_where_to_look(search_file, monkeypatch, refused):
    def run_trial(*arguments):
        raise TrialFailed("no such file")

    monkeypatch.setattr(search_study, "run_trial", run_trial)
    assert "trials.csv" in refused("search", "--config", search_file(trials=2))


@needs_optuna
def test_trials_behind_the_median_are_stopped_early(search_file, monkeypatch, tmp_path):
    def run_trial(command, settings, folder, objective, should_stop, stopping):
        level = settings["learning_rate"]
        return None if any(should_stop(step, level) for step in range(4)) else level

    monkeypatch.setattr(search_study, "run_trial", run_trial)
    path = search_file(trials=14, sampler="random", prune_after=3)
    assert main(["search", "--config", str(path)]) == 0
    table = (tmp_path / "out" / "trials.csv").read_text("utf-8")
    assert "pruned" in table and "complete" in table


@needs_optuna
def test_another_search_in_the_same_folder_is_refused(search_file, bowl, refused):
    assert main(["search", "--config", str(search_file())]) == 0
    other = search_file(space={"epochs": {"choices": [1]}})
    assert "holds a search with other settings (space)" in refused("search", "--config", other)


@needs_optuna
def test_a_call_that_goes_on_draws_other_trials(search_file, bowl):
    for trials in (3, 6):
        assert main(["search", "--config", str(search_file(trials=trials))]) == 0
    assert len({settings["learning_rate"] for settings in bowl}) == 6


@needs_optuna
def test_workers_share_one_budget_and_one_grid(search_file, monkeypatch, tmp_path):
    seen = []

    def run_trial(command, settings, folder, objective, should_stop, stopping):
        (folder / "run").mkdir(parents=True)
        seen.append(settings["epochs"])
        time.sleep(0.05)
        return -float(settings["epochs"])

    monkeypatch.setattr(search_study, "run_trial", run_trial)
    space = {"epochs": {"low": 1, "high": 9, "step": 1}}
    path = search_file(space=space, sampler="grid", trials=100, jobs=4)
    assert main(["search", "--config", str(path)]) == 0
    assert sorted(seen) == list(range(1, 10))
    kept = list((tmp_path / "out").glob("trial-*/run"))
    assert len(kept) == 1 and load_config(SftCommandConfig, tmp_path / "out/best.yaml").epochs == 9


@needs_optuna
def test_an_objective_that_is_no_finite_number_fails_its_trial(search_file, monkeypatch, tmp_path):
    monkeypatch.setattr(search_study, "run_trial", lambda *arguments: float("nan"))
    assert main(["search", "--config", str(search_file(trials=3))]) == 2
    table = (tmp_path / "out" / "trials.csv").read_text("utf-8")
    assert table.count("came to nan") == 3


@needs_optuna
@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_an_interrupt_ends_the_search_and_its_trials_come_again(
    search_file, monkeypatch, sampler, bowl
):
    bowl_trial, cut = search_study.run_trial, []
    # A shell's background job is started deaf to it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(command, settings, folder, objective, should_stop, stopping):
        cut.append(settings)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if not stopping.wait(10):
            raise TrialFailed("the interrupt did not arrive")
        raise search_trial.TrialCutOff

    space = {"epochs": {"choices": [1, 2, 3]}, "learning_rate": {"choices": [0.1]}}
    path = search_file(sampler=sampler, space=space, trials=3)
    monkeypatch.setattr(search_study, "run_trial", interrupted)
    assert main(["search", "--config", str(path)]) == 130 and len(cut) == 1
    monkeypatch.setattr(search_study, "run_trial", bowl_trial)
    assert main(["search", "--config", str(path)]) == 0
    assert len(bowl) == 3 and cut[0] in bowl
    if sampler == "grid":
        assert sorted(settings["epochs"] for settings in bowl) == [1, 2, 3]


@needs_optuna
def test_short_names_meet_the_full_ones_of_the_base(search_file, bowl, tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text("lifespan:\n  weighting: none\n  history: 3\n", "utf-8")
    space = {**SPACE, "weighting": {"choices": ["progress"]}}
    assert main(["search", "--config", str(search_file(base=str(base), space=space))]) == 0
    found = load_config(SftCommandConfig, tmp_path / "out" / "best.yaml").lifespan
    assert (found.weighting, found.history) == ("progress", 3)


@pytest.mark.parametrize("target", ["sft", "migrate", "reward", "ppo"])
def test_every_config_that_ships_can_be_searched(target):
    for path in sorted((REPOSITORY / "configs" / target).glob("*.yaml")):
        space = {"learning_rate": {"low": 1e-5, "high": 1e-3}}
        prepare(SearchConfig(target=target, base=str(path), space=space))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"space": {}}, "space: needs one setting"),
        ({"space": {"learning_rat": {"low": 1e-5, "high": 1e-3}}}, "learning_rate"),
        ({"space": {"epochs": {"low": 3, "high": 1}}}, "low must be below high"),
        ({"space": {"epochs": [1, 2]}}, "space.epochs: must be"),
        ({"space": {"learning_rate": {"low": 0, "high": 1, "log": True}}}, "low above 0"),
        ({"space": {"batch_size": {"choices": [0, 8]}}}, "batch_size"),
        ({"space": {"output_dir": {"choices": ["a"]}}}, "the search sets it"),
        ({"space": {"epochs": {"low": 1, "high": 3}}, "sampler": "grid"}, "a grid needs"),
        ({"direction": "up"}, "direction: must be one of"),
        ({"target": "audit"}, "target: must be one of"),
        ({"trials": 0}, "trials: must be at least 1"),
        ({"base": "nowhere.yaml"}, "nowhere.yaml"),
        ({"trails": 3}, "trials"),
    ],
)
def test_bad_settings_are_refused_before_the_first_trial(search_file, refused, settings, words):
    assert words in refused("search", "--config", search_file(**settings))


def test_grid_values_reach_both_ends():
    assert grid_values({"low": 1, "high": 7, "step": 2}) == [1, 3, 5, 7]
    assert grid_values({"low": 0.1, "high": 0.3, "step": 0.1}) == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(ConfigError, match="step must be above 0"):
        SearchConfig(space={"epochs": {"low": 1, "high": 3, "step": 0}})


def test_objectives_are_read_from_the_log_or_a_file(tmp_path):
    lines = [{"step": 1, "heldout/loss": 3.0}, {"step": 2, "heldout/loss": 2.5, "loss": 1.0}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text, "utf-8")
    (tmp_path / "figures.json").write_text('{"after": {"loss": 0.5, "name": "x"}}', "utf-8")
    assert read_objective(tmp_path, "heldout/loss") == 2.5
    assert read_objective(tmp_path, "figures.json:after.loss") == 0.5
    for name, words in (
        ("reward", "it logged heldout/loss, loss"),
        ("figures.json:after.los", "has no 'after.los'"),
        ("figures.json:after.name", "is no number"),
        ("nowhere.json:after.loss", "cannot read"),
    ):
        with pytest.raises(TrialFailed, match=words):
            read_objective(tmp_path, name)


def test_a_process_and_its_children_are_ended(tmp_path):
    mark = tmp_path / "mark"
    child = f"import time,pathlib\nwhile True: pathlib.Path({str(mark)!r}).touch(); time.sleep(.05)"
    parent = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    deadline = time.monotonic() + 20
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    search_trial.end(process)
    time.sleep(0.2)
    mark.unlink()
    time.sleep(0.3)
    assert not mark.exists() and process.poll() is not None


def test_a_trial_does_not_outlive_a_killed_search(tmp_path):
    mark = tmp_path / "mark"
    child = (
        "import os,time,pathlib\n"
        "from hf_glm_curriculum.commands.search_child import end_with\n"
        f"end_with(os.getppid())\nwhile True: pathlib.Path({str(mark)!r}).touch(); time.sleep(.05)"
    )
    parent = f"import subprocess,sys; subprocess.Popen([sys.executable, '-c', {child!r}], "
    parent += "start_new_session=True).wait()"
    search = subprocess.Popen([sys.executable, "-c", parent], cwd=REPOSITORY)
    deadline = time.monotonic() + 30
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    search.kill()
    search.wait()
    time.sleep(2 * search_child.POLL_SECONDS)
    mark.unlink()
    time.sleep(0.5)
    assert not mark.exists()


@needs_optuna
@pytest.mark.slow
def test_a_real_search_killed_half_way_goes_on(tiny_folder, train_file, search_file, tmp_path):
    """Two trials of `sft`; the search is killed in one of them, and called again."""
    base = tmp_path / "base.yaml"
    settings = {"model": str(tiny_folder), "data": [str(train_file)], "cpu": True, "epochs": 1}
    settings |= {"held_out": 0.2, "answers": 0, "max_length": 128, "logging_steps": 1}
    base.write_text(yaml.safe_dump(settings), "utf-8")
    space = {"learning_rate": {"choices": [0.01, 0.001]}}
    path = search_file(
        base=str(base),
        space=space,
        sampler="grid",
        trials=2,
        objective="evaluation/heldout.json:after.loss",
    )
    command = [sys.executable, "-m", "hf_glm_curriculum.commands.main", "search"]
    command += ["--config", str(path)]
    killed = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob("trial-*/run/run.json")):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.1)
    killed.kill()
    killed.wait()
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "out" / "trials.csv").read_text("utf-8").splitlines()[1:]
    finished = [row.split(",") for row in rows if ",complete," in row]
    assert sorted(row[4] for row in finished) == ["0.001", "0.01"]
    best = load_config(SftCommandConfig, tmp_path / "out" / "best.yaml")
    assert best.learning_rate in (0.01, 0.001)
