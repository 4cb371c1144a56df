"""`scaling fit | plan | plot` from the command line: results, files, one-line refusals."""

import json

import numpy as np
import pytest

from hf_glm_curriculum import ScalingLaw
from hf_glm_curriculum.commands.scaling_config import ScalingFitConfig, ScalingPlanConfig
from hf_glm_curriculum.commands.scaling_sweep_config import ScalingSweepConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.scaling.money import load_device
from tests.conftest import REPOSITORY
from tests.scaling.laws import runs_of


def write_runs(path, noise=0.005, change=None):
    n, d, loss, _ = runs_of("chinchilla", noise)
    rows = [[f"{a:.0f}", f"{b:.0f}", f"{c:.6f}"] for a, b, c in zip(n, d, loss, strict=True)]
    for row, column, cell in change or []:
        rows[row][column] = cell
    path.write_text("N,D,loss\n" + "".join(",".join(row) + "\n" for row in rows))
    return path


def write_post(path):
    rows = np.repeat(np.geomspace(300, 1e5, 5), 4)
    pairs = np.tile(np.geomspace(500, 6e4, 4), 5)
    loss = 1.1 + 6 / rows**0.45 + 2.5 / pairs**0.3
    lines = (f"{a:.0f},{b:.0f},{c:.8f}\n" for a, b, c in zip(rows, pairs, loss, strict=True))
    path.write_text("sft_rows,preference_pairs,eval_loss\n" + "".join(lines))
    return path


@pytest.fixture
def law_file(tmp_path, cli):
    table, folder = write_runs(tmp_path / "runs.csv"), tmp_path / "fit"
    assert cli("scaling", "fit", table, "--output-dir", folder, "--bootstraps", 20)[0] == 0
    return folder / "law.json"


@pytest.fixture
def post_file(tmp_path, cli):
    table, folder = write_post(tmp_path / "post.csv"), tmp_path / "post"
    arguments = ("--post", "--output-dir", folder, "--bootstraps", 10)
    assert cli("scaling", "fit", table, *arguments)[0] == 0
    return folder / "law.json"


def test_a_fit_shows_and_keeps_the_law(tmp_path, cli):
    change = [(3, 2, ""), (9, 2, "9.5")]
    table = write_runs(tmp_path / "runs.csv", change=change)
    folder = tmp_path / "fit"
    arguments = ("--bootstraps", 20, "--parameters", "total", "--tokenizer", "mine")
    status, shown, errors = cli("scaling", "fit", table, "--output-dir", folder, *arguments)
    assert status == 0, errors
    assert "L = E + A/N^alpha + B/D^beta" in shown and "95 % interval" in shown
    assert "line 5: diverged, not in the fit: the loss is nan" in shown
    assert "line 11: diverged, kept" in shown
    assert "largest runs, predicted by" in shown and "tokenizer mine" in shown
    law = ScalingLaw.load(folder / "law.json")
    assert law.conventions.parameters == "total" and law.alpha == pytest.approx(0.34, abs=0.05)
    assert {path.name for path in folder.iterdir()} == {
        "law.json",
        "fit.png",
        "isoflop.png",
        "frontier.png",
    }


def test_lines_and_the_highest_losses_are_left_out_by_request(tmp_path, cli):
    table = write_runs(tmp_path / "runs.csv", change=[(3, 2, "9.0")])
    arguments = ("--bootstraps", 0, "--leave-out", 2, "--leave-out-highest", 1)
    _, shown, _ = cli("scaling", "fit", table, "--output-dir", tmp_path / "fit", *arguments)
    assert "line 2: left out" in shown and "line 5: left out" in shown and "40 runs" in shown


def test_a_law_is_not_written_over_unasked(law_file, tmp_path, cli, refused):
    table = tmp_path / "runs.csv"
    arguments = ("scaling", "fit", table, "--output-dir", law_file.parent, "--bootstraps", 0)
    assert "holds a law; pass --overwrite" in refused(*arguments)
    assert cli(*arguments, "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([(4, 0, "")], "N: must be above 0 and finite, got nan in row 4"),
        ([(4, 1, "many")], "line 6: column 'D' must hold a number, got 'many'"),
        ([(4, 2, "-1")], "loss: must be above 0, got -1.0 in row 4"),
        ([(i, 0, "1e8") for i in range(42)], "under-identified: N has 1 distinct value"),
    ],
)
def test_bad_tables_end_in_one_line(tmp_path, refused, change, words):
    table = write_runs(tmp_path / "runs.csv", change=change)
    folder = tmp_path / "fit"
    assert words in refused("scaling", "fit", table, "--output-dir", folder)
    assert not folder.exists()


def test_fits_of_nothing_are_refused(tmp_path, refused):
    assert "runs: needs a table" in refused("scaling", "fit")
    assert "No such file" in refused("scaling", "fit", tmp_path / "none.csv")
    table = write_runs(tmp_path / "runs.csv")
    assert "takes one table, got 2" in refused("scaling", "fit", table, table)
    assert "data_limited needs a column" in refused("scaling", "fit", table, "--form=data_limited")
    assert "no run on line 99" in refused("scaling", "fit", table, "--leave-out", 99)


