"""Settings of the position graph and of attention over it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from hf_glm_curriculum.errors import ConfigError

SPARSE_QUERY_BLOCK = 16
"""Queries that share one selection where it reads content, unless the config says otherwise."""


@dataclass
class PositionGraphConfig:
    """Which keys a query sees and how they are found; see ``docs/methods/attention.md``.

    Lengths are in tokens. Saved in the model's config by `enable_position_graph`.
    """

    block_size: int = 64
    """Positions in a block, the unit of selection; a power of two from 16 to 256."""

    top_k: int = 2048
    """Keys a query sees at most, its own block's and those always in among them."""

    selection: Literal["position", "content", "hybrid"] = "hybrid"
    """position: by the graph alone, the same for every layer and head: structural blocks first,
    the rest by distance. content: by the estimated attention mass of each block. hybrid: structural
    blocks first, the rest by content."""

    query_block: int | None = None
    """Neighbouring queries that share one selection; a divisor of block_size. Without it, the
    block size where the graph alone selects, and 16 where content does (fresher, and slower)."""

    window: int = 128
    """Distance up to which neighbours are linked in the graph and always seen."""

    sink_blocks: int = 1
    """Blocks at the start of a sequence that every query sees."""

    structural_share: float = 0.25
    """position and hybrid: share of the selectable blocks, rounded up, that what structure, turns
    and edges of your own tie to a query may take before any others."""

    per: Literal["kv_head", "layer"] = "kv_head"
    """Whether content chooses for each key-value head or for all heads of a layer at once."""

    share_layers: int = 1
    """Layers in a row that use the selection of the first of them (content and hybrid)."""

    summary_order: Literal[1, 2] = 2
    """Moments of a block's keys its mass is estimated from: means, or means and variances."""

    outliers: int = 2
    """Keys of a block, those farthest from its mean, that its mass is estimated from exactly."""

    probe: int = 4
    """Latest queries before a query block that choose its keys by content."""

    backend: Literal["auto", "reference", "gather", "flex", "flash"] = "auto"
    """What computes the attention; auto takes the fastest that can serve the call."""

    positions: Literal["original", "compact"] = "original"
    """compact: keys are re-rotated so that selected blocks stand next to each other, and no
    distance leaves the trained window (for sequences beyond the trained length)."""

    structure: tuple[str, ...] = ("markdown", "legal", "code")
    """Detectors of headings, clauses and definitions; empty for none. Needs a tokenizer."""

    turns: bool = True
    """Link the turns of a dialogue where the tokenizer's chat template shows in the text."""

    encoder: Literal["minhash", "gae", "bfs", "exact"] = "minhash"
    """How the neighbourhoods of two blocks are compared: by MinHash signatures, by vectors of a
    graph auto-encoder (extra ``gae``), by steps in the graph, or exactly."""

    num_perm: int = 128
    """Permutations of a MinHash signature."""

    minhash_scheme: Literal["affine32", "legacy"] = "affine32"
    """datasketch's hash scheme: the default of its release 2, or that of the releases before."""

    hops: int = 2
    """Steps in the graph that a block's neighbourhood reaches."""

    seed: int = 1
    """Of the MinHash permutations and the auto-encoder."""

    dynamic_budget: bool = False
    """Let the entropy of a query block's estimated attention choose among ``budgets``."""

    budgets: tuple[int, ...] = (1024, 2048, 3072)
    """Budgets in keys, growing, for attention from sharp to spread out."""

    budget_entropy: tuple[float, ...] = (0.55, 0.75)
    """Entropies, as shares of the largest possible one, between one budget and the next."""

    budget_hysteresis: float = 0.03
    """How far past a bound the entropy must be before the budget follows."""

    rules: dict[str, int] = field(default_factory=dict)
    """Regular expression → least budget in keys from the place on where it is found in the text.
    Needs a tokenizer."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: naming the field, the rule and the value.
        """
        self.structure = tuple(self.structure)
        self.budgets = tuple(self.budgets)
        self.budget_entropy = tuple(self.budget_entropy)
        _check_blocks(self)
        _check_choices(self)
        _check_budgets(self)
        _check_rules(self.rules, self.block_size)

    @property
    def tile(self) -> int:
        """Queries that share one selection."""
        if self.query_block is not None:
            return self.query_block
        if self.selection == "position":
            return self.block_size
        return min(SPARSE_QUERY_BLOCK, self.block_size)

    @property
    def always(self) -> int:
        """Blocks every query sees: the sink, the window behind it, its own."""
        return self.sink_blocks + self.window_blocks + 1

    @property
    def window_blocks(self) -> int:
        """Blocks that the window reaches back over."""
        return -(-self.window // self.block_size)

    @property
    def reads_content(self) -> bool:
        """Whether queries and keys are read to select."""
        return self.selection != "position" or self.dynamic_budget

    @property
    def reads_text(self) -> bool:
        """Whether token ids are read to select."""
        return self.selection != "content" or bool(self.rules)

    @property
    def smallest_budget(self) -> int:
        """Blocks in the least budget a tile may get; tiles with fewer before them see them all."""
        return self.blocks(self.budgets[0] if self.dynamic_budget else self.top_k)

    def blocks(self, keys: int) -> int:
        """Blocks in a budget of so many keys."""
        return keys // self.block_size


def _check_blocks(config: PositionGraphConfig) -> None:
    size = config.block_size
    if size not in (16, 32, 64, 128, 256):
        raise ConfigError(f"block_size: must be 16, 32, 64, 128 or 256, got {size}.")
    if config.window < 0:
        raise ConfigError(f"window: must be at least 0 tokens, got {config.window}.")
    if config.sink_blocks < 0:
        raise ConfigError(f"sink_blocks: must be at least 0, got {config.sink_blocks}.")
    if config.query_block is not None and (config.query_block < 1 or size % config.query_block):
        raise ConfigError(
            f"query_block: must divide block_size = {size}, got {config.query_block}."
        )
    if not 0 <= config.outliers < size - 1:
        raise ConfigError(
            f"outliers: must be at least 0 and leave two keys of block_size = {size}, got "
            f"{config.outliers}."
        )
    _check_budget("top_k", config.top_k, size)


def _check_budget(name: str, keys: int, block_size: int) -> None:
    if keys < block_size:
        raise ConfigError(
            f"{name}: must hold at least one block of {block_size} keys, got {keys}; raise it or "
            "lower block_size."
        )


def _check_choices(config: PositionGraphConfig) -> None:
    choices = {
        "selection": ("position", "content", "hybrid"),
        "per": ("kv_head", "layer"),
        "summary_order": (1, 2),
        "backend": ("auto", "reference", "gather", "flex", "flash"),
        "positions": ("original", "compact"),
        "encoder": ("minhash", "gae", "bfs", "exact"),
        "minhash_scheme": ("affine32", "legacy"),
    }
    for name, allowed in choices.items():
        value = getattr(config, name)
        if value not in allowed:
            listed = ", ".join(str(choice) for choice in allowed)
            raise ConfigError(f"{name}: must be one of {listed}, got {value!r}.")
    for name in ("share_layers", "probe", "num_perm", "hops"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name}: must be at least 1, got {getattr(config, name)}.")
    if not 0.0 <= config.structural_share <= 1.0:
        raise ConfigError(
            f"structural_share: must be at least 0 and at most 1, got {config.structural_share}."
        )


def _check_budgets(config: PositionGraphConfig) -> None:
    budgets, bounds = config.budgets, config.budget_entropy
    for keys in budgets:
        _check_budget("budgets", keys, config.block_size)
    if list(budgets) != sorted(set(budgets)) or not budgets:
        raise ConfigError(f"budgets: must grow from one to the next, got {list(budgets)}.")
    if len(bounds) != len(budgets) - 1 or list(bounds) != sorted(bounds):
        raise ConfigError(
            f"budget_entropy: must hold {len(budgets) - 1} growing bounds, one between each two "
            f"budgets, got {list(bounds)}."
        )
    if config.budget_hysteresis < 0:
        raise ConfigError(f"budget_hysteresis: must be at least 0, got {config.budget_hysteresis}.")


def _check_rules(rules: dict[str, int], block_size: int) -> None:
    for pattern, keys in rules.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"rules: {pattern!r} must be a regular expression: {error}."
            ) from error
        _check_budget(f"rules[{pattern!r}]", keys, block_size)
