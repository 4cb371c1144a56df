"""What users do beside the usual: strategies by epoch, two runs, foreign settings of a model."""

from __future__ import annotations

import pytest
import torch
from transformers import DataCollatorWithPadding, EarlyStoppingCallback

from hf_glm_curriculum.errors import IncompatibleError

pytestmark = pytest.mark.ppo


@pytest.fixture
def make(tiny_tokenizer, policy, prompts, settings, seeded):
    """`make(model=..., reward=..., parts=..., **settings)`: a seeded trainer of one epoch."""
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def build(model=None, reward=None, parts=None, **own):
        base = {"per_device_train_batch_size": 4, "response_length": 4, "num_ppo_epochs": 1}
        seeded()
        return StructuredPPOTrainer(
            args=settings(**{**base, **own}),
            processing_class=tiny_tokenizer,
            model=policy() if model is None else model,
            reward_model=reward or (lambda prompts, completions, **c: [1.0] * len(prompts)),
            train_dataset=prompts,
            **(parts or {}),
        )

    return build


def logs(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_dropout_that_is_a_number_is_off(make, policy):
    one = make(policy(attention_dropout=0.3), learning_rate=0.0, total_updates=2)
    one.train()
    assert logs(one, "val/ratio") == pytest.approx([1.0, 1.0], abs=1e-6)
    assert logs(one, "objective/kl") == pytest.approx([0.0, 0.0], abs=1e-6)


def test_strategies_by_epoch(make, prompts, tmp_path):
    each = {f"{name}_strategy": "epoch" for name in ("save", "eval", "logging")}
    parts = {"eval_dataset": prompts.select(range(2))}
    one = make(parts=parts, total_updates=8, **each)
    one.train()
    assert {p.name for p in (tmp_path / "run").glob("checkpoint-*")} == {
        "checkpoint-4",
        "checkpoint-8",
    }
    assert [e["step"] for e in one.state.log_history if "eval_kl" in e] == [4, 8]
    assert [e["step"] for e in one.state.log_history if "objective/kl" in e] == [4, 8]
    straight = dict(one.bare_model.named_parameters())
    two = make(parts=parts, total_updates=8, **each)
    two.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert [e["step"] for e in two.state.log_history if "eval_kl" in e] == [4, 8]
    assert all(torch.equal(p, straight[n]) for n, p in two.bare_model.named_parameters())


def test_early_stopping_stops_and_the_best_policy_is_taken(make, prompts):
    each = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_structured/reward"}
    parts = {"eval_dataset": prompts.select(range(2)), "callbacks": [EarlyStoppingCallback(2)]}
    one = make(parts=parts, total_updates=9, save_total_limit=1, **each, **best)
    name = "policy.lm_head.weight"
    seen = []
    one.callback_handler.callbacks[-1].on_step_begin = lambda *a, **k: seen.append(
        dict(one.bare_model.named_parameters())[name].detach().clone()
    )
    one.train()
    assert one.state.global_step == 3
    assert one.state.best_global_step == 1
    assert torch.equal(dict(one.bare_model.named_parameters())[name], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_a_second_run_of_a_trainer_trains(make):
    one = make(total_updates=2)
    one.train()
    rates = logs(one, "lr")
    before = [p.detach().clone() for p in one.bare_model.parameters()]
    one.train()
    moved = [
        float((a - b).detach().abs().max())
        for a, b in zip(before, one.bare_model.parameters(), strict=True)
    ]
    assert max(moved) > 1e-4
    assert logs(one, "lr") == rates


def test_a_trainer_made_later_does_not_change_the_precision(make):
    one = make(total_updates=1)
    make(bf16=True)
    assert one.accelerator.mixed_precision == "bf16"
    one.train()
    assert one.accelerator.mixed_precision == "no"


def test_beams_and_several_answers_of_a_generation_config_are_left_out(make, policy):
    model = policy()
    config = model.generation_config
    config.num_beams, config.num_return_sequences, config.return_dict_in_generate = 2, 2, True
    one = make(model, total_updates=1)
    one.train()
    assert logs(one, "val/ratio") == pytest.approx([1.0], abs=1e-6)


def test_functions_cannot_touch_each_others_columns(make):
    def greedy(prompts, completions, target, **columns):
        found = [1.0] * len(completions)
        target.clear()
        return found

    def later(prompts, completions, target, **columns):
        return [float(t) for t in target]

    one = make(reward=[greedy, later], total_updates=1)
    one.train()
    assert one.state.global_step == 1


def test_a_collator_that_is_not_ours_is_refused_by_name(make, tiny_tokenizer):
    with pytest.raises(IncompatibleError, match="data_collator: DataCollatorWithPadding"):
        make(parts={"data_collator": DataCollatorWithPadding(tiny_tokenizer)})
