"""What a run of StructuredPPOTrainer does to parameters, whatever the batch is split into."""

from __future__ import annotations

import copy
import json
import logging

import pytest
import torch
from transformers import TrainerCallback

pytestmark = pytest.mark.ppo


def reward(prompts, completions, target, **columns):
    """Longer answers, and the letter e, are worth more."""
    return [0.1 * len(c) + c.count("e") - t for c, t in zip(completions, target, strict=True)]


@pytest.fixture
def trainer(tiny_tokenizer, policy, prompts, settings, seeded):
    """`trainer(model=..., reward=..., **settings)`: a seeded trainer, not yet run."""
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def make(model=None, reward=reward, tokenizer=tiny_tokenizer, parts=None, data=prompts, **own):
        fields = {"per_device_train_batch_size": 4, "response_length": 8, **own}
        seeded()
        return StructuredPPOTrainer(
            args=settings(**fields),
            processing_class=tokenizer,
            model=policy() if model is None else model,
            reward_model=reward,
            train_dataset=data,
            **(parts or {}),
        )

    return make


def run(trainer, resume=None):
    trainer.train(resume_from_checkpoint=resume)
    return dict(trainer.bare_model.named_parameters())


def differs(one, other):
    return max(float((one[name] - other[name]).detach().abs().max()) for name in one)


def logs(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("suppress", [None, list(range(40, 140))])
def test_at_learning_rate_zero_ratio_is_one_and_kl_zero(trainer, policy, caplog, suppress):
    model = policy()
    model.generation_config.suppress_tokens = suppress
    one = trainer(model, learning_rate=0.0, total_updates=2)
    with caplog.at_level(logging.WARNING, "hf_glm_curriculum"):
        run(one)
    assert logs(one, "val/ratio") == pytest.approx([1.0, 1.0], abs=1e-6)
    assert logs(one, "objective/kl") == pytest.approx([0.0, 0.0], abs=1e-6)
    said = [r for r in caplog.records if "another distribution" in r.message]
    assert len(said) == (0 if suppress is None else 1)


def test_pad_token_being_eos_changes_nothing(trainer, tiny_tokenizer):

    other = copy.deepcopy(tiny_tokenizer)
    other.pad_token = other.eos_token
    assert differs(run(trainer()), run(trainer(tokenizer=other))) == 0


def test_pad_ids_inside_answers_are_tokens(trainer, policy):
    one = trainer(policy(pad=3.0, eos=0.0), total_updates=1)
    run(one)
    assert logs(one, "structured/tokens")[0] > 7
    assert logs(one, "val/num_eos_tokens")[0] < 4


def test_micro_batches_and_accumulation_are_one_thing(trainer):
    whole = run(trainer(per_device_train_batch_size=8))
    halves = run(trainer(per_device_train_batch_size=4, gradient_accumulation_steps=2))
    odd = run(trainer(per_device_train_batch_size=1, gradient_accumulation_steps=8))
    assert differs(whole, halves) < 1e-5
    assert differs(whole, odd) < 1e-5


def test_upstream_steps_across_mini_batches_and_we_do_not(trainer):
    """TRL with 2 mini-batches and 2 accumulation steps makes one step of both; here it is two."""
    split = trainer(
        per_device_train_batch_size=4, gradient_accumulation_steps=2, num_mini_batches=2
    )
    found = run(split)
    assert differs(found, run(trainer(per_device_train_batch_size=8, num_mini_batches=2))) < 1e-5
    assert logs(split, "ppo/mini_batches") == [4.0, 4.0, 4.0]


def test_two_and_two_updates_are_four(trainer, tmp_path):
    straight = run(trainer(total_updates=4, output_dir=str(tmp_path / "straight")))
    first = trainer(total_updates=4, save_strategy="steps", save_steps=2)
    run(first)
    (tmp_path / "run" / "checkpoint-4").rename(tmp_path / "gone")
    torch.manual_seed(99)
    second = trainer(total_updates=4, save_strategy="steps", save_steps=2)
    torch.manual_seed(98)
    assert differs(run(second, True), straight) == 0
    assert second.state.global_step == 4
    assert second.state.episode == 16
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines if "objective/kl" in x] == [1, 2, 3, 4]
    rows = [
        json.loads(x) for x in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()
    ]
    assert [r["step"] for r in rows] == [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4


def test_resume_in_the_middle_of_a_pass(trainer, tmp_path):
    """16 prompts, 3 an update: 5 updates a pass; stop in the second."""
    own = {"per_device_train_batch_size": 3, "total_updates": 8, "num_ppo_epochs": 1}
    straight = run(trainer(output_dir=str(tmp_path / "straight"), **own))
    run(trainer(save_strategy="steps", save_steps=7, **own))
    for name in ("checkpoint-8",):
        if (tmp_path / "run" / name).exists():
            (tmp_path / "run" / name).rename(tmp_path / "gone")
    assert differs(run(trainer(**own), str(tmp_path / "run" / "checkpoint-7")), straight) == 0


def test_every_event_is_fired_and_a_stop_is_honoured(trainer):
    class Watch(TrainerCallback):
        def __init__(self):
            self.events = []

        def on_step_end(self, args, state, control, **kwargs):
            self.events.append("step_end")
            control.should_training_stop = state.global_step >= 2

    names = "train_begin epoch_begin step_begin pre_optimizer_step optimizer_step log train_end"
    for name in names.split():

        def note(self, args, state, control, _name=name, **kwargs):
            self.events.append(_name)

        setattr(Watch, f"on_{name}", note)
    watch = Watch()
    one = trainer(parts={"callbacks": [watch]}, total_updates=5)
    run(one)
    update = ["step_begin", *["pre_optimizer_step", "optimizer_step"] * 2, "step_end", "log"]
    assert watch.events == ["train_begin", "epoch_begin", *update, *update, "train_end"]
    assert one.state.global_step == 2


def test_gradients_are_clipped(trainer, policy):
    model = policy()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda step: 1.0)
    parts = {"optimizers": (plain, schedule)}
    one = trainer(model, parts=parts, total_updates=1, num_ppo_epochs=1, max_grad_norm=0.01)
    run(one)
    assert logs(one, "grad_norm")[0] > 0.02
    squares = [(p - before[n]).pow(2).sum() for n, p in one.bare_model.policy.named_parameters()]
    moved = float(torch.stack(squares).sum().sqrt().detach())
    assert 0 < moved <= 0.0101


