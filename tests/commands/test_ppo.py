"""`ppo` on a tiny model: what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from hf_glm_curriculum.models import load_model
from tests.conftest import REPOSITORY, build_model
from tests.processes import run_python

pytestmark = pytest.mark.ppo

QUICK = (
    *("--updates", 3, "--batch-size", 4, "--ppo-epochs", 1, "--learning-rate", 0.01),
    *("--max-new-tokens", 6, "--answers", 3, "--save-steps", 1, "--lora-rank", 2, "--cpu"),
)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """Twelve prompts, some with checks, one a conversation, of unequal lengths."""
    rows = [
        {
            "prompt": f"sum {n} " + "and more " * (n % 3),
            "response": str(n),
            "answer_check": {"kind": "number", "value": n} if n % 2 else None,
            "category": "arithmetic",
        }
        for n in range(11)
    ]
    turns = ["hello", "hi", "again"]
    roles = ["user", "assistant", "user"]
    turns = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=True)]
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows.append({"messages": turns, "category": "chat"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def ppo(cli, tiny_folder, prompts, tmp_path):
    """`ppo(*flags)` → (status, output, errors) of a short run into `tmp_path / "run"`."""

    def call(*flags, folder=tmp_path / "run", model=tiny_folder, reward=("length",)):
        return cli(
            *("ppo", "--model", model, "--prompts", prompts, "--output-dir", folder),
            *("--reward", *reward, *QUICK, *flags),
        )

    return call


def read(path):
    return json.loads(path.read_text("utf-8"))


def timeless(folder):
    """The metrics of a run without what tells wall time."""
    lines = read_json_lines(folder / "metrics.jsonl")
    kept = [{k: v for k, v in line.items() if k != "eps" and "seconds" not in k} for line in lines]
    return [line for line in kept if "objective/kl" in line]


def weights(folder):
    return load_model(folder / "model")[0].state_dict()


def test_a_structured_run_leaves_everything_and_shows_its_figures(ppo, reward_folder, tmp_path):
    status, shown, errors = ppo(reward=(reward_folder,))
    assert status == 0, errors
    folder = tmp_path / "run"
    about = read(folder / "run.json")
    assert about["status"] == "finished" and about["command"] == "ppo"
    assert about["global_step"] == 3 and about["data"]["rows"] == 11
    assert about["reward"]["dimensions"] == ["factual", "logic", "compliance"]
    assert about["reward"]["structured"] is True
    metrics = timeless(folder)
    assert [line["step"] for line in metrics] == [1, 2, 3]
    for name in ("factual", "logic", "compliance"):
        assert 0 <= metrics[0][f"structured/score_{name}"] <= 1
        assert 0 <= metrics[0][f"structured/open_{name}"] <= 1
    completions = read_json_lines(folder / "completions.jsonl")
    assert {row["step"] for row in completions} == {1, 2, 3}
    assert set(completions[0]["scores"]) == {"factual", "logic", "compliance"}
    answers = read_json_lines(folder / "evaluation" / "generations.jsonl")
    assert len(answers) == 1, "a tenth of twelve prompts"
    assert set(answers[0]["scores_after"]) == {"factual", "logic", "compliance"}
    model = StructuredRewardModel.from_pretrained(reward_folder)
    out = model.score_texts([answers[0]["prompt"]], [answers[0]["before"]])
    assert float(out.scores[0, 0]) == pytest.approx(
        answers[0]["scores_before"]["factual"], abs=1e-3
    )
    scores = read(folder / "evaluation" / "scores.json")
    assert scores["after"]["logic"]["n"] == 1 and scores["before"]["logic"]["score"] is not None
    again = load_config(PpoCommandConfig, folder / "config.yaml")
    assert again.updates == 3 and again.reward == [str(reward_folder)]
    page = (folder / "report.html").read_text("utf-8")
    assert "Policy optimisation" in page and "KL to the reference" in page
    assert "Planted faults" not in page and "by the reward they were trained on" in page
    assert "score, factual" in shown and str(folder / "report.html") in shown
    assert (folder / "model" / "adapter_config.json").is_file()


def test_rules_get_the_rows_columns(ppo, tmp_path):
    status, _, errors = ppo("--no-lora", reward=("length", "correct"))
    assert status == 0, errors
    folder = tmp_path / "run"
    rows = read_json_lines(folder / "completions.jsonl")
    verdicts = {row["prompt"].split()[-1]: row["scores"]["correct"] for row in rows}
    checked = {row["prompt"]: row["scores"]["correct"] for row in rows if "sum" in row["prompt"]}
    assert any(value is None for value in checked.values()), verdicts
    assert any(value == 0.0 for value in checked.values()), verdicts
    before, after = (
        load_model(str(read(folder / "run.json")["config"]["model"]))[0],
        weights(folder),
    )
    moved = [name for name, value in before.state_dict().items() if (after[name] != value).any()]
    assert len(moved) > 5, "every weight trains without LoRA"


def test_prompts_that_no_rule_can_judge_are_left_out_and_said(ppo, tmp_path):
    status, _, errors = ppo("--updates", 1, reward=("correct",))
    assert status == 0, errors
    assert "prompts are left out: correct can say nothing of them" in errors
    rows = read_json_lines(tmp_path / "run" / "completions.jsonl")
    assert all(row["scores"]["correct"] is not None for row in rows)
    assert read(tmp_path / "run" / "run.json")["data"]["rows"] < 11
    status, _, errors = ppo(folder=tmp_path / "second", reward=("compliance",))
    assert status == 2 and "cannot be drawn from 0" in errors


def interrupt_at(monkeypatch, step):
    """Stop training like Ctrl-C after an update and its checkpoint."""
    from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor

    plain = RewardHackingMonitor.on_save

    def on_save(self, args, state, control, **kwargs):
        plain(self, args, state, control, **kwargs)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(RewardHackingMonitor, "on_save", on_save)


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(ppo, tmp_path, monkeypatch):
    assert ppo(folder=tmp_path / "straight")[0] == 0
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        status, _, errors = ppo()
    assert status == 130 and "interrupted" in errors
    folder = tmp_path / "run"
    assert read(folder / "run.json")["status"] == "interrupted"
    kept = (folder / "evaluation" / "cache" / "before_answers.json").stat().st_mtime_ns
    status, _, errors = ppo()
    assert status == 2 and "--resume" in errors
    status, shown, errors = ppo("--resume")
    assert status == 0, errors
    assert "going on from checkpoint-" in shown
    assert (folder / "evaluation" / "cache" / "before_answers.json").stat().st_mtime_ns == kept
    assert timeless(folder) == timeless(tmp_path / "straight")
    for name in ("completions.jsonl", "evaluation/generations.jsonl"):
        assert (folder / name).read_text() == (tmp_path / "straight" / name).read_text()
    status, shown, _ = ppo("--resume")
    assert status == 0 and "holds a finished run" in shown
    status, _, errors = ppo("--overwrite", "--updates", 1)
    assert status == 0, errors
    assert read(folder / "run.json")["global_step"] == 1
    assert not list(folder.glob("checkpoint-[23]"))


KILLER = """
import os, signal, sys
from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor
from hf_glm_curriculum.commands.main import main
plain = RewardHackingMonitor.on_log
def on_log(self, args, state, control, **kwargs):
    plain(self, args, state, control, **kwargs)
    if state.global_step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
