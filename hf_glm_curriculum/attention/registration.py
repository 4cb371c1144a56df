"""Switching a model's attention to the position graph, and back."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from hf_glm_curriculum.attention.backends.base import call_of
from hf_glm_curriculum.attention.backends.choice import choose_backend
from hf_glm_curriculum.attention.config import PositionGraphConfig
from hf_glm_curriculum.attention.decoding import cached_state, check_room, keep_state
from hf_glm_curriculum.attention.graph import PositionGraph
from hf_glm_curriculum.attention.plan import (
    ForwardPlan,
    extended_state,
    given_graphs,
    read_call,
)
from hf_glm_curriculum.attention.rotary import key_shift
from hf_glm_curriculum.attention.selector import Selector
from hf_glm_curriculum.config import load_config, to_dict
from hf_glm_curriculum.errors import ConfigError, IncompatibleError
from hf_glm_curriculum.models import backbone, causal_lm, decoder_layers

logger = logging.getLogger(__name__)

IMPLEMENTATION = "position_graph"
"""Name of the attention implementation in transformers' interface."""

FIELD = "position_graph"
"""Field of a model's config that holds the settings."""

PLAN = "position_graph_plan"
"""Keyword argument that the plan of a forward pass travels in."""

OWN_ATTENTION = ("glm_moe_dsa", "glm5_next", "deepseek_v32", "minimax", "qwen3_next")
"""Model types whose attention is sparse, linear or latent in its own way."""

TESTED = ("llama", "qwen3", "glm", "glm4", "glm4_moe", "gpt2")
"""Model types that this is tested with."""


