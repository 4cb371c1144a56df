"""`sft` on a tiny model: what it leaves, how it goes on, and what it refuses."""

import json

import pandas as pd
import pytest

from hf_glm_curriculum.commands import training_progress
from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.optional import available
from tests.conftest import REPOSITORY, build_tokenizer
from tests.processes import launch

QUICK = (
    *("--epochs", 2, "--held-out", 0.2, "--answers", 3, "--max-new-tokens", 3),
    *("--logging-steps", 1, "--learning-rate", 0.01, "--max-length", 128, "--cpu"),
)


@pytest.fixture
def sft(cli, tiny_folder, train_file, tmp_path):
    """`sft(*flags)` → (status, output, errors) of a short run into `tmp_path / "run"`."""

    def call(*flags, folder=tmp_path / "run"):
        return cli(
            "sft",
            "--model",
            tiny_folder,
            "--data",
            train_file,
            "--output-dir",
            folder,
            *QUICK,
            *flags,
        )

    return call


def read(path):
    return json.loads(path.read_text("utf-8"))


def test_a_run_leaves_everything_and_shows_the_figures(sft, tmp_path):
    status, shown, errors = sft()
    assert status == 0, errors
    folder = tmp_path / "run"
    about = read(folder / "run.json")
    assert about["status"] == "finished" and about["command"] == "sft"
    assert about["data"]["rows"] == 19 and about["data"]["heldout_rows"] == 5
    assert about["config"]["lifespan"]["weighting"] == "progress"
    assert about["global_step"] == 6
    samples = pd.read_csv(folder / "lifespan" / "samples.csv")
    assert sorted(samples["row"]) == list(range(19)) and set(samples["visits"]) == {2}
    generations = read_json_lines(folder / "evaluation" / "generations.jsonl")
    assert len(generations) == 3 and all({"before", "after"} <= row.keys() for row in generations)
    heldout = read(folder / "evaluation" / "heldout.json")
    assert heldout["after"]["loss"] < heldout["before"]["loss"]
    detection = read(folder / "evaluation" / "detection.json")
    assert detection["n_faulty"] == len(detection["faults"]) > 0
    suspicious = read_json_lines(folder / "evaluation" / "suspicious.jsonl")
    planted = [row for row in suspicious if row["fault"]]
    assert planted and all(row["clean_response"] for row in planted)
    assert "held-out loss" in shown and "planted faults" in shown and "report.html" in shown
    assert "epoch 2 of 2" in shown
    metrics = read_json_lines(folder / "metrics.jsonl")
    curve = [m["heldout/loss"] for m in metrics if "heldout/loss" in m]
    assert len(curve) == 2 and curve[-1] == pytest.approx(heldout["after"]["loss"], abs=1e-6)
    assert load_config(SftCommandConfig, folder / "config.yaml").learning_rate == 0.01
    assert "<h2>Planted faults</h2>" in (folder / "report.html").read_text("utf-8")


def test_the_trained_model_can_be_trained_on(sft, cli, train_file, tmp_path):
    assert sft()[0] == 0
    status, _, errors = cli(
        "sft", "--model", tmp_path / "run" / "model", "--data", train_file, *QUICK,
        "--no-lora", "--max-steps", 1, "--output-dir", tmp_path / "second",
    )  # fmt: skip
    assert status == 0, errors
    before = read(tmp_path / "second" / "evaluation" / "heldout.json")["before"]["loss"]
    after = read(tmp_path / "run" / "evaluation" / "heldout.json")["after"]["loss"]
    assert before == pytest.approx(after, abs=1e-5)


def test_adapters_on_top_of_adapters_are_saved_as_the_model_they_make(
    sft, cli, train_file, tmp_path
):
    assert sft()[0] == 0
    status, _, errors = cli(
        "sft", "--model", tmp_path / "run" / "model", "--data", train_file, *QUICK,
        "--max-steps", 1, "--output-dir", tmp_path / "second",
    )  # fmt: skip
    assert status == 0, errors
    saved = tmp_path / "second" / "model"
    assert (saved / "config.json").is_file() and not (saved / "adapter_config.json").exists()
    status, _, errors = cli(
        "sft", "--model", saved, "--data", train_file, *QUICK, "--max-steps", 1,
        "--output-dir", tmp_path / "third",
    )  # fmt: skip
    assert status == 0, errors
    after = read(tmp_path / "second" / "evaluation" / "heldout.json")["after"]["loss"]
    before = read(tmp_path / "third" / "evaluation" / "heldout.json")["before"]["loss"]
    assert before == pytest.approx(after, abs=1e-4)


