"""LoRA policies: the reference is the policy without its adapter, the critic sits on its trunk."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.ppo
peft = pytest.importorskip("peft")


@pytest.fixture
def trainer(tiny_tokenizer, policy, prompts, settings, seeded):
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    def make(**own):
        base = {"per_device_train_batch_size": 4, "response_length": 8, "learning_rate": 0.01}
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        torch.manual_seed(0)
        model = peft.get_peft_model(policy(), config)
        seeded()
        return StructuredPPOTrainer(
            args=settings(**{**base, **own}),
            processing_class=tiny_tokenizer,
            model=model,
            reward_model=lambda prompts, completions, **c: [0.1 * len(x) for x in completions],
            train_dataset=prompts,
        )

    return make


def test_reference_is_the_adapter_switched_off(trainer):
    one = trainer()
    before = {
        n: p.detach().clone() for n, p in one.bare_model.named_parameters() if not p.requires_grad
    }
    one.train()
    kl = [entry["objective/kl"] for entry in one.state.log_history if "objective/kl" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert abs(kl[-1]) > 1e-4
    after = dict(one.bare_model.named_parameters())
    assert before and all(torch.equal(after[n], p) for n, p in before.items())
    assert one.ref_model is None
    assert one.bare_model.shares_trunk
    assert after["value_model.score.weight"].any()


def test_resume_equals_straight(trainer, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "total_updates": 3}
    first = trainer(**saving)
    first.train()
    again = trainer(**saving)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    one, other = (dict(t.bare_model.named_parameters()) for t in (first, again))
    assert max(float((one[n] - other[n]).detach().abs().max()) for n in one) == 0


def test_adapter_alone_is_saved(trainer, tmp_path):
    one = trainer(total_updates=1)
    one.train()
    one.save_model(str(tmp_path / "model"))
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names


def test_prompt_learning_is_refused(policy, tiny_tokenizer, prompts, settings):
    from hf_glm_curriculum.errors import IncompatibleError
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(IncompatibleError, match="use LoRA"):
        StructuredPPOTrainer(
            args=settings(),
            processing_class=tiny_tokenizer,
            model=peft.get_peft_model(policy(), config),
            reward_model=lambda prompts, completions, **c: [1.0] * len(prompts),
            train_dataset=prompts,
        )
