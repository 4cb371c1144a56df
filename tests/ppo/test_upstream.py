"""The trajectory of TRL 1.12's PPOTrainer, and where upstream is wrong, the difference alone."""

from __future__ import annotations

import copy
import warnings

import pytest

pytestmark = pytest.mark.ppo

TOLERANCE = 1e-4
"""Largest difference of a parameter after three updates in float32: a tenth of one Adam step."""


def upstream(tokenizer, model, reward, value, data, args, **changes):
    """Train TRL's own trainer with the same settings."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    names = [
        "output_dir",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_ppo_epochs",
        "response_length",
        "learning_rate",
        "use_cpu",
        "bf16",
        "report_to",
        "save_strategy",
        "disable_tqdm",
        "seed",
        "num_mini_batches",
        "kl_coef",
        "whiten_rewards",
        "missing_eos_penalty",
        "kl_estimator",
        "stop_token",
        "lam",
    ]
    fields = {name: getattr(args, name) for name in names}
    fields["total_episodes"] = args.total_updates * args.rows_per_device
    fields["report_to"] = "none"
    tokenizer.padding_side = "left"
    ids = data.map(lambda r: {"input_ids": tokenizer(r["prompt"])["input_ids"]})
    ids = ids.select_columns(["input_ids"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = PPOTrainer(
            args=PPOConfig(num_sample_generations=0, **{**fields, **changes}),
            processing_class=tokenizer,
            model=model,
            ref_model=None,
            reward_model=reward,
            train_dataset=ids,
            value_model=value,
        )
        trainer.train()
    return trainer


def ours(tokenizer, model, reward, value, data, args):
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    trainer = StructuredPPOTrainer(
        args=args,
        processing_class=tokenizer,
        model=model,
        ref_model=None,
        reward_model=reward,
        train_dataset=data,
        value_model=value,
    )
    trainer.train()
    return trainer


def largest_difference(one, other):
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for (_, a), (_, b) in pairs)


@pytest.fixture
def both(tiny_tokenizer, policy, classifier, prompts, settings, seeded):
    """`both(kind, ours={}, theirs={}, **shared)` → (our trainer, TRL's) after the same run."""

    def train(kind="llama", mine=None, theirs=None, **shared):
        found = []
        for runner, own in ((ours, mine or {}), (upstream, {})):
            model, value = policy(kind), classifier(kind, seed=4)
            args = settings(max_grad_norm=0.0, **{**shared, **own})
            seeded()
            extra = (theirs or {}) if runner is upstream else {}
            reward = classifier(kind)
            found.append(
                runner(copy.deepcopy(tiny_tokenizer), model, reward, value, prompts, args, **extra)
            )
        return found

    return train


@pytest.mark.parametrize("kind", ["llama", "glm"])
def test_parameters_follow_upstream(both, kind):
    mine, theirs = both(kind)
    assert largest_difference(mine.bare_model.policy, theirs.model.policy) < TOLERANCE
    assert largest_difference(mine.bare_model.value_model, theirs.model.value_model) < TOLERANCE
    moved = largest_difference(mine.bare_model.policy, mine.ref_model)
    assert moved > 20 * TOLERANCE


@pytest.mark.parametrize(
    "shared",
    [
        {"num_mini_batches": 2},
        {"whiten_rewards": True},
        {"missing_eos_penalty": 1.0},
        {"kl_estimator": "k3", "kl_coef": 0.5},
    ],
    ids=lambda s: "-".join(s),
)
def test_settings_follow_upstream(both, shared):
    mine, theirs = both(**shared)
    assert largest_difference(mine.bare_model.policy, theirs.model.policy) < TOLERANCE
    assert largest_difference(mine.bare_model.value_model, theirs.model.value_model) < TOLERANCE


def test_logged_figures_are_upstreams(both):
    mine, theirs = both(total_updates=1)
    a, b = mine.state.log_history[0], theirs.state.log_history[0]
    shared = [
        "objective/kl",
        "objective/entropy",
        "objective/scores",
        "objective/non_score_reward",
        "loss/value_avg",
        "val/clipfrac_avg",
        "loss/policy_avg",
        "val/num_eos_tokens",
    ]
    for name in shared:
        assert a[name] == pytest.approx(b[name], abs=2e-5, rel=1e-4), name