RewardHackingMonitor.on_log = on_log
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_whole_checkpoint(ppo, tiny_folder, prompts, tmp_path):
    assert ppo(folder=tmp_path / "straight")[0] == 0
    folder = tmp_path / "run"
    words = ["ppo", "--model", tiny_folder, "--prompts", prompts, "--output-dir", folder]
    words += ["--reward", "length", *QUICK]
    log = tmp_path / "killed.log"
    assert run_python(log, KILLER, 3, *words) == -9, log.read_text()
    # What a kill while saving would leave: a checkpoint without its state.
    (folder / "checkpoint-9").mkdir()
    (folder / "checkpoint-9" / "trainer_state.json").write_text("{}")
    status, shown, errors = ppo("--resume")
    assert status == 0, errors
    assert "going on from checkpoint-2" in shown
    assert [m["step"] for m in timeless(folder)] == [1, 2, 3]
    after, straight = weights(folder), weights(tmp_path / "straight")
    assert all(torch.allclose(after[n], straight[n], atol=1e-5) for n in after)


def test_an_ensemble_and_a_scalar_model(ppo, tiny_folder, reward_folder, tmp_path):
    status, _, errors = ppo("--updates", 1, reward=(reward_folder, reward_folder))
    assert status == 0, errors
    assert "structured/open_factual" in timeless(tmp_path / "run")[0]
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = build_model("llama").config
    config.num_labels = 1
    scalar = AutoModelForSequenceClassification.from_config(config)
    scalar.save_pretrained(tmp_path / "scalar")
    from tests.conftest import build_tokenizer

    build_tokenizer().save_pretrained(tmp_path / "scalar")
    folder = tmp_path / "second"
    status, _, errors = ppo("--updates", 1, folder=folder, reward=(tmp_path / "scalar",))
    assert status == 0, errors
    assert read(folder / "run.json")["reward"]["structured"] is False
    assert read(folder / "evaluation" / "scores.json")["after"]["reward"]["score"] is not None


