"""Features on disk: computed once, keyed by weights and tokens, safe to interrupt."""

from __future__ import annotations

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.rewards import features as module
from hf_glm_curriculum.rewards.features import pooled_features

PROMPTS = [f"question {n}" for n in range(7)]
RESPONSES = ["answer " * (n % 3 + 1) for n in range(7)]


@pytest.fixture
def model(tiny_llama, tiny_tokenizer):
    return StructuredRewardModel.from_backbone(tiny_llama, tiny_tokenizer, head_hidden_size=8)


@pytest.fixture
def passes(model, monkeypatch):
    """How many texts went through the backbone."""
    seen = []
    inner = model.pooled
    monkeypatch.setattr(
        model, "pooled", lambda r, rows, *a, **k: seen.extend(rows) or inner(r, rows, *a, **k)
    )
    return seen


def test_features_are_those_of_the_model_whatever_the_batches(model, tmp_path):
    found = pooled_features(model, PROMPTS, RESPONSES, tmp_path, batch_size=3)
    for row, (prompt, response) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        renderer = model.renderer()
        tokens = renderer.pad(renderer.encode([prompt], [response]))
        torch.testing.assert_close(found[row], model.features(**tokens.tensors())[0])


def test_the_second_time_they_are_read(model, passes, tmp_path):
    first = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    assert len(passes) == 7
    again = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    assert len(passes) == 7 and torch.equal(first, again)


def test_other_weights_or_texts_are_computed_anew(model, passes, tmp_path):
    first = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    pooled_features(model, PROMPTS, [*RESPONSES[:-1], "another"], tmp_path)
    assert len(passes) == 14
    with torch.no_grad():
        next(model.backbone.parameters()).add_(0.1)
    other = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    assert len(passes) == 21 and not torch.allclose(first, other)


def test_a_killed_run_goes_on_after_its_last_shard(model, passes, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SHARD", 3)
    whole = pooled_features(model, PROMPTS, RESPONSES)
    passes.clear()
    written = []
    save = module.save_tensors

    def die_at_the_second(path, tensors):
        if written:
            raise KeyboardInterrupt
        written.append(path)
        save(path, tensors)

    monkeypatch.setattr(module, "save_tensors", die_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    monkeypatch.setattr(module, "save_tensors", save)
    passes.clear()
    again = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    assert len(passes) == 4 and torch.equal(again, whole)


def test_a_damaged_shard_is_computed_again(model, tmp_path, caplog):
    whole = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    shard = next(tmp_path.rglob("shard-00000.safetensors"))
    shard.write_bytes(shard.read_bytes()[:40])
    again = pooled_features(model, PROMPTS, RESPONSES, tmp_path)
    assert torch.equal(again, whole)
    assert "damaged" in caplog.text
