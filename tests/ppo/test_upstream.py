"""The trajectory of TRL 1.12's PPOTrainer, and where upstream is wrong, the difference alone."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

pytestmark = pytest.mark.ppo

TOLERANCE = 1e-4
"""Largest difference of a parameter after three updates in float32: a tenth of one Adam step."""


def upstream(tokenizer, model, reward, value, data, args):
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
            args=PPOConfig(num_sample_generations=0, **fields),
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
    """`both(kind, **settings)` → (our trainer, TRL's) after the same run."""

    def train(kind="llama", policy_of=policy, pad_is_eos=False, **shared):
        found = []
        for runner in (ours, upstream):
            model, value, reward = policy_of(kind), classifier(kind, seed=4), classifier(kind)
            tokenizer = copy.deepcopy(tiny_tokenizer)
            if pad_is_eos:
                tokenizer.pad_token = tokenizer.eos_token
            args = settings(max_grad_norm=0.0, **shared)
            seeded()
            found.append(runner(tokenizer, model, reward, value, prompts, args))
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


def test_the_place_of_the_score_is_the_only_difference_where_every_answer_ends_early(
    both, policy, monkeypatch
):
    """TRL asks whether a row is as long as the batch's longest, we whether it has full length.

    So its longest row has no state after its last token, neither to be paid in nor to be learned.
    """
    from hf_glm_curriculum.ppo import rollout
    from hf_glm_curriculum.ppo import trainer as module

    kinds = {"policy_of": lambda kind: policy(kind, eos=4.0)}
    mine, theirs = both(total_updates=1, **kinds)
    apart = largest_difference(mine.bare_model.value_model, theirs.model.value_model)
    assert apart > TOLERANCE

    def upstreams(lengths, longest, where):
        return torch.where(lengths < lengths.max(), lengths, lengths - 1)

    def upstreams_states(lengths, columns):
        places = torch.arange(columns)
        return (places <= lengths[:, None]) & (places < lengths.max())

    monkeypatch.setattr(module, "terminal_columns", upstreams)
    monkeypatch.setattr(rollout, "state_mask", upstreams_states)
    mine, theirs = both(total_updates=1, **kinds)
    assert largest_difference(mine.bare_model.value_model, theirs.model.value_model) < TOLERANCE


def test_upstream_takes_a_generated_pad_token_for_the_end(both, policy):
    kinds = {"policy_of": lambda kind: policy(kind, pad=4.0, eos=-30.0)}
    mine, theirs = both(total_updates=1, **kinds)
    a, b = mine.state.log_history[0], theirs.state.log_history[0]
    assert a["structured/tokens"] == 24
    # The same answers: what upstream sums over is a part of them.
    assert b["objective/entropy"] < 0.7 * a["objective/entropy"]


def test_upstream_changes_with_the_pad_token_and_we_do_not(both):
    """With pad = EOS upstream trains no EOS and looks for the score's place in vain."""
    plain = both(total_updates=1)
    padded = both(total_updates=1, pad_is_eos=True)
    ours, theirs = (
        largest_difference(inner(one), inner(other))
        for one, other, inner in zip(
            plain, padded, (lambda t: t.bare_model, lambda t: t.model), strict=True
        )
    )
    assert ours == 0
    assert theirs > TOLERANCE
