"""`migrate` on a tiny model: what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_glm_curriculum.commands import training_progress
from hf_glm_curriculum.commands.migrate_config import MigrateCommandConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.optional import available
from tests.conftest import REPOSITORY

QUICK = (
    *("--pretrain-steps", 8, "--sft-steps", 4, "--window", 0.5, "--post-ramp", 4),
    *("--answers", 2, "--max-new-tokens", 3, "--max-length", 64, "--batch-size", 4),
    *("--logging-steps", 1, "--save-steps", 3, "--eval-steps", 4, "--learning-rate", 0.01),
    *("--without-labels", "drop", "--held-out", 0.1, "--cpu"),
)


@pytest.fixture(scope="session")
def documents(tmp_path_factory):
    """A folder of text files."""
    folder = tmp_path_factory.mktemp("documents")
    for number in range(6):
        text = " ".join(f"line {line} of document {number}." for line in range(60))
        (folder / f"part{number}.md").write_text(text, "utf-8")
    return folder


@pytest.fixture
def migrate(cli, tiny_folder, train_file, documents, tmp_path):
    """`migrate(*flags)` → (status, output, errors) of a short run into `tmp_path / "run"`."""

    def call(*flags, folder=tmp_path / "run", model=tiny_folder):
        return cli(
            "migrate",
            *("--model", model, "--documents", documents, "--instructions", train_file),
            *("--output-dir", folder, *QUICK, *flags),
        )

    return call


def read(path):
    return json.loads(path.read_text("utf-8"))


def lines_of(folder):
    """The metrics of a run without what tells wall time or the trainer's own count of epochs."""
    free = ("epoch", "train_runtime", "switch/seconds", "switch/usual_seconds")
    lines = read_json_lines(folder / "metrics.jsonl")
    kept = [{k: v for k, v in line.items() if k not in free} for line in lines]
    return [line for line in kept if set(line) != {"step"} and "train_loss" not in line]


@pytest.mark.pictures
def test_a_run_leaves_everything_and_shows_the_figures(migrate, tmp_path):
    status, shown, errors = migrate()
    assert status == 0, errors
    folder = tmp_path / "run"
    about = read(folder / "run.json")
    assert about["status"] == "finished" and about["command"] == "migrate"
    assert about["global_step"] == 12
    assert about["data"]["rows"] == (
        about["data"]["document_rows"] + about["data"]["instruction_rows"]
    )
    switch = about["switch"]
    assert switch["step"] == 8 and 0 < switch["seconds"] < switch["restart_seconds"]
    parts = ("load_model", "prepare_data", "start_trainer", "first_batch", "save_model")
    assert set(switch["restart_parts"]) == set(parts)
    assert switch["restart_seconds"] == pytest.approx(sum(switch["restart_parts"].values()))
    for name in ("layers.png", "ratios.png", "losses.png"):
        assert (folder / "migration" / name).stat().st_size > 1000
    schedule = read(folder / "migration" / "schedule.json")
    assert schedule["window"] == [4, 8] and schedule["max_steps"] == 12
    for name in ("heldout", "heldout_documents"):
        losses = read(folder / "evaluation" / f"{name}.json")
        assert losses["after"]["loss"] < losses["before"]["loss"]
    metrics = read_json_lines(folder / "metrics.jsonl")
    ours = [m for m in metrics if "migration/ratio_asked" in m]
    asked = {m["step"]: m["migration/ratio_asked"] for m in ours}
    assert asked[4] == 0 and asked[5] > 0
    both = [m["migration/steps_with_both"] for m in metrics if m.get("migration/steps_with_both")]
    assert both == [1.0] * 8, "every step from the window's first to the end of the ramp"
    curves = [
        {m["step"] for m in metrics if f"heldout/{k}" in m} for k in ("loss", "documents_loss")
    ]
    assert curves == [{4, 8, 12}, {4, 8, 12}]
    assert sum("switch/seconds" in m for m in metrics) == 1
    assert "Migration begins" in shown and "Instruction tuning begins" in shown
    assert "switch at step 8" in shown and "held-out loss, documents" in shown
    again = load_config(MigrateCommandConfig, folder / "config.yaml")
    assert again.migration.window == 0.5 and again.pretrain_steps == 8
    text = (folder / "report.html").read_text("utf-8")
    assert "From documents to instructions" in text and "Planted faults" not in text
    assert "became instruction tuning at step 8" in text