@pytest.mark.skipif(not available("trl"), reason="needs the extra [trl]")
def test_both_hosts_see_the_same_losses(sft, tmp_path):
    """Observing only, so that nothing but the host differs."""
    results = []
    for host in ("trainer", "sft_trainer"):
        folder = tmp_path / host
        status, _, errors = sft("--trainer", host, "--observe-only", folder=folder)
        assert status == 0, errors
        results.append(
            pd.read_csv(folder / "lifespan" / "samples.csv").set_index("id").sort_index()
        )
    assert list(results[0].index) == list(results[1].index)
    assert results[0]["loss"].to_numpy() == pytest.approx(results[1]["loss"].to_numpy(), abs=1e-4)


def interrupt_at(monkeypatch, step):
    """Stop training like Ctrl-C after an optimizer step."""
    plain = training_progress.TrainingProgress.on_step_end

    def on_step_end(self, args, state, control, **kwargs):
        plain(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(training_progress.TrainingProgress, "on_step_end", on_step_end)


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(sft, tmp_path, monkeypatch):
    assert sft(folder=tmp_path / "straight")[0] == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, 5)
        status, _, errors = sft()
    assert status == 130 and "error: interrupted; what was saved is kept; pass --resume" in errors
    assert read(tmp_path / "run" / "run.json")["status"] == "interrupted"
    status, shown, errors = sft("--resume")
    assert status == 0, errors
    assert "going on from checkpoint-3" in shown
    for name in ("lifespan/samples.csv", "evaluation/generations.jsonl"):
        ours, theirs = ((tmp_path / run / name).read_text() for run in ("run", "straight"))
        assert ours == theirs, name
    losses = [read(tmp_path / run / "evaluation/heldout.json") for run in ("run", "straight")]
    assert losses[0]["after"]["loss"] == pytest.approx(losses[1]["after"]["loss"], abs=1e-6)
    about = read(tmp_path / "run" / "run.json")
    assert about["status"] == "finished" and len(about["resumed"]) == 1 and "error" not in about


def test_a_half_saved_checkpoint_is_passed_over(sft, tmp_path):
    assert sft()[0] == 0
    (tmp_path / "run" / "checkpoint-6" / "trainer_state.json").unlink()
    status, shown, errors = sft("--resume")
    assert status == 0, errors
    assert "going on from checkpoint-3" in shown


def test_a_folder_with_a_run_is_refused(sft, tmp_path):
    assert sft("--max-steps", 1)[0] == 0
    before = (tmp_path / "run" / "run.json").read_text()
    status, _, errors = sft()
    assert status == 2
    assert "holds a finished run; pass --resume to go on with it, --overwrite" in errors
    assert (tmp_path / "run" / "run.json").read_text() == before
    mine = tmp_path / "run" / "notes.txt"
    mine.write_text("keep me")
    assert sft("--overwrite", "--answers", 0)[0] == 0
    assert mine.read_text() == "keep me"
    assert read(tmp_path / "run" / "run.json")["global_step"] == 6
    assert not (
        tmp_path / "run" / "evaluation" / "cache" / "after_answers.json"
    ).exists() or not read(tmp_path / "run" / "evaluation" / "answers.json")


def test_checkpoints_of_something_else_are_not_thrown_away(
    sft, refused, tmp_path, tiny_folder, train_file
):
    (tmp_path / "run" / "checkpoint-7").mkdir(parents=True)
    line = refused(
        "sft", "--model", tiny_folder, "--data", train_file, "--output-dir", tmp_path / "run",
        "--overwrite",
    )  # fmt: skip
    assert "checkpoints of another run" in line
    assert (tmp_path / "run" / "checkpoint-7").is_dir()