def test_a_fine_tuned_run_is_a_policy(ppo, cli, tiny_folder, train_file, tmp_path):
    status, _, errors = cli(
        *("sft", "--model", tiny_folder, "--data", train_file, "--output-dir", tmp_path / "sft"),
        *("--max-steps", 2, "--answers", 0, "--max-length", 64, "--without-labels", "drop"),
        *("--lora-rank", 2, "--cpu"),
    )
    assert status == 0, errors
    status, _, errors = ppo("--updates", 1, "--learning-rate", 1e-6, model=tmp_path / "sft")
    assert status == 0, errors
    # What is loaded back stands on the fine-tuned model, not on the one below it.
    models = (tiny_folder, tmp_path / "sft" / "model", tmp_path / "run" / "model")
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        below, tuned, policy = (load_model(str(m))[0](ids).logits for m in models)
    assert float((policy - tuned).abs().max()) < 0.1 * float((below - tuned).abs().max())


def test_the_module_is_a_command_of_its_own(prompts):
    """As `accelerate launch -m` starts it; a refusal is one line and status 2."""
    command = [sys.executable, "-m", "hf_glm_curriculum.commands.ppo", "--reward", "lenght"]
    result = subprocess.run(
        [*command, "--prompts", str(prompts)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: reward: 'lenght' is no rule"), lines


@pytest.mark.parametrize(
    ("flags", "reward", "match"),
    [
        ((), ("lenght",), "did you mean length"),
        ((), ("length", "a/b"), "do not mix"),
        (("--batch-size", 6, "--mini-batch-size", 4), ("length",), "not divisible"),
        (("--batch-size", 64), ("length",), "batch_size: 64 prompts an update cannot be drawn"),
        (("--load-in-4bit",), ("length",), "load_in_4bit: needs a CUDA GPU"),
        (("--fp16",), ("length",), "fp16: needs a CUDA GPU"),
        (("--report-to", "paper"), ("length",), "'paper' is no tracker"),
        (("--unlock", "tone"), ("length",), "unlock: the reward has no 'tone'"),
        (("--dimension-weights", "lenght=2"), ("length",), "did you mean length"),
        (("--lora-targets", "nothing"), ("length",), "lora_targets"),
        (("--max-prompt-length", 4), ("length",), "the prompt has"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(ppo, tmp_path, flags, reward, match):
    status, _, errors = ppo(*flags, reward=reward)
    assert status == 2 and match in errors, errors
    assert "Traceback" not in errors
    assert not (tmp_path / "run").exists()


def test_no_prompts_and_no_reward(refused, tiny_folder, tmp_path):
    line = refused(
        "ppo", "--model", tiny_folder, "--reward", "length", "--output-dir", tmp_path / "a"
    )
    assert "--demo 200" in line
    line = refused("ppo", "--model", tiny_folder, "--demo", 20, "--output-dir", tmp_path / "a")
    assert "--reward length" in line
    line = refused(
        *("ppo", "--model", tiny_folder, "--demo", 20, "--output-dir", tmp_path / "a"),
        *("--reward", tmp_path / "nothing" / "there"),
    )
    assert "no such folder" in line or "neither a folder" in line


@pytest.mark.slow
def test_two_processes_by_accelerate_launch_share_a_batch(tiny_folder, prompts, tmp_path):
    """The README's command on two gloo processes, through the shipped config of accelerate."""
    words = ("--model", tiny_folder, "--prompts", prompts, "--output-dir", tmp_path / "run")
    command = (
        *(sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"),
        *("--config_file", "configs/accelerate/cpu_ddp.yaml"),
        *("-m", "hf_glm_curriculum.commands.ppo", *words, "--reward", "length", *QUICK),
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*map(str, command)], cwd=REPOSITORY, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("update 3 of 3") == 1, "only the first process speaks"
    metrics = timeless(tmp_path / "run")
    assert [line["step"] for line in metrics] == [1, 2, 3]
    assert metrics[-1]["episode"] == 3 * 4, "a batch of 4 over both processes"
    states = {path.name for path in (tmp_path / "run").glob("checkpoint-3/hf_glm_curriculum/ppo*")}
    assert states == {"ppo.safetensors", "ppo-rank1.safetensors"}
    assert len(read_json_lines(tmp_path / "run" / "evaluation" / "generations.jsonl")) == 1