def interrupt_at(monkeypatch, step):
    """Stop training like Ctrl-C after an optimizer step."""
    plain = training_progress.TrainingProgress.on_step_end

    def on_step_end(self, args, state, control, **kwargs):
        plain(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(training_progress.TrainingProgress, "on_step_end", on_step_end)


@pytest.mark.parametrize("step", [5, pytest.param(11, marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    migrate, tmp_path, monkeypatch, step
):
    assert migrate("--workers", 1, folder=tmp_path / "straight")[0] == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, step)
        status, _, errors = migrate()
    assert status == 130 and "error: interrupted; what was saved is kept; pass --resume" in errors
    switch = read(tmp_path / "run" / "run.json")["switch"]
    assert ("seconds" in switch) == (step > 8)
    status, shown, errors = migrate("--resume")
    assert status == 0, errors
    assert f"going on from checkpoint-{step // 3 * 3}" in shown
    ours, theirs = (lines_of(tmp_path / name) for name in ("run", "straight"))
    assert ours == theirs and len(ours) > 24
    for name in ("heldout", "heldout_documents", "answers"):
        ours, theirs = (
            read(tmp_path / run / "evaluation" / f"{name}.json") for run in ("run", "straight")
        )
        assert ours == theirs, name
    about = read(tmp_path / "run" / "run.json")
    assert about["status"] == "finished" and len(about["resumed"]) == 1
    if step > 8:
        assert about["switch"]["seconds"] == switch["seconds"], "kept from the part that saw it"


def test_a_new_model_learns_its_tokenizer_from_the_data(migrate, tmp_path):
    sizes = ("--hidden-size", 16, "--layers", 2, "--heads", 2, "--kv-heads", 1)
    status, shown, errors = migrate(
        *sizes, "--intermediate-size", 24, "--vocab-size", 320, model="scratch"
    )
    assert status == 0, errors
    assert "Training a new model (all weights): 8 steps" in shown
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.model_type == "glm" and model.config.vocab_size == len(tokenizer) == 320
    text = "line 3 of document 4. 你好"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<user>a<assistant>b<eos>"
    about = read(tmp_path / "run" / "run.json")
    assert about["config"]["scratch"]["layers"] == 2


@pytest.mark.slow
@pytest.mark.skipif(not available("trl"), reason="needs the extra [trl]")
def test_both_hosts_see_the_same_losses(migrate, tmp_path):
    results = []
    for host in ("trainer", "sft_trainer"):
        status, _, errors = migrate("--trainer", host, folder=tmp_path / host)
        assert status == 0, errors
        keys = ("migration/loss_pretrain", "migration/loss_instruction", "migration/ratio_drawn")
        lines = read_json_lines(tmp_path / host / "metrics.jsonl")
        results.append([m[key] for m in lines for key in keys if key in m])
    assert results[0] == pytest.approx(results[1], abs=1e-4) and len(results[0]) > 24


@pytest.mark.slow
def test_adapters_migrate_too(migrate, tmp_path):
    status, shown, errors = migrate("--lora", "--lora-rank", 4, "--debug-dir", tmp_path / "debug")
    assert status == 0, errors
    assert "(LoRA r=4)" in shown
    assert (tmp_path / "run" / "model" / "adapter_config.json").exists()
    assert (tmp_path / "debug" / "migration_samples.csv").stat().st_size > 100


def test_nothing_held_out_and_no_instruction_phase(migrate, tmp_path):
    status, shown, errors = migrate("--held-out", 0, "--sft-steps", 0, "--post-ramp", 0)
    assert status == 0, errors
    assert "Evaluating" not in shown and "Instruction tuning" not in shown
    assert "seconds" not in read(tmp_path / "run" / "run.json")["switch"]


def test_a_folder_with_a_run_is_refused(migrate, tmp_path):
    assert (
        migrate("--pretrain-steps", 2, "--sft-steps", 1, "--window", 1.0, "--post-ramp", 0)[0] == 0
    )
    status, _, errors = migrate()
    assert status == 2 and "pass --resume to go on with it, --overwrite" in errors
    assert migrate("--overwrite", "--held-out", 0)[0] == 0
    assert read(tmp_path / "run" / "run.json")["global_step"] == 12


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (("--documents",), "documents: needs at least one text, folder or hub id"),
        (("--instructions",), "instructions: needs at least one file of instructions"),
        (("--documents", "nowhere/at/all.txt"), "no such file"),
        (("--window", 0.01), "window: must hold at least one step"),
        (("--window", 1.5), "window: must be above 0 and at most 1"),
        (("--post-ramp", 9), "post_ramp: must end within the run"),
        (("--migration.pretrain-steps", 5), "migration.pretrain_steps: is 5 and pretrain_steps 8"),
        (("--batch-size", 1), "stratify: a step of one row"),
        (("--model", "scratch", "--lora"), "lora: a new model"),
        (("--model", "scratch", "--heads", 5), "heads: must share hidden_size"),
        (("--held-out", 0.99), "leaves none to train on"),
        (("--pretrain-steps", 0), "pretrain_steps: must be at least 1"),
        (("--trainer", "sftrainer"), "did you mean sft_trainer"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(
    refused, tiny_folder, train_file, documents, tmp_path, flags, match
):
    line = refused(
        "migrate",
        *("--model", tiny_folder, "--documents", documents, "--instructions", train_file),
        *("--output-dir", tmp_path / "run", *QUICK, *flags),
    )
    assert match in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["smollm2", "glm"])
def test_shipped_configs_load_and_name_their_command(name):
    path = REPOSITORY / "configs" / "migrate" / f"{name}.yaml"
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith(f"# hf-glm-curriculum migrate --config configs/migrate/{name}.yaml")
    config = load_config(MigrateCommandConfig, path)
    assert config.sft_steps > 0
