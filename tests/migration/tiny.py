"""Tiny models of every family, in full double precision, and the two-backward oracle."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, Glm5NextForConditionalGeneration

from hf_glm_curriculum.migration.schedule import INSTRUCTION, PRETRAIN
from tests.conftest import build_model

FAMILIES = ("llama", "qwen3", "glm", "glm4", "glm4_moe", "glm_moe_dsa", "glm5_next", "gpt2")
PACKED = tuple(kind for kind in FAMILIES if kind != "glm5_next")
"""Families whose attention keeps packed samples apart."""

_MLA = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "v_head_dim": 8,
    "qk_nope_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


class StayDouble(TorchFunctionMode):
    """Keeps models that compute norms, routers or softmax in float32 in float64 throughout."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def swap(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        kwargs = {name: swap(value) for name, value in (kwargs or {}).items()}
        return func(*[swap(value) for value in args], **kwargs)


def backward(loss: Tensor) -> None:
    """``loss.backward()`` that stays in StayDouble, so that checkpoints recompute in it too."""
    _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), True, True)


def family(kind: str, tied: bool, seed: int = 0) -> nn.Module:
    """A random model of 3 blocks in training mode."""
    torch.manual_seed(seed)
    if kind == "glm_moe_dsa":
        # Fewer keys than tokens, so that its indexer has something to choose.
        config = AutoConfig.for_model(
            kind, **_MLA, qk_rope_head_dim=8, index_topk=4, tie_word_embeddings=tied
        )
        from transformers import GlmMoeDsaForCausalLM

        model = GlmMoeDsaForCausalLM(config)
    elif kind == "glm5_next":
        model = Glm5NextForConditionalGeneration(_glm5_next(tied))
    else:
        model = build_model(kind, seed, num_hidden_layers=3, tie_word_embeddings=tied)
    if "moe" in kind or kind == "glm5_next":
        model.set_experts_implementation("eager")  # the grouped one knows no float64
    return model.train()


def _glm5_next(tied: bool) -> Any:
    text = {
        **_MLA,
        "qk_rope_head_dim": 0,
        "index_topk": 4,
        "index_kpool": 2,
        "linear_head_dim": 8,
        "linear_num_heads": 2,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 3,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
        "tie_word_embeddings": tied,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "out_hidden_size": 32,
        "intermediate_size": 16,
        "projection_intermediate_size": 16,
    }
    return AutoConfig.for_model(
        "glm5_next", text_config=text, vision_config=vision, tie_word_embeddings=tied
    )


def untied_copy(model: nn.Module, kind: str) -> nn.Module:
    """The same function with an output matrix of its own."""
    twin = family(kind, tied=False)
    twin.load_state_dict(model.state_dict())
    return twin


def layer_of(name: str, blocks: int) -> int:
    """The layer of a parameter, by its name."""
    found = re.search(r"\.(?:layers|h)\.(\d+)\.", name)
    if found:
        return int(found[1]) + 1
    if "lm_head" in name or re.search(r"(?:^|\.)(?:norm|ln_f)\.", name):
        return blocks + 1
    assert re.search(r"embed_tokens|wte|wpe|rotary", name), name
    return 0


def random_batch(rows: int = 4, width: int = 9, seed: int = 1) -> dict[str, Tensor]:
    """Rows of unequal length, padded on the right, with a masked prompt."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 260, (rows, width), generator=generator)
    lengths = torch.randint(width // 2 + 2, width + 1, (rows, 1), generator=generator)
    place = torch.arange(width)
    mask = (place < lengths).long()
    labels = torch.where((mask == 1) & (place >= 2), tokens, -100)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def packed_batch(lengths: tuple[int, ...] = (6, 4, 7), seed: int = 2) -> dict[str, Tensor]:
    """One row that holds several samples, the first label of each masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 260, (1, sum(lengths)), generator=generator)
    position = torch.cat([torch.arange(length) for length in lengths])[None]
    labels = torch.where(position > 0, tokens, -100)
    return {"input_ids": tokens, "position_ids": position, "labels": labels}


def token_losses(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each label, [B, T − 1], in the model's own precision, and its mask."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    losses = nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, reduction="none", ignore_index=-100
    )
    return losses, labels >= 0


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter's gradient, by name."""
    named = model.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


def combined(
    model: nn.Module,
    batches: list[dict[str, Tensor]],
    objectives: list[Tensor],
    weights: Tensor,
) -> dict[str, Tensor]:
    """The oracle: a backward per objective, added up with each layer's weights.

    Args:
        model: without gates; untied, so that every parameter lies in one layer.
        batches: micro-batches.
        objectives: [B, T − 1] objective of each label of each micro-batch.
        weights: [2, L + 2].
    """
    total: dict[str, Tensor] = {}
    for objective in (PRETRAIN, INSTRUCTION):
        model.zero_grad()
        for batch, of in zip(batches, objectives, strict=True):
            losses, _ = token_losses(model, batch)
            backward((losses * (of == objective)).sum())
        for name, gradient in gradients(model).items():
            weight = weights[objective, layer_of(name, weights.shape[1] - 2)]
            total[name] = total.get(name, 0.0) + weight * gradient
    model.zero_grad()
    return total


def assert_same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Every gradient agrees, relative to its norm."""
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for name, value in theirs.items():
        error = (ours[name] - value).norm() / value.norm().clamp(min=1e-300)
        assert error <= tolerance, f"{name}: {error:.2e}"


def tied_sum(oracle: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Add an untied copy's two shares where ``model`` has one matrix for both."""
    own = {name for name, _ in model.named_parameters()}
    head = next(name for name in oracle if name not in own)
    embedding = next(name for name in oracle if re.search(r"embed_tokens|wte", name))
    return {n: g + oracle[head] if n == embedding else g for n, g in oracle.items() if n != head}
