"""`reward` on a tiny model: what it leaves, how it goes on, and what it refuses."""

import json

import pytest

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.commands import reward_run
from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from tests.conftest import REPOSITORY
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows

QUICK = (
    *("--epochs", 2, "--folds", 2, "--confidence-epochs", 2, "--head-hidden-size", 8),
    *("--confidence-hidden-size", 4, "--max-length", 64, "--cpu", "--no-shift-check"),
)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in preference_rows(16)), "utf-8")
    return path


@pytest.fixture
def reward(cli, tiny_folder, pairs, tmp_path):
    """`reward(*flags)` → (status, output, errors) of a short run into `tmp_path / "run"`."""

    def call(*flags, data=("--preferences", pairs), dimensions=DIMENSIONS):
        return cli(
            *("reward", "--model", tiny_folder, "--output-dir", tmp_path / "run"),
            *("--cache-dir", tmp_path / "features", "--dimensions", *dimensions),
            *QUICK,
            *data,
            *flags,
        )

    return call


def read(path):
    return json.loads(path.read_text("utf-8"))


@pytest.mark.pictures
def test_a_run_leaves_model_figures_pictures_and_report(reward, tmp_path):
    status, shown, errors = reward()
    assert status == 0, errors
    folder = tmp_path / "run"
    about = read(folder / "run.json")
    assert about["status"] == "finished" and about["command"] == "reward"
    assert about["data"]["rows"] == 2 * (16 - 2 - 2)
    assert about["model"]["share"] == pytest.approx(
        about["model"]["trainable_parameters"]
        / (about["model"]["parameters"] - about["model"]["trainable_parameters"])
    )
    lines = read_json_lines(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 2]
    assert "reward/eval_loss_logic" in lines[0]
    assert "reward/test_pairwise_accuracy_logic" in lines[2]
    assert not (folder / "rewards" / "state").exists()
    pictures = {path.name for path in (folder / "rewards").glob("*.png")}
    assert pictures == {"reliability.png", "scores.png", "risk_coverage.png", "training.png"}
    rows = read_json_lines(folder / "rewards" / "scores.jsonl")
    assert len(rows) == 2 * 2 * 2 and {"score", "confidence", "correct"} <= rows[0].keys()
    page = (folder / "report.html").read_text("utf-8")
    assert "Reliability" in page and page.count("data:image/png") == 4
    model = StructuredRewardModel.from_pretrained(folder / "model")
    out = model.score_texts([rows[0]["prompt"]], [rows[0]["response"]])
    column = model.config.dimensions.index(rows[0]["dimension"])
    assert float(out.scores[0, column]) == pytest.approx(rows[0]["score"], abs=1e-4)
    assert "On test:" in (folder / "model" / "README.md").read_text()
    assert "Test prompts" in shown and str(folder / "model") in shown


def test_preferences_and_ratings_together(reward, pairs, tmp_path):
    rated = tmp_path / "rated.jsonl"
    rated.write_text("".join(json.dumps(row) + "\n" for row in rating_rows(24)), "utf-8")
    status, _, errors = reward("--ratings", rated)
    assert status == 0, errors
    figures = read(tmp_path / "run" / "rewards" / "figures.json")
    assert figures["figures"]["test"]["logic"]["rating_error"] is not None


def test_an_interrupted_run_goes_on(reward, tmp_path, monkeypatch):
    def die(*args, **kwargs):
        raise KeyboardInterrupt

    write = reward_run._write
    monkeypatch.setattr(reward_run, "_write", die)
    status, _, errors = reward()
    assert status == 130 and "interrupted" in errors
    assert read(tmp_path / "run" / "run.json")["status"] == "interrupted"
    monkeypatch.setattr(reward_run, "_write", write)
    status, _, errors = reward()
    assert status == 2 and "--resume" in errors
    status, _, errors = reward("--resume")
    assert status == 0, errors
    about = read(tmp_path / "run" / "run.json")
    assert about["status"] == "finished" and len(about["resumed"]) == 1
    status, shown, _ = reward("--resume")
    assert status == 0 and "finished run" in shown


