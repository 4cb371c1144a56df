"""Small models, problems and selections that the attention tests share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.attention.backends.base import AttentionProblem
from hf_glm_curriculum.attention.layout import BlockLayout, Sequence, block_layout
from hf_glm_curriculum.attention.selection import BlockSelection, budget_counts, choose_numbers

MODELS = ("llama", "qwen3", "glm", "glm4", "glm4_moe", "gpt2")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny(kind: str, seed: int = 0, **changes: object) -> torch.nn.Module:
    """A tiny random model whose attention matters: its matrices are larger than usual."""
    import transformers as hf

    torch.manual_seed(seed)
    sizes = SIZES | changes
    if kind == "llama":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))
    elif kind == "qwen3":
        model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**sizes, head_dim=8))
    elif kind == "glm":
        model = hf.GlmForCausalLM(hf.GlmConfig(**sizes, head_dim=8))
    elif kind == "glm4":
        model = hf.Glm4ForCausalLM(hf.Glm4Config(**sizes, head_dim=8))
    elif kind == "glm4_moe":
        config = hf.Glm4MoeConfig(
            **sizes,
            head_dim=8,
            moe_intermediate_size=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
        )
        model = hf.Glm4MoeForCausalLM(config)
    else:
        config = hf.GPT2Config(
            vocab_size=97, n_embd=48, n_layer=2, n_head=6, n_positions=1024, eos_token_id=2
        )
        model = hf.GPT2LMHeadModel(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(6)
    return model.eval()


def token_ids(rows: int, length: int, seed: int = 1) -> Tensor:
    """Random ids without special tokens."""
    return torch.randint(3, 97, (rows, length), generator=torch.Generator().manual_seed(seed))


def sequences_of(mask: Tensor | None, rows: int, length: int) -> list[Sequence]:
    """One sequence a row, of the tokens under the mask."""
    real = np.ones((rows, length)) if mask is None else mask.numpy()
    return [Sequence(row, np.flatnonzero(real[row])) for row in range(rows) if real[row].any()]


def select_all(layout: BlockLayout) -> BlockSelection:
    """Every block before the own one: dense causal attention."""
    counts = layout.own_number
    place = np.arange(int(counts.max(initial=0)))[None]
    blocks = layout.first_block[layout.tile_sequence][:, None] + place
    blocks = np.where(place < counts[:, None], blocks, -1)
    return BlockSelection(torch.from_numpy(blocks)[None], counts)


def random_selection(layout: BlockLayout, groups: int, budget: int, seed: int) -> BlockSelection:
    """Random blocks before each tile's own, ``budget`` with the own one."""
    scores = torch.rand(
        groups,
        layout.tiles,
        max(1, int(layout.own_number.max())),
        generator=torch.Generator().manual_seed(seed),
    )
    before = layout.own_number
    counts = budget_counts(budget, before)
    none = torch.empty(layout.tiles, 0, dtype=torch.int64)
    numbers = choose_numbers(scores, none, counts, before)
    first = torch.from_numpy(layout.first_block[layout.tile_sequence])[None, :, None]
    return BlockSelection(torch.where(numbers < 0, -1, numbers + first), counts)


def problem_of(
    rows: int,
    keys: int,
    queries: int,
    *,
    groups: int = 1,
    budget: int = 4,
    block: int = 16,
    tile: int = 16,
    mask: Tensor | None = None,
    sequences: list[Sequence] | None = None,
    head_size: int = 64,
    seed: int = 0,
    **more: object,
) -> AttentionProblem:
    """A problem with a random selection."""
    sequences = sequences or sequences_of(mask, rows, keys)
    layout = block_layout(sequences, rows, keys, queries, block, tile)
    selection = random_selection(layout, groups, budget, seed)
    return AttentionProblem(layout, selection, head_size**-0.5, **more)  # type: ignore[arg-type]


def heads(
    rows: int, queries: int, keys: int, kinds: tuple[int, int], size: int, dtype: torch.dtype
) -> list[Tensor]:
    """Random query, key and value that ask for gradients."""
    chance = torch.Generator().manual_seed(5)
    shapes = ((rows, kinds[0], queries, size), *[(rows, kinds[1], keys, size)] * 2)
    made = [torch.randn(shape, generator=chance, dtype=torch.float32) for shape in shapes]
    return [tensor.to(dtype).requires_grad_() for tensor in made]
