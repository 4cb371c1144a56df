"""How runs end and go on: between two logs, by an alarm, by a kill in the middle of saving."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
import torch

from hf_glm_curriculum import RewardHackingMonitor
from tests.conftest import REPOSITORY
from tests.processes import run_python

pytestmark = pytest.mark.ppo


def reward(prompts, completions, target, **columns):
    return [0.1 * len(c) - t for c, t in zip(completions, target, strict=True)]


@pytest.fixture
def make(tiny_tokenizer, policy, prompts, settings, seeded):
    """`make(parts=..., **settings)`: a seeded trainer of small updates."""
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def build(parts=None, model=None, reward=reward, **own):
        base = {"per_device_train_batch_size": 2, "response_length": 4, "num_ppo_epochs": 1}
        seeded()
        return StructuredPPOTrainer(
            args=settings(**{**base, **own}),
            processing_class=tiny_tokenizer,
            model=policy() if model is None else model,
            reward_model=reward,
            train_dataset=prompts,
            **(parts or {}),
        )

    return build


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def logged(trainer):
    found = [entry for entry in trainer.state.log_history if "objective/scores" in entry]
    return [(entry["step"], entry["objective/scores"]) for entry in found]


def test_updates_after_the_last_log_are_logged_at_the_end(make, tmp_path):
    each = [score for _, score in logged(train(make(total_updates=5)))]
    pairs = train(make(total_updates=5, logging_steps=2))
    means = [(each[0] + each[1]) / 2, (each[2] + each[3]) / 2, each[4]]
    assert [step for step, _ in logged(pairs)] == [2, 4, 5]
    assert [score for _, score in logged(pairs)] == pytest.approx(means, abs=1e-6)
    found = [m["step"] for m in lines(tmp_path / "run" / "metrics.jsonl") if "objective/kl" in m]
    assert found == [2, 4, 5]
    assert logged(train(make(total_updates=1, logging_strategy="no"))) == []


def test_a_checkpoint_keeps_the_figures_not_yet_logged(make, tmp_path):
    own = {"total_updates": 4, "logging_steps": 2, "save_strategy": "steps", "save_steps": 3}
    straight = logged(train(make(**own)))
    shutil.rmtree(tmp_path / "run" / "checkpoint-4", ignore_errors=True)
    again = make(**own)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    assert logged(again) == straight


def train(trainer):
    trainer.train()
    return trainer


def test_answers_of_evaluations_are_rewound_with_the_run(make, prompts, tmp_path):
    own = {"total_updates": 4, "save_strategy": "steps", "save_steps": 2}
    own |= {"eval_strategy": "steps", "eval_steps": 1}
    parts = {"eval_dataset": prompts.select(range(3))}
    train(make(parts, **own))
    path = tmp_path / "run" / "completions_eval.jsonl"
    straight = lines(path)
    assert [row["step"] for row in straight] == [1] * 3 + [2] * 3 + [3] * 3 + [4] * 3
    make(parts, **own).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert lines(path) == straight


def test_an_alarm_ends_the_run(make):
    """Rewards rise while answers shrink to nothing; whoever wishes is stopped by it."""
    scores = iter(range(100))

    def rising(prompts, completions, **columns):
        return [float(next(scores))] * len(prompts)

    def watched(stop):
        monitor = RewardHackingMonitor(window=6, patience=1, stop=stop)
        own = {"total_updates": 9, "preflight": False}
        one = make({"callbacks": [monitor]}, reward=rising, **own)
        shrinking = iter(range(9, 0, -1))
        plain = one.log

        def log(figures, *args, **kwargs):
            plain({**figures, "structured/length": float(next(shrinking))}, *args, **kwargs)

        one.log = log
        return train(one), monitor

    one, monitor = watched(stop=False)
    assert one.state.global_step == 9 and monitor.alarms
    one, monitor = watched(stop=True)
    assert one.state.global_step == 6 and monitor.should_stop
    assert "length_down" in {alarm.kind for alarm in monitor.alarms}


_KILLED = """
import os, signal, sys
sys.path.insert(0, {root!r})
from transformers import Trainer
from tests.ppo.runs import train
plain = getattr(Trainer, sys.argv[1])
def dies(self, folder, *rest):
    if self.state.global_step == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self, folder, *rest)
setattr(Trainer, sys.argv[1], dies)
train(sys.argv[2], 4, save_strategy="steps", save_steps=1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["_save_optimizer_and_scheduler", "_save_rng_state"])
def test_a_kill_while_saving_leaves_the_checkpoint_before(moment, tmp_path):
    from tests.ppo.runs import train

    straight = train(str(tmp_path / "straight"), 4)
    log, run = tmp_path / "killed.log", tmp_path / "run"
    code = _KILLED.format(root=str(REPOSITORY))
    assert run_python(log, code, moment, run) == -signal.SIGKILL, log.read_text()
    assert (run / "checkpoint-2" / "model.safetensors").exists()
    second = train(str(run), 4, resume=True, save_strategy="steps", save_steps=1)
    steps = [m["step"] for m in lines(run / "metrics.jsonl") if "objective/kl" in m]
    assert steps == [1, 2, 3]
    ours, theirs = (dict(t.bare_model.named_parameters()) for t in (second, straight))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_state_that_was_cut_short_is_no_checkpoint(make, tmp_path):
    own = {"total_updates": 2, "save_strategy": "steps", "save_steps": 1}
    train(make(**own))
    state = tmp_path / "run" / "checkpoint-2" / "trainer_state.json"
    state.write_text(state.read_text()[:40])
    again = make(**own)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 2 and again._began_at == 1


def test_capped_logits_are_the_ones_that_answered(make, caplog):
    """Gemma 2 caps its logits: what is read off a forward pass is what tokens were drawn with."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "gemma2",
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
        final_logit_softcapping=0.05,
        attn_implementation="eager",
    )
    model = AutoModelForCausalLM.from_config(config)
    torch.nn.init.normal_(model.get_output_embeddings().weight, std=3.0)
    one = make(model=model, total_updates=2, learning_rate=0.0)
    with caplog.at_level("WARNING", "hf_glm_curriculum"):
        train(one)
    assert not [r for r in caplog.records if "another distribution" in r.message]
    entropies = [e["policy/entropy_avg"] for e in one.state.log_history if "val/ratio" in e]
    # Within the cap all tokens are nearly alike; without it these logits choose one.
    assert entropies == pytest.approx([torch.log(torch.tensor(260.0)).item()] * 2, abs=0.01)
    assert [e["val/ratio"] for e in one.state.log_history if "val/ratio" in e] == [1.0, 1.0]
