"""Bad input: a named error with the way out, before the first rollout."""

from __future__ import annotations

import datasets
import pytest
import torch

from hf_glm_curriculum.errors import (
    ConfigError,
    DataError,
    HfGlmCurriculumError,
    IncompatibleError,
    ModelError,
    StateError,
)

pytestmark = pytest.mark.ppo


def constant(prompts, completions, **columns):
    return [1.0] * len(prompts)


@pytest.fixture
def make(tiny_tokenizer, policy, prompts, settings):
    """`make(reward=..., data=..., value=..., model=..., tokenizer=..., **settings)`."""
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def build(reward=constant, data=None, value=None, model=None, tokenizer=None, **own):
        base = {"per_device_train_batch_size": 4, "response_length": 8, "total_updates": 1}
        parts = own.pop("parts", {})
        return StructuredPPOTrainer(
            args=settings(**{**base, **own}),
            processing_class=tokenizer or tiny_tokenizer,
            model=policy() if model is None else model,
            reward_model=reward,
            train_dataset=prompts if data is None else data,
            value_model=value,
            **parts,
        )

    return build


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"num_mini_batches": 3}, "num_mini_batches: must divide the 4"),
        ({"temperature": 0.0}, "temperature: must be above 0"),
        ({"kl_estimator": "k2"}, "kl_estimator: must be one of k1, k3"),
        ({"advantage_mode": "both"}, "advantage_mode: must be one of"),
        ({"gamma": 1.5}, "gamma: must lie in"),
        ({"stop_token_id": 4}, "stop_token, stop_token_id"),
        ({"stop_token": None, "stop_token_id": 9999}, "stop_token_id: must be one of"),
        ({"whiten_rewards": True}, "whiten_rewards: needs at least 8"),
        ({"response_length": 600}, "response_length: must leave room"),
        ({"response_length": 511}, "the prompt has"),
        ({"per_device_train_batch_size": 32}, "an update takes 32"),
        ({"max_prompt_length": 3}, "train_dataset, row 0: the prompt has"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_settings_that_cannot_work(make, own, words):
    with pytest.raises(HfGlmCurriculumError, match=words):
        make(**own)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda prompts, completions, **c: 1 / 0, "raised ZeroDivisionError"),
        (lambda prompts, completions: [1.0], "raised TypeError"),
        (
            lambda prompts, completions, **c: [float("nan")] * len(prompts),
            "must be a finite number",
        ),
        (lambda prompts, completions, **c: ["good"] * len(prompts), "must be a finite number"),
        (lambda prompts, completions, **c: None, "must return a list"),
        (lambda prompts, completions, **c: [1.0, 2.0, 3.0], "one number for each of 1"),
    ],
    ids=["raises", "signature", "nan", "text", "none", "length"],
)
def test_rewards_that_fail_are_found_before_the_first_rollout(make, reward, words, monkeypatch):
    trainer = make(reward)
    monkeypatch.setattr(trainer, "generate", lambda *a: pytest.fail("a rollout was begun"))
    with pytest.raises(DataError, match=words):
        trainer.train()


def test_a_reward_that_never_says_anything(make):
    with pytest.raises(DataError, match="says nothing of any answer"):
        make(lambda prompts, completions, **c: [None] * len(prompts)).train()


@pytest.mark.parametrize("reward", [None, 3, "name", [], [3]])
def test_what_is_no_reward(make, reward):
    with pytest.raises(ModelError, match="reward_model: must be"):
        make(reward)


def test_two_functions_of_one_name(make):
    with pytest.raises(ConfigError, match="two functions have one name"):
        make([constant, constant])


def test_value_model_of_another_width(make, classifier):
    with pytest.raises(ModelError, match="num_labels=1"):
        make(value=classifier(labels=3))


def test_value_model_of_another_vocabulary(make, classifier):
    with pytest.raises(ModelError, match="reads 100 token ids"):
        make(value=classifier(vocab=100))


def test_reward_model_of_another_tokenizer(make, classifier):
    with pytest.raises(IncompatibleError, match="reward_processing_class"):
        make(classifier(vocab=100))


def test_policy_that_is_frozen_or_no_policy(make, policy, classifier):
    with pytest.raises(ModelError, match="none of its parameters is trainable"):
        make(model=policy().requires_grad_(False))
    with pytest.raises(ModelError, match="causal language model"):
        make(model=classifier())
    model = policy()
    with pytest.raises(ModelError, match="is the policy itself"):
        make(model=model, parts={"ref_model": model})


def test_tokenizer_without_the_tokens_that_are_needed(make, tiny_tokenizer):
    tiny_tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="no EOS token"):
        make(tokenizer=tiny_tokenizer)
    tiny_tokenizer.pad_token = None
    with pytest.raises(IncompatibleError, match="no pad token"):
        make(tokenizer=tiny_tokenizer)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"answer": ["a"] * 8}, "has no prompts"),
        ({"prompt": [""] * 8}, "the prompt is empty"),
        ({"prompt": [3] * 8}, "prompt must be text or a list of messages"),
    ],
    ids=["column", "empty", "number"],
)
def test_prompts_that_are_none(make, data, words):
    with pytest.raises(DataError, match=words):
        make(data=datasets.Dataset.from_dict(data))


def test_streams_and_lists_are_no_datasets(make):
    with pytest.raises(DataError, match="map-style"):
        make(data=[{"prompt": "a"}] * 8)


def test_long_prompts_are_left_out_if_wished(make, caplog):
    one = make(max_prompt_length=5, long_prompts="drop")
    assert max(len(row["input_ids"]) for row in one.train_dataset) <= 5
    assert "left out" in caplog.text


def test_gate_on_a_reward_that_is_no_level(make):
    from hf_glm_curriculum.rewards.gate import RewardGate

    with pytest.raises(ConfigError, match="gate: reads levels"):
        make(parts={"gate": RewardGate()})


def test_checkpoints_that_are_none_partial_or_of_another_run(make, tmp_path):
    with pytest.raises(StateError, match="no whole PPO checkpoint"):
        make().train(resume_from_checkpoint=True)
    saving = {"save_strategy": "steps", "save_steps": 1}
    make(**saving).train()
    folder = tmp_path / "run" / "checkpoint-1"
    with pytest.raises(StateError, match="was written with rows 4, this run has 2"):
        make(per_device_train_batch_size=2).train(resume_from_checkpoint=str(folder))
    with pytest.raises(StateError, match=r"dimensions \['constant'\]"):
        make({"style": constant}).train(resume_from_checkpoint=str(folder))
    (folder / "trainer_state.json").unlink()
    with pytest.raises(StateError, match="no whole PPO checkpoint"):
        make().train(resume_from_checkpoint=str(folder))


def test_an_answer_never_ends(make, policy):
    """No EOS ever: answers have full length, the rate says 0, nothing breaks."""
    one = make(model=policy(eos=-50.0))
    one.train()
    assert one.state.log_history[0]["structured/eos_rate"] == 0
    assert all(torch.isfinite(p).all() for p in one.bare_model.parameters())
