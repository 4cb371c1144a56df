"""Configuration of a structured reward model, saved beside its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from transformers import AutoConfig, PretrainedConfig

from hf_glm_curriculum.errors import ConfigError

DEFAULT_DIMENSIONS = ("factual", "logic", "compliance")
POOLINGS = ("last", "cls", "mean")


class StructuredRewardConfig(PretrainedConfig):
    """Backbone, dimensions and sizes of a `StructuredRewardModel`.

    Args:
        backbone_config: of the backbone, as a config or its dictionary.
        dimensions: names of the dimensions, in the order of the columns of every output.
        pooling: "last" real token (decoders), "cls" (encoders) or "mean" of the real tokens.
        head_hidden_size: width of a dimension's head, Linear–width–ReLU–1.
        confidence_hidden_size: width of a dimension's confidence head.
        head_dropout: after the heads' ReLU, in training.
        max_tokens: tokens of prompt and response that fit; None takes the backbone's own limit.
        lora: settings of low-rank adapters inside the backbone, or None.
        gate_threshold: confidence from which a dimension counts, as the model card states it.
        calibration: figures of the training run a dimension, as the model card states them.
        training: what the model was trained on and how, as the model card states it.
    """

    model_type = "structured_reward"
    sub_configs = {"backbone_config": AutoConfig}  # noqa: RUF012  # pyright: ignore

    def __init__(
        self,
        backbone_config: PretrainedConfig | Mapping[str, Any] | None = None,
        dimensions: Sequence[str] = DEFAULT_DIMENSIONS,
        pooling: str = "last",
        head_hidden_size: int = 512,
        confidence_hidden_size: int = 64,
        head_dropout: float = 0.1,
        max_tokens: int | None = None,
        lora: Mapping[str, Any] | None = None,
        gate_threshold: float = 0.85,
        calibration: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check every value.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        # `max_length` is taken: transformers reads it as a setting of generation.
        self.backbone_config = _as_config(backbone_config)
        self.dimensions = check_dimensions(dimensions)
        self.pooling = pooling
        self.head_hidden_size = head_hidden_size
        self.confidence_hidden_size = confidence_hidden_size
        self.head_dropout = head_dropout
        self.max_tokens = max_tokens
        self.lora = None if lora is None else dict(lora)
        self.gate_threshold = gate_threshold
        self.calibration = dict(calibration or {})
        self.training = dict(training or {})
        kwargs.pop("num_labels", None)
        kwargs["id2label"] = dict(enumerate(self.dimensions))
        kwargs["label2id"] = {name: i for i, name in enumerate(self.dimensions)}
        super().__init__(**kwargs)
        self._check()

    @property
    def hidden_size(self) -> int:
        """Width of the backbone's hidden states."""
        return _width(self.backbone_config)

    def context_length(self) -> int | None:
        """Tokens that a prompt and its response may have together; None where nothing says."""
        own = getattr(self.backbone_config, "max_position_embeddings", None)
        known = [size for size in (self.max_tokens, own) if size]
        return min(known) if known else None

    def _check(self) -> None:
        """Refuse values that no model can be built from."""
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"pooling: must be one of {', '.join(POOLINGS)}; got {self.pooling!r}"
            )
        for name in ("head_hidden_size", "confidence_hidden_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.head_dropout < 1:
            raise ConfigError(f"head_dropout: must lie in [0, 1), got {self.head_dropout}")
        if not 0 <= self.gate_threshold <= 1:
            raise ConfigError(f"gate_threshold: must lie in [0, 1], got {self.gate_threshold}")
        if self.max_tokens is not None and self.max_tokens < 2:
            raise ConfigError(f"max_tokens: must be at least 2 tokens, got {self.max_tokens}")


def check_dimensions(dimensions: Sequence[str]) -> tuple[str, ...]:
    """The names as a tuple.

    Raises:
        ConfigError: There is none, one is repeated, or one cannot name a module.
    """
    names = (dimensions,) if isinstance(dimensions, str) else tuple(dimensions)
    if not names:
        raise ConfigError("dimensions: needs at least one name, got none")
    for name in names:
        if not isinstance(name, str) or not name.strip() or "." in name:
            raise ConfigError(f"dimensions: names are text without dots, got {name!r}")
        if hasattr(nn.ModuleDict, name):
            raise ConfigError(f"dimensions: {name!r} is a word torch needs; choose another name")
    if len(set(names)) < len(names):
        raise ConfigError(f"dimensions: a name stands twice in {list(names)}; keep it once")
    return names


def _as_config(given: PretrainedConfig | Mapping[str, Any] | None) -> PretrainedConfig:
    """The backbone's config; transformers builds a config without arguments to compare with."""
    if given is None:
        return AutoConfig.for_model("llama")
    if isinstance(given, PretrainedConfig):
        return given
    values = dict(given)
    kind = values.pop("model_type", None)
    if kind is None:
        raise ConfigError("backbone_config: lacks model_type; save the model again")
    return AutoConfig.for_model(kind, **values)


def _width(config: PretrainedConfig) -> int:
    """Width of the hidden states, whatever the config calls it."""
    for name in ("hidden_size", "n_embd", "d_model", "dim"):
        size = getattr(config.get_text_config(), name, None)
        if size:
            return int(size)
    raise ConfigError(
        f"backbone_config: {type(config).__name__} has no hidden_size; use a text model"
    )