def test_yaml_and_flags(sft, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("epochs: 1\nlifespan:\n  weighting: none\nanswers: 0\n")
    assert sft("--config", path, "--weighting", "article", "--epochs", 1)[0] == 0
    config = read(tmp_path / "run" / "run.json")["config"]
    assert config["lifespan"]["weighting"] == "article"
    assert config["epochs"] == 1 and config["answers"] == 3, "the flag of QUICK wins"


def test_nothing_held_out(sft, tmp_path):
    status, shown, errors = sft("--held-out", 0)
    assert status == 0, errors
    assert "Evaluating" not in shown
    text = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "No answers were generated" in text


def test_metrics_reach_tensorboard(sft, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    assert sft("--report-to", "tensorboard", "--max-steps", 2)[0] == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert any("lifespan/weight_mean" in tag for tag in tags), tags


SHIPPED = sorted((REPOSITORY / "configs" / "sft").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_configs_are_valid_and_name_their_command(path):
    config = load_config(SftCommandConfig, path)
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith("# ") and "hf_glm_curriculum" in first.replace("-", "_")
    assert f"configs/sft/{path.name}" in first
    assert config.epochs > 0


def test_configs_are_shipped():
    assert len(SHIPPED) >= 3


def rows(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


GOOD = [{"prompt": f"Say {i}.", "response": f"{i}"} for i in range(10)]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--data", "missing.jsonl"], "no such file"),
        (["--learning-rate", "fast"], "learning-rate must be float, got 'fast'"),
        (["--weighting", "progres"], "did you mean progress"),
        (["--held-out", "1.5"], "held_out: must lie in [0, 1), got 1.5"),
        (["--history", "1"], "history: must be at least 2, got 1"),
        (["--lora-targets", "nothing_like_it"], "lora_targets"),
        (["--lr-scheduler", "lineer"], "lineer"),
        (["--model", "./no/such/model"], "no such folder"),
        (["--max-length", "4"], "keep no answer token at max_length=4"),
        (["--report-to", "tensorbord"], "did you mean tensorboard?"),
        (["--report-to", "clearml"], "clearml is not installed"),
        (["--resume", "--overwrite"], "contradict each other"),
        (["--config", "missing.yaml"], "cannot read missing.yaml"),
    ],
)
def test_what_cannot_work_is_refused_before_the_folder_exists(
    refused, tiny_folder, tmp_path, monkeypatch, flags, words
):
    monkeypatch.chdir(tmp_path)
    data = rows(tmp_path / "good.jsonl", *GOOD)
    given = ["sft", "--model", tiny_folder, "--data", data, "--output-dir", "out", "--cpu", *flags]
    assert words in refused(*given)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no record"),
        ('{"prompt": "a"}\n', "line 1"),
        ('{"prompt": "a", "response": "b"}\n{oops\n', "line 2: not JSON"),
        ('{"text": "a"}\n', "line 1"),
        ('{"prompt": "a", "response": "b"}\n', "leaves none to train on"),
    ],
)
def test_bad_data_are_refused_before_the_folder_exists(
    refused, tiny_folder, tmp_path, content, words
):
    data = tmp_path / "rows.jsonl"
    data.write_text(content)
    out = tmp_path / "out"
    assert words in refused(
        "sft", "--model", tiny_folder, "--data", data, "--output-dir", out, "--cpu"
    )
    assert not out.exists()


def test_unknown_config_keys_name_the_nearest(refused, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rte: 1e-4\n")
    line = refused("sft", "--config", path)
    assert "learning_rte" in line and "did you mean learning_rate?" in line


def test_no_data_at_all(refused, tmp_path):
    assert "data: needs at least one file" in refused("sft", "--output-dir", tmp_path / "out")


def test_an_output_folder_that_is_a_file(refused, tmp_path, train_file, tiny_folder):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deep" / "out"):
        line = refused("sft", "--data", train_file, "--model", tiny_folder, "--output-dir", out)
        assert "is no folder" in line


def test_a_model_without_decoder_layers(refused, tmp_path, train_file):
    from transformers import XLNetConfig, XLNetLMHeadModel

    folder = tmp_path / "model"
    config = XLNetConfig(vocab_size=260, d_model=16, n_layer=1, n_head=2, d_inner=16)
    XLNetLMHeadModel(config).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    out = tmp_path / "out"
    line = refused("sft", "--model", folder, "--data", train_file, "--output-dir", out, "--cpu")
    assert "no decoder layers" in line
    assert not out.exists()


def test_a_foreign_launcher(refused, monkeypatch, train_file, tiny_folder, tmp_path):
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    out = tmp_path / "out"
    line = refused("sft", "--data", train_file, "--model", tiny_folder, "--output-dir", out)
    assert "Megatron" in line and not out.exists()


def test_a_failure_in_mid_run_is_kept_in_run_json(sft, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("hf_glm_curriculum.evaluation.outcome.atomic_write_text", full)
    status, _, errors = sft("--max-steps", 1)
    assert status == 2 and "No space left on device" in errors
    about = read(tmp_path / "run" / "run.json")
    assert about["status"] == "failed" and "No space" in about["error"]
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_two_processes_train_one_run(tiny_folder, train_file, tmp_path):
    """DDP over gloo: one process evaluates and writes, both train."""
    arguments = ["sft", "--model", tiny_folder, "--data", train_file, *QUICK, "--batch-size", 4]
    command = ["-m", "hf_glm_curriculum.commands.main", *arguments]
    result = launch(*command, "--output-dir", tmp_path / "run", timeout=300)
    assert result.stdout.count("Evaluating before") == 1
    about = read(tmp_path / "run" / "run.json")
    assert about["status"] == "finished" and about["global_step"] == 6
    samples = pd.read_csv(tmp_path / "run" / "lifespan" / "samples.csv")
    # The sampler fills the last step of an epoch up with samples it has already drawn.
    assert len(samples) == 19 and samples["visits"].sum() >= 2 * 19