class PositionGraphHandle:
    """An enabled model's switchboard, returned by `enable_position_graph`.

    Attributes:
        config: the settings.
        tokenizer: what texts are read with; None without one.
        selector: chooses the blocks.
        last_plan: the latest forward pass, for those who look at its selections.
    """

    def __init__(
        self, model: nn.Module, config: PositionGraphConfig, tokenizer: Any, previous: str
    ) -> None:
        """Take what belongs to an enabled model; made by `enable_position_graph`."""
        self.config, self.tokenizer, self.previous = config, tokenizer, previous
        self.last_plan: ForwardPlan | None = None
        self.selector = Selector(config, tokenizer)
        self._graphs: list[PositionGraph] | None = None
        self._cache_default = bool(getattr(model.config, "use_cache", False))
        self._backbone = backbone(model)
        layers = decoder_layers(model)
        self._shift = None
        if config.positions == "compact":
            self._shift = key_shift(self._backbone, _attention_modules(layers)[0])
        self._signature = inspect.signature(type(self._backbone).forward)
        self._hooks = [
            self._backbone.register_forward_pre_hook(self._before, with_kwargs=True),
            self._backbone.register_forward_hook(self._after, with_kwargs=True),
        ]

    @contextmanager
    def graphs(self, graphs: Iterable[PositionGraph]) -> Iterator[None]:
        """Use graphs made beforehand, one a sequence, in forward passes that begin a text.

        For edges of your own: ``PositionGraph.from_token_ids(ids, edges=[(later, earlier)])``.
        """
        self._graphs = list(graphs)
        try:
            yield
        finally:
            self._graphs = None

    def report(self) -> dict[str, float]:
        """What the latest forward pass selected: means over layers and choosing tiles.

        Returns:
            ``choosing_share`` of tiles that had to choose, ``keys`` a choosing query sees,
            ``kept_share`` of the keys before a query, on average, and ``entropy`` of the estimated
            attention where content was read; empty before the first pass.
        """
        plan = self.last_plan
        return {} if plan is None else plan.report()

    def remove(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = self._signature.bind(module, *args, **kwargs)
        arguments = dict(bound.arguments)
        arguments.update(arguments.pop("kwargs", {}))
        cache = arguments.get("cache", arguments.get("past_key_values"))
        past = 0 if cache is None else int(cache.get_seq_length())
        call = read_call(arguments, past)
        check_room(cache, call.past + call.ids.shape[1])
        state = extended_state(cached_state(cache) if past else None, call, self.config)
        if self._graphs is not None and not past:
            given_graphs(state, self._graphs, self.config)
        keep = cache is not None or self._caches(arguments)
        plan = ForwardPlan(self.selector, state, call.ids.shape[1], keep, self._shift)
        self.last_plan = plan
        return args, {**kwargs, PLAN: plan}

    def _caches(self, arguments: dict[str, Any]) -> bool:
        """Whether the model will make a cache of its own."""
        asked = arguments.get("use_cache")
        asked = self._cache_default if asked is None else asked
        return bool(asked) and not torch.is_grad_enabled()

    def _after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        plan = kwargs.get(PLAN) or self.last_plan
        cache = getattr(output, "past_key_values", None) or getattr(output, "cache", None)
        if plan is None or not plan.keep or cache is None:
            return
        plan.state.forget_all_but_active()
        keep_state(cache, plan.state)


def position_graph_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls in each attention layer.

    Args:
        module: the attention layer.
        query: [B, H, Q, d], rotated.
        key: [B, K, N, d], with the cache's.
        value: [B, K, N, d].
        attention_mask: the padding mask, which the plan has read already.
        dropout: share of attention weights dropped.
        scaling: factor on the scores; 1/√d if None.
        **kwargs: what the model passes on, the plan among it.

    Returns:
        Output [B, Q, H, d], and no attention weights.

    Raises:
        IncompatibleError: in a layer whose attention is not over the whole text, in a model that
            was not enabled, or where no backend serves.
    """
    plan: ForwardPlan | None = kwargs.get(PLAN)
    if plan is None:
        raise IncompatibleError(
            f"{type(module).__name__} was called without a plan; call "
            "enable_position_graph(model, config), and the model itself, not its layers."
        )
    if kwargs.get("sliding_window") is not None:
        raise IncompatibleError(
            f"{type(module).__name__} has a sliding window; position-graph attention serves layers "
            "that attend to the whole text."
        )
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    problem = plan.problem(_layer_number(module), query, key, factor, dropout)
    backend = choose_backend(plan.config.backend, call_of(query, key, value, problem))
    plan.served[backend.name] = plan.served.get(backend.name, 0) + 1
    return backend(query, key, value, problem), None


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """What transformers calls to make a mask: the padding mask as it is.

    Causality and samples come from the plan; None never drops them.

    Raises:
        IncompatibleError: if the model overlays a mask of its own.
    """
    if use_vmap:
        raise IncompatibleError(
            "attention_mask: this model overlays a mask function of its own, which position-graph "
            "attention cannot follow; disable_position_graph(model)."
        )
    return attention_mask


AttentionInterface.register(IMPLEMENTATION, position_graph_attention)
AttentionMaskInterface.register(IMPLEMENTATION, padding_mask)


def enable_position_graph(
    model: nn.Module,
    config: PositionGraphConfig | dict[str, Any] | str | Path | None = None,
    tokenizer: Any = None,
) -> PositionGraphHandle:
    """Let a causal language model attend to the keys that the position graph selects.

    Works in training, prefill and decoding, wrapped or not (PEFT, DDP, torch.compile's wrapper).
    The settings are saved in the model's config. Enabling again replaces them.

    Args:
        model: a causal language model with rotary or learned positions.
        config: settings, a mapping of them, or a YAML file; the model's own saved ones, else the
            defaults, if None.
        tokenizer: reads structure, turns and rules from the text; without one the graph knows the
            window and the text's start.

    Returns:
        The handle: graphs of your own, reports.

    Raises:
        IncompatibleError: the model has attention of its own, sliding windows, or (compact
            positions) no rotary embedding.
        ConfigError: the settings break a rule.
        ModelError: it is no causal language model.
    """
    inner = causal_lm(model)
    settings = _settings(inner, config)
    if settings.rules and tokenizer is None:
        raise ConfigError("rules: need a tokenizer to read the text with; pass tokenizer=.")
    check_model(inner)
    if hasattr(inner, "_position_graph"):
        disable_position_graph(inner)
    previous = str(inner.config._attn_implementation or "sdpa")
    handle = PositionGraphHandle(inner, settings, tokenizer, previous)
    inner.set_attn_implementation(IMPLEMENTATION)
    object.__setattr__(inner, "_position_graph", handle)
    setattr(inner.config, FIELD, to_dict(settings))
    return handle


def disable_position_graph(model: nn.Module) -> None:
    """Give a model its former attention back and forget the settings; nothing if not enabled.

    Raises:
        ModelError: it is no causal language model.
    """
    inner = causal_lm(model)
    handle: PositionGraphHandle | None = inner.__dict__.pop("_position_graph", None)
    if handle is None:
        return
    handle.remove()
    inner.set_attn_implementation(handle.previous)
    if hasattr(inner.config, FIELD):
        delattr(inner.config, FIELD)


def position_graph_of(model: nn.Module) -> PositionGraphHandle | None:
    """The handle of an enabled model, None if it is not enabled."""
    return causal_lm(model).__dict__.get("_position_graph")


def check_model(model: nn.Module) -> None:
    """Refuse models that attend in a way of their own.

    Raises:
        IncompatibleError: naming the model and what is in the way.
    """
    config: Any = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kind = text.model_type
    if kind in OWN_ATTENTION or hasattr(text, "index_topk"):
        raise IncompatibleError(
            f"position-graph attention cannot replace that of {kind}, which is sparse in a way of "
            "its own; lifespan, migration and rewards work on it."
        )
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    if kinds:
        raise IncompatibleError(
            f"position-graph attention needs every layer to attend to the whole text, and {kind} "
            f"has layers of {', '.join(sorted(kinds))}."
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise IncompatibleError(
            f"{type(model).__name__} does not take its attention from transformers' interface; "
            "use an architecture that does, such as Llama, Qwen3 or GLM."
        )
    if kind not in TESTED:
        logger.warning(
            "hf_glm_curriculum: position-graph attention is tested with %s, not with %s.",
            ", ".join(TESTED),
            kind,
        )


def _settings(model: Any, config: Any) -> PositionGraphConfig:
    if config is None:
        config = getattr(model.config, FIELD, None) or {}
    if isinstance(config, PositionGraphConfig):
        return dataclasses.replace(config)
    if isinstance(config, str | Path):
        return load_config(PositionGraphConfig, config)
    return load_config(PositionGraphConfig, None, config)


def _attention_modules(layers: nn.ModuleList) -> list[nn.Module]:
    found = [
        module
        for layer in layers
        for name, module in layer.named_children()
        if name in ("self_attn", "attn", "attention")
    ]
    if len(found) != len(layers):
        raise IncompatibleError(
            "position-graph attention needs one attention module in each layer, called self_attn, "
            f"attn or attention; found {len(found)} in {len(layers)} layers."
        )
    return found


def _layer_number(module: nn.Module) -> int:
    return int(getattr(module, "layer_idx", 0) or 0)