def test_an_update_ends_once_the_policy_has_moved_far_enough(trainer):
    one = trainer(total_updates=1, num_ppo_epochs=6, max_update_kl=1e-6, learning_rate=0.01)
    run(one)
    assert logs(one, "ppo/stopped_early") == [1.0]
    assert logs(one, "ppo/mini_batches")[0] < 6


def test_checkpointing_changes_nothing(trainer):
    assert differs(run(trainer()), run(trainer(gradient_checkpointing=True))) < 1e-6


def test_bf16_runs_and_acts(trainer):
    one = trainer(bf16=True, total_updates=1)
    found = run(one)
    assert one.accelerator.mixed_precision == "bf16"
    assert all(torch.isfinite(p).all() for p in found.values())
    assert trainer(bf16=False).accelerator.mixed_precision == "no"


def test_evaluation_is_greedy_and_leaves_the_state(trainer, prompts, tmp_path):
    one = trainer(parts={"eval_dataset": prompts.select(range(5))}, total_updates=1)
    run(one)
    state = torch.get_rng_state()
    first, second = one.evaluate(), one.evaluate()
    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    rows = [
        json.loads(x)
        for x in (tmp_path / "run" / "completions_eval.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 10
    assert first["eval_structured/score_reward"] == pytest.approx(
        sum(r["scores"]["reward"] for r in rows[:5]) / 5
    )


def test_model_is_saved_whole_and_loads(trainer, tmp_path):
    from transformers import AutoModelForCausalLM

    from hf_glm_curriculum.models import causal_lm

    one = trainer(total_updates=1, tokenizer=trainer().processing_class)
    run(one)
    one.save_model(str(tmp_path / "model"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ours = causal_lm(one.bare_model.policy)
    assert torch.equal(saved.model.embed_tokens.weight, ours.model.embed_tokens.weight)


def test_every_end_of_turn_the_model_lists_ends_an_answer(trainer, policy):
    model = policy(eos=-50.0)
    model.generation_config.eos_token_id = [1, *range(100, 200)]
    one = trainer(model, total_updates=1)
    run(one)
    assert one.stop_token_ids[:2] == [1, 100]
    assert logs(one, "structured/eos_rate")[0] > 0.5
    assert logs(one, "structured/tokens")[0] < 8