def test_settings_come_from_yaml_and_flags_win(tmp_path, cli):
    table = write_runs(tmp_path / "runs.csv")
    config = tmp_path / "fit.yaml"
    config.write_text(f"runs: [{table}]\nform: kaplan\nbootstraps: 0\n")
    folder = tmp_path / "fit"
    assert cli("scaling", "fit", "--config", config, "--output-dir", folder)[0] == 0
    assert ScalingLaw.load(folder / "law.json").form == "kaplan"
    arguments = ("--output-dir", folder, "--overwrite", "--form", "chinchilla")
    assert cli("scaling", "fit", "--config", config, *arguments)[0] == 0
    assert ScalingLaw.load(folder / "law.json").form == "chinchilla"


def test_a_plan_of_pretraining_names_size_tokens_hours_and_money(law_file, tmp_path, cli):
    out = tmp_path / "plan.json"
    arguments = ("--flops", "1e21", "--device", "h100", "--output", out)
    status, shown, errors = cli("scaling", "plan", "--law", law_file, *arguments)
    assert status == 0, errors
    assert (
        "pre-training tokens" in shown
        and "h100 hours" in shown
        and "USD" in shown
        and "C = 6·N·D" in shown
    )
    made = json.loads(out.read_text())["plan"]
    best = ScalingLaw.load(law_file).optimal(1e21)
    assert made["parameters"][0] == best.N
    assert made["stages"][0]["hours"] == pytest.approx(1e21 / (989e12 * 0.4) / 3600)


def test_a_post_training_law_is_fitted_planned_with_and_asked_for_more(post_file, cli):
    plan = ("scaling", "plan", "--post-law", post_file)
    arguments = ("--stages", "sft", "rlhf", "--fixed", "parameters=1e8", "ppo_episodes=10000")
    status, shown, errors = cli(*plan, "--flops", "1e17", *arguments)
    assert status == 0, errors
    assert "SFT rows" in shown and "rollout" in shown and "reward model, forward" in shown
    _, shown, _ = cli(*plan, "--at", "sft_rows=2000", "preference_pairs=5000")
    assert "1% less eval_loss takes one of" in shown
    (row,) = [line.split() for line in shown.splitlines() if line.lstrip().startswith("sft_rows")]
    truth = 1.1 + 6 / 2000**0.45 + 2.5 / 5000**0.3
    more = (6 / (6 / 2000**0.45 - 0.01 * truth)) ** (1 / 0.45) - 2000
    assert float(row[2]) == pytest.approx(more, rel=0.02)


def test_plans_that_no_law_supports_end_in_one_line(law_file, post_file, refused):
    plan = ("scaling", "plan")
    assert "flops: needs a budget" in refused(*plan, "--law", law_file)
    assert "needs a fitted law" in refused(*plan, "--flops", "1e20")
    split = (*plan, "--flops", "1e20", "--stages", "pretrain", "sft")
    assert "needs a fitted post-training law" in refused(*split, "--law", law_file)
    assert "does not know pretrain_tokens" in refused(*split, "--post-law", post_file)
    assert "holds no scaling law" in refused(*plan, "--flops", "1e20", "--law", post_file)
    message = refused(*plan, "--flops", "1e20", "--law", law_file, "--device", "h10")
    assert "did you mean h100" in message


def test_pictures_are_drawn_again_with_further_runs(law_file, tmp_path, cli):
    more = tmp_path / "mine.csv"
    more.write_text("N,D,loss\n1e9,2e10,2.6\n")
    folder = tmp_path / "pictures"
    arguments = ("--output-dir", folder, "--runs", more, "--budgets", "1e19", "1e20")
    assert cli("scaling", "plot", "--law", law_file, *arguments)[0] == 0
    assert {path.name for path in folder.iterdir()} == {"fit.png", "isoflop.png", "frontier.png"}


def test_a_post_training_law_has_its_own_picture(post_file, tmp_path, cli):
    assert cli("scaling", "plot", "--law", post_file, "--output-dir", tmp_path / "p")[0] == 0
    assert (tmp_path / "p" / "post_law.png").is_file()


def test_help_names_the_actions_and_their_settings(cli):
    assert all(name in cli("scaling", "--help")[1] for name in ("fit", "plan", "sweep", "plot"))
    assert "--leave-out-highest" in cli("scaling", "fit", "--help")[1]
    assert cli("scaling")[0] == 2


CONFIGS = {"fit": ScalingFitConfig, "post": ScalingFitConfig, "plan": ScalingPlanConfig}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "scaling").glob("*.yaml")))
def test_shipped_configs_load_and_say_their_command(path):
    first = path.read_text("utf-8").splitlines()[0]
    assert (
        first.startswith("# hf-glm-curriculum scaling ") and f"configs/scaling/{path.name}" in first
    )
    if path.stem == "hardware":
        assert load_device("mine", path).currency == "EUR"
        return
    more = {"flops": 1e21} if path.stem == "plan" else {}
    load_config(CONFIGS.get(path.stem, ScalingSweepConfig), path, more)
