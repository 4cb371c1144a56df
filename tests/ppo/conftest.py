"""Small PPO runs over tiny random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from packaging.version import Version
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_glm_curriculum.optional import version_of

_TRL = version_of("trl")
# Without TRL's PPO these files cannot even be imported; test_host.py tells what happens then.
if _TRL is None or Version(_TRL) >= Version("1.13"):
    collect_ignore_glob = ["test_[!h]*.py"]

WORDS = ["cat", "dog sat", "a tree grows", "b", "seven birds sing", "no", "the sea", "old stones"]


def build_classifier(
    kind: str = "llama", labels: int = 1, seed: int = 3, vocab: int = 260, **sizes: Any
) -> Any:
    """A random sequence classifier over the tiny tokenizer."""
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocab,
        num_labels=labels,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=1,
        max_position_embeddings=512,
        **{
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 2,
            **({"head_dim": 8} if kind == "glm" else {}),
            **sizes,
        },
    )
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    # The heads' usual spread of 0.02 would give rewards that all look alike.
    torch.nn.init.normal_(model.score.weight, std=0.5)
    return model


def with_bias(model: Any, pad: float = -30.0, eos: float = 1.3) -> Any:
    """Give the output head a bias that makes answers end, and pad tokens (nearly) impossible."""
    old = model.get_output_embeddings()
    new = torch.nn.Linear(old.in_features, old.out_features, bias=True)
    with torch.no_grad():
        new.weight.copy_(old.weight)
        new.bias.zero_()
        new.bias[0], new.bias[1] = pad, eos
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(new)
    return model


@pytest.fixture
def policy(tiny_model) -> Callable[..., Any]:
    """`policy(kind="llama", pad=-30, eos=1.3, **config)`: a policy whose answers end."""

    def make(kind: str = "llama", pad: float = -30.0, eos: float = 1.3, **config: Any) -> Any:
        return with_bias(tiny_model(kind, **config), pad, eos)

    return make


@pytest.fixture
def classifier() -> Callable[..., Any]:
    """`classifier(kind="llama", labels=1, seed=3)`."""
    return build_classifier


@pytest.fixture
def prompts() -> datasets.Dataset:
    """Sixteen text prompts of unequal lengths, with a column for reward functions."""
    rows = [{"prompt": f"{w} {w[: i % 3]}", "target": i % 5} for i, w in enumerate(WORDS * 2)]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def settings(tmp_path) -> Callable[..., Any]:
    """`settings(**overrides)`: a StructuredPPOConfig of small, neutral settings."""
    from hf_glm_curriculum.ppo import StructuredPPOConfig

    def make(**overrides: Any) -> Any:
        fields = {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "num_ppo_epochs": 2,
            "response_length": 24,
            "total_updates": 3,
            "learning_rate": 1e-3,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "seed": 7,
        }
        return StructuredPPOConfig(**{**fields, **overrides})

    return make


@pytest.fixture
def seeded() -> Callable[[], None]:
    """`seeded()`: the random states a script has after `set_seed`."""

    def seed() -> None:
        torch.manual_seed(5)
        np.random.seed(5)

    return seed
