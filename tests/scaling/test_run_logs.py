"""Points of post-training laws out of metrics.jsonl, trainer_state.json, run.json and tables."""

import json

import numpy as np
import pytest

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling.post_law import fit_post_training_law
from hf_glm_curriculum.scaling.run_logs import read_post_runs


def write_run(folder, lines, command=None, rows=None, **about):
    folder.mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    if command:
        kept = {"command": command, "data": {"rows": rows}, **about}
        (folder / "run.json").write_text(json.dumps(kept))
    return folder


def sft_run(folder, rows):
    loss = 1.2 + 5 / rows**0.4
    lines = [
        {"loss": 3.0, "epoch": 0.5, "step": 1},
        {"eval_loss": loss + 0.2, "epoch": 1.0, "step": 2},
        {"eval_loss": loss, "epoch": 2.0, "step": 4},
    ]
    return write_run(folder, lines, "sft", rows, model={"parameters": 135_000_000})


def test_a_law_is_fitted_from_folders_of_runs(tmp_path):
    folders = [sft_run(tmp_path / str(rows), rows) for rows in (100, 300, 900, 2700, 8100)]
    runs = read_post_runs(folders, "eval_loss")
    assert runs.inputs["sft_rows"].tolist() == [100, 300, 900, 2700, 8100]
    law = fit_post_training_law(runs.inputs, runs.values, metric="eval_loss")
    assert law.parameters == pytest.approx(
        {"E": 1.2, "B_sft_rows": 5, "beta_sft_rows": 0.4}, rel=0.01
    )
    assert law.constants == {"parameters": 135_000_000}


def test_trainer_states_are_read_where_there_is_no_metrics_file(tmp_path):
    for step in (5, 10, 30):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        history = [{"eval_loss": 2.0 - step / 100, "step": step, "epoch": 1.0}]
        end = {"train_samples_per_second": 20.0, "train_runtime": 10.0, "epoch": 2.0, "step": step}
        state = {"log_history": [*history, end], "global_step": step}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    runs = read_post_runs([tmp_path / "run"], "eval_loss")
    assert runs.values.tolist() == [1.7]
    assert runs.inputs["sft_rows"].tolist() == [100]
    assert "from its samples a second" in runs.notes[0]
    state = tmp_path / "run" / "checkpoint-5" / "trainer_state.json"
    assert read_post_runs([state], "eval_loss").values.tolist() == [1.95]


def test_ppo_runs_count_episodes_and_may_give_a_curve(tmp_path):
    lines = [{"structured/reward": 0.1 * i, "episode": 64 * i, "step": i} for i in range(1, 6)]
    folder = write_run(tmp_path / "ppo", lines, "ppo", 32)
    last = read_post_runs([folder], "structured/reward")
    assert last.inputs["ppo_episodes"].tolist() == [320]
    curve = read_post_runs([folder], "structured/reward", curve=True)
    assert curve.inputs["ppo_episodes"].tolist() == [64, 128, 192, 256, 320]
    np.testing.assert_allclose(curve.values, [0.1, 0.2, 0.3, 0.4, 0.5])


def test_curves_of_fine_tuning_count_the_rows_read_so_far(tmp_path):
    folder = sft_run(tmp_path / "run", 100)
    curve = read_post_runs([folder], "loss", curve=True)
    assert curve.inputs["sft_rows"].tolist() == [50]


def test_reward_runs_count_pairs_and_keep_their_figures_in_run_json(tmp_path):
    folder = write_run(
        tmp_path / "reward",
        [{"loss": 0.5, "step": 1}],
        "reward",
        240,
        figures={"test_pairwise_accuracy_logic": 0.75},
    )
    runs = read_post_runs([folder], "test_pairwise_accuracy_logic")
    assert runs.inputs["preference_pairs"].tolist() == [240] and runs.values.tolist() == [0.75]


def test_tables_hold_the_metric_or_name_the_runs(tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text("sft_rows,preference_pairs,eval_loss\n100,50,2.0\n300,50,1.8\n")
    runs = read_post_runs([table], "eval_loss")
    assert runs.values.tolist() == [2.0, 1.8] and set(runs.inputs) == {
        "sft_rows",
        "preference_pairs",
    }
    sft_run(tmp_path / "a", 100)
    table.write_text("run,sft_rows,ppo_episodes\na,100,77\n")
    runs = read_post_runs([table], "eval_loss")
    assert runs.values == pytest.approx([1.2 + 5 / 100**0.4])
    assert runs.inputs["ppo_episodes"].tolist() == [77]


def test_inputs_that_some_runs_lack_are_left_out_and_told(tmp_path):
    one = sft_run(tmp_path / "a", 100)
    two = write_run(tmp_path / "b", [{"eval_loss": 2.0, "epoch": 1.0}], "sft", 300)
    runs = read_post_runs([one, two], "eval_loss")
    assert list(runs.inputs) == ["sft_rows"]
    assert runs.notes == ["parameters is known of some runs only and left out"]


def test_logs_that_do_not_help_are_refused(tmp_path):
    folder = sft_run(tmp_path / "a", 100)
    with pytest.raises(DataError, match="its log has no 'reward'; it has eval_loss, loss"):
        read_post_runs([folder], "reward")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds neither metrics.jsonl nor trainer_state.json"):
        read_post_runs([tmp_path / "empty"], "eval_loss")
    bare = write_run(tmp_path / "bare", [{"eval_loss": 2.0}])
    with pytest.raises(DataError, match="how many rows were trained on; give a table"):
        read_post_runs([bare], "eval_loss")
    ppo = write_run(tmp_path / "ppo", [{"eval_loss": 2.0, "episode": 3}])
    with pytest.raises(DataError, match="no input in common"):
        read_post_runs([folder.rename(tmp_path / "c"), ppo], "eval_loss")
    table = tmp_path / "runs.csv"
    table.write_text("rows,eval_loss\n1,2\n")
    with pytest.raises(DataError, match="is an input of a post-training law"):
        read_post_runs([table], "eval_loss")
    table.write_text("sft_rows,other\n1,2\n")
    with pytest.raises(DataError, match="has neither the metric 'eval_loss' nor a column `run`"):
        read_post_runs([table], "eval_loss")
    with pytest.raises(DataError, match="a table comes alone"):
        read_post_runs([table, ppo], "eval_loss")