def test_tuning_the_backbone(reward, tmp_path):
    pytest.importorskip("peft")
    flags = ("--backbone", "lora", "--lora-rank", 2, "--backbone-epochs", 1)
    status, _, errors = reward(*flags)
    assert status == 0, errors
    folder = tmp_path / "run"
    assert read(folder / "run.json")["trainer"] == "transformers.Trainer"
    assert not (folder / "tuned").exists()
    steps = [line for line in read_json_lines(folder / "metrics.jsonl") if "eval_loss" in line]
    assert len(steps) == 1
    StructuredRewardModel.from_pretrained(folder / "model")


def test_a_tuned_backbone_is_not_tuned_again(reward, tmp_path, monkeypatch):
    def die(*args, **kwargs):
        raise KeyboardInterrupt

    flags = ("--backbone", "last_k", "--last-k", 1, "--backbone-epochs", 1)
    write = reward_run._write
    monkeypatch.setattr(reward_run, "_write", die)
    assert reward(*flags)[0] == 130
    tuned = StructuredRewardModel.from_pretrained(tmp_path / "run" / "tuned")
    monkeypatch.setattr(reward_run, "_write", write)
    monkeypatch.setattr("transformers.Trainer.train", lambda *a, **k: pytest.fail("tuned again"))
    status, _, errors = reward(*flags, "--resume")
    assert status == 0, errors
    final = StructuredRewardModel.from_pretrained(tmp_path / "run" / "model")
    pairs = zip(tuned.backbone.parameters(), final.backbone.parameters(), strict=True)
    assert all((one == two).all() for one, two in pairs)


def test_the_report_can_be_written_again(reward, cli, tmp_path):
    assert reward()[0] == 0
    page = tmp_path / "page.html"
    status, shown, errors = cli("report", tmp_path / "run", "--out", page)
    assert status == 0, errors
    assert "Most confident mistakes" in page.read_text("utf-8") and str(page) in shown


def test_pairs_out_of_sampled_answers(reward, pairs, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {
            "prompt": f"sum {n}",
            "response": "1",
            "answer_check": {"kind": "contains", "any_of": list("aeiou")},
        }
        for n in range(3)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    flags = ("--prompts", prompts, "--max-new-tokens", 3, "--candidates", 4)
    status, _, errors = reward(*flags)
    assert status == 0, errors
    folder = tmp_path / "run" / "sampled"
    assert len(read_json_lines(folder / "pairs.candidates.jsonl")) == 1 + 3
    for row in read_json_lines(folder / "pairs.jsonl"):
        assert row["dimension"] == "factual" and row["chosen"] != row["rejected"]


def test_demo_data_need_no_file(reward, tmp_path):
    status, _, errors = reward("--demo", 60, data=(), dimensions=("factual", "logic", "compliance"))
    assert status == 0, errors
    assert read(tmp_path / "run" / "rewards" / "figures.json")["figures"]["test"].keys() == {
        "factual",
        "logic",
        "compliance",
    }


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (("--unseen", "nowhere"), "unseen: no source 'nowhere'"),
        (("--epox", 3), "unrecognized arguments"),
        (("--gate-threshold", 1.5), "gate_threshold"),
        (("--report-to", "paper"), "'paper' is no tracker"),
        (("--preference-dimension", "tone"), "preference_dimension: must be one of"),
        (("--backbone", "last_k", "--last-k", 9), "last_k: must lie in 1 … 2"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(reward, tmp_path, flags, match):
    status, _, errors = reward(*flags)
    assert status == 2 and match in errors
    if "last_k" not in match:
        assert not (tmp_path / "run").exists()


def test_no_data_is_one_line(refused, tiny_folder, tmp_path):
    line = refused("reward", "--model", tiny_folder, "--output-dir", tmp_path / "run")
    assert "--demo 600" in line


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "reward").glob("*.yaml")))
def test_shipped_configs_load_and_say_their_command(path):
    config = load_config(RewardCommandConfig, path)
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith(f"# hf-glm-curriculum reward --config configs/reward/{path.name}")
    assert config.output_dir.startswith("runs/")
