"""`StructuredRewardModel`: a backbone, a score and a confidence for every dimension.

Shapes: B responses, T tokens, H the backbone's width, D dimensions.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from hf_glm_curriculum.config_types import nearest
from hf_glm_curriculum.errors import ConfigError, DataError, ModelError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.rewards import backbones
from hf_glm_curriculum.rewards.card import write_card
from hf_glm_curriculum.rewards.config import DEFAULT_DIMENSIONS, StructuredRewardConfig
from hf_glm_curriculum.rewards.heads import ConfidenceHeads, RewardHeads
from hf_glm_curriculum.rewards.hub import upload
from hf_glm_curriculum.rewards.output import StructuredRewardOutput
from hf_glm_curriculum.rewards.pooling import pool, to_the_left
from hf_glm_curriculum.rewards.rendering import TextRenderer

logger = logging.getLogger(__name__)

_HEADS = ("score", "confidence_heads")


class StructuredRewardModel(PreTrainedModel):
    """Scores responses in named dimensions, with a calibrated confidence for each.

    The backbone is frozen unless `open_backbone` says otherwise. Structured reward decomposition,
    article 1, §2.1 and §3.3; pooled at the last real token where the article takes the first, and
    with independent confidences where it divides one among the dimensions.

    Attributes:
        tokenizer: reads prompts and responses in `score_texts`; None if there is none.
    """

    config_class = StructuredRewardConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict = set(_HEADS)  # noqa: RUF012 - the name transformers reads

    def __init__(self, config: StructuredRewardConfig, backbone: nn.Module | None = None) -> None:
        """Build from a config; `backbone` is taken as it is where one is given."""
        super().__init__(config)
        width, names = config.hidden_size, config.dimensions
        made = backbone is None
        self.backbone = AutoModel.from_config(config.backbone_config) if made else backbone
        if made and config.lora:
            backbones.add_lora(self.backbone, config.lora)
        elif made:
            self.backbone.requires_grad_(False)
        self.score = RewardHeads(width, names, config.head_hidden_size, config.head_dropout)
        self.confidence_heads = ConfidenceHeads(width, names, config.confidence_hidden_size)
        self.tokenizer: Any = None
        if made:
            self.post_init()

    @classmethod
    def from_backbone(
        cls,
        name_or_model: Any,
        tokenizer: Any = None,
        dimensions: Sequence[str] = DEFAULT_DIMENSIONS,
        *,
        pooling: str | None = None,
        dtype: Any = "auto",
        device_map: Any = None,
        **settings: Any,
    ) -> StructuredRewardModel:
        """Put fresh heads on a backbone, which is frozen.

        Args:
            name_or_model: "embedded", "embedded_encoder", a folder, a hub id, or a model (with or
                without its language-model head, PEFT-wrapped too). A model is used as it is, not
                copied, and frozen in place.
            tokenizer: for `score_texts`; None takes the one that belongs to a name.
            dimensions: names of the dimensions.
            pooling: "last", "cls" or "mean"; None takes [CLS] for encoders, else the last token.
            dtype: of a backbone loaded by name; the heads stay float32.
            device_map: of a backbone loaded by name, as transformers takes it.
            settings: other fields of `StructuredRewardConfig`.

        Raises:
            ModelError: The backbone cannot be loaded or is of a kind that cannot be scored with.
            ConfigError: A setting is out of range.
        """
        if isinstance(name_or_model, (str, os.PathLike)):
            model, own = backbones.load_backbone(name_or_model, dtype, device_map)
            tokenizer = tokenizer or own
            settings.setdefault("training", {"backbone": os.fspath(name_or_model)})
        else:
            model = name_or_model
        backbone = backbones.backbone_of(model)
        pooling = pooling or backbones.default_pooling(backbone.config)
        config = StructuredRewardConfig(
            # A copy: transformers writes its choice of attention into the configs of parts.
            backbone_config=copy.deepcopy(backbone.config),  # pyright: ignore
            dimensions=dimensions,
            pooling=pooling,
            **settings,
        )
        found = cls(config, backbone.requires_grad_(False))
        device = next(backbone.parameters()).device
        found.score.to(device)
        found.confidence_heads.to(device)
        found.tokenizer = tokenizer
        return found.eval()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model and its tokenizer; every other argument is transformers' own.

        Raises:
            ModelError: A head is missing or has another name, a weight has another shape, or the
                folder holds no such model.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        tokenizer = kwargs.pop("tokenizer", None)
        try:
            loaded: Any = super().from_pretrained(
                pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs
            )
            model, info = loaded
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"cannot load the reward model {str(pretrained_model_name_or_path)!r} ({reason}); "
                "name a folder written by save_pretrained"
            ) from error
        _check_loaded(model, info, pretrained_model_name_or_path)
        # Loading puts new parameters in place of those that were frozen.
        for name, parameter in model.backbone.named_parameters():
            parameter.requires_grad_(bool(model.config.lora) and "lora_" in name)
        model.tokenizer = tokenizer or backbones.saved_tokenizer(pretrained_model_name_or_path)
        return (model, info) if wants_info else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write weights, config, tokenizer and model card into a folder."""
        super().save_pretrained(save_directory, *args, **kwargs)
        if kwargs.get("is_main_process", True):
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(save_directory)
            write_card(self, save_directory)

    # -- what is trained -------------------------------------------------------------------------

    def open_backbone(
        self, how: str = "lora", *, last_k: int = 2, lora: Mapping[str, Any] | None = None
    ) -> None:
        """Choose which of the backbone's weights train beside the heads.

        Args:
            how: "frozen", "lora" (fresh adapters), "last_k" (the last blocks) or "full".
            last_k: how many blocks "last_k" opens.
            lora: settings of the adapters, by `peft.LoraConfig`'s names.

        Raises:
            ConfigError: `how` is unknown, or there are not so many blocks.
            MissingDependencyError: "lora" without peft.
        """
        if how == "frozen":
            self.backbone.requires_grad_(False)
        elif how == "full":
            self.backbone.requires_grad_(True)
        elif how == "last_k":
            backbones.open_last_layers(self.backbone, last_k)
        elif how == "lora":
            settings = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, **(lora or {})}
            backbones.add_lora(self.backbone, settings)
            self.config.lora = settings
        else:
            raise ConfigError(f"backbone: {how!r} is no mode; {nearest(how, backbones.TRAINED)}")

    def merge_lora(self) -> None:
        """Add the adapters into the backbone's weights, so that loading needs no peft."""
        if self.config.lora:
            backbones.merge_lora(self.backbone)
            self.config.lora = None
            self.backbone.requires_grad_(False)

    @property
    def backbone_is_frozen(self) -> bool:
        """Whether no weight of the backbone trains."""
        return not any(p.requires_grad for p in self.backbone.parameters())

    def train(self, mode: bool = True) -> StructuredRewardModel:
        """Switch to training; a frozen backbone stays in eval mode, without dropout."""
        super().train(mode)
        if mode and self.backbone_is_frozen:
            self.backbone.eval()
        return self

    def added_parameters(self) -> dict[str, float]:
        """Parameters of backbone and heads, and the heads' share of the backbone."""
        base = sum(p.numel() for p in self.backbone.parameters())
        heads = sum(p.numel() for m in (self.score, self.confidence_heads) for p in m.parameters())
        return {"backbone": base, "added": heads, "share": heads / base}

    # -- scores ----------------------------------------------------------------------------------

    def features(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Pooled hidden states [B, H] float32 of tokens [B, T] padded on either side.

        `attention_mask` alone says what is padding; without one every token counts.
        """
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        given = (input_ids,) if token_type_ids is None else (input_ids, token_type_ids)
        mask, input_ids, *types = to_the_left(mask, *given)
        extra = {"token_type_ids": types[0]} if types else {}
        if self.config.pooling != "cls":
            extra["use_cache"] = False  # pyright: ignore[reportArgumentType]
        gradients = nullcontext() if not self.backbone_is_frozen else torch.no_grad()
        with gradients:
            out = self.backbone(input_ids=input_ids, attention_mask=mask, **extra)
            return pool(out[0], mask, self.config.pooling)

    def from_features(self, features: Tensor) -> StructuredRewardOutput:
        """Scores, confidences and logits [B, D] float32 of pooled features [B, H]."""
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            logits = self.score(features)
            standard = self.score.standardize(features.detach())
            confidence = self.confidence_heads(standard, logits)
        return StructuredRewardOutput(torch.sigmoid(logits), confidence, logits)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **unused: Any,
    ) -> StructuredRewardOutput:
        """Score tokens [B, T]; see `features` for padding. NaN is passed on, never hidden."""
        return self.from_features(self.features(input_ids, attention_mask, token_type_ids))

    def renderer(self, too_long: str = "error") -> TextRenderer:
        """What turns prompts and responses into this model's tokens.

        Raises:
            ModelError: The model has no tokenizer.
        """
        pair = self.config.pooling == "cls" or (
            backbones.default_pooling(self.config.backbone_config) == "cls"
        )
        limit = self.config.context_length()
        return TextRenderer(self.tokenizer, limit, pair=pair, too_long=too_long)

    @torch.no_grad()
    def score_texts(
        self,
        prompts: Sequence[str],
        responses: Sequence[str],
        batch_size: int = 8,
        *,
        too_long: str = "error",
        show_progress: bool | None = False,
    ) -> StructuredRewardOutput:
        """Score texts with the model's own tokenizer and chat template.

        Rows of like length are batched together; a row's scores do not depend on its batch. An
        empty response is scored as the template renders it, and said in the log.

        Args:
            prompts: what the user said.
            responses: the answers, one a prompt.
            batch_size: rows in one forward pass.
            too_long: a response that fills the context alone: "error", or "cut" to its end.
            show_progress: see `progress`.

        Returns:
            Scores, confidences and logits, [B, D] float32 on the CPU, in the order given.

        Raises:
            DataError: The texts do not match, are not text, or a response is too long.
            ModelError: There is no tokenizer, or a head gave NaN.
        """
        if batch_size < 1:
            raise DataError(f"batch_size: must be at least 1, got {batch_size}")
        renderer = self.renderer(too_long)
        features = self.pooled(
            renderer, renderer.encode(prompts, responses), batch_size, show_progress
        )
        was_training = self.training
        self.eval()
        try:
            out = self.from_features(features.to(self.score.standardize.mean.device))
        finally:
            self.train(was_training)
        out = StructuredRewardOutput(*(t.float().cpu() for t in out.to_tuple()))
        return out.require_finite(self.config.dimensions)

    @torch.no_grad()
    def pooled(
        self,
        renderer: TextRenderer,
        rows: Sequence[Sequence[int]],
        batch_size: int,
        show_progress: bool | None = False,
    ) -> Tensor:
        """Pooled features [N, H] float32 on the CPU of tokenised rows, batched by length."""
        found = torch.empty(len(rows), self.config.hidden_size)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        device = next(self.backbone.parameters()).device
        was_training = self.training
        self.eval()
        try:
            with progress(len(rows), "Reading responses", show_progress) as bar:
                for start in range(0, len(order), batch_size):
                    part = order[start : start + batch_size]
                    batch = renderer.pad([rows[row] for row in part]).tensors()
                    batch = {name: tensor.to(device) for name, tensor in batch.items()}
                    found[part] = self.features(**batch).cpu()
                    bar.advance(len(part))
        finally:
            self.train(was_training)
        return found

    def push_to_hub(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload structured reward model",
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> str:
        """Upload weights, config, tokenizer and our model card (transformers' own writes another).

        Args:
            repo_id: "name" or "organisation/name"; made if it is not there.
            commit_message: of the commit.
            private: whether a repository made for it is private.
            token: as huggingface_hub takes it.
            revision: the branch.
            create_pr: open a pull request in place of a commit.

        Returns:
            The address of the commit.

        Raises:
            ModelError: The hub cannot be reached or refuses.
        """
        return upload(
            self.save_pretrained,
            repo_id,
            commit_message=commit_message,
            private=private,
            token=token,
            revision=revision,
            create_pr=create_pr,
        )

    # -- transformers ----------------------------------------------------------------------------

    def get_input_embeddings(self) -> nn.Module:
        """The backbone's token embeddings."""
        return self.backbone.get_input_embeddings()  # pyright: ignore[reportCallIssue]

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the backbone's token embeddings."""
        self.backbone.set_input_embeddings(value)  # pyright: ignore[reportCallIssue]

    def _init_weights(self, module: nn.Module) -> None:
        """Heads start as torch makes them; backbones look after themselves."""
        if isinstance(module, nn.Linear):
            module.reset_parameters()


def _check_loaded(model: Any, info: Any, source: Any) -> None:
    """Refuse a model with weights that were not in the file.

    Raises:
        ModelError: Naming the heads that lack weights, and what stands there in their place.
    """
    missing = sorted(info["missing_keys"])
    heads = sorted({_dimension(key) for key in missing} - {""})
    found = sorted({_dimension(key) for key in info["unexpected_keys"]} - {""})
    if not missing and not found and not info["mismatched_keys"]:
        return
    if found and not heads:
        raise ModelError(
            f"{source}: the weights hold heads for {', '.join(found)}, which config.json does not "
            "name among its dimensions; load the folder with its own config.json"
        )
    if heads:
        instead = f"; the file has heads named {', '.join(found)}" if found else ""
        raise ModelError(
            f"{source}: the weights hold no head for {', '.join(heads)}{instead}; a head is never "
            f"made up: load the folder with its own config.json (dimensions here: "
            f"{', '.join(model.config.dimensions)})"
        )
    other = [*missing, *(str(key) for key in info["mismatched_keys"])]
    raise ModelError(
        f"{source}: {len(other)} weights are missing or of another shape (first: {other[0]}); "
        "load the folder with its own config.json, or train again"
    )


def _dimension(key: str) -> str:
    """The dimension a head's weight belongs to, or ""."""
    parts = key.split(".")
    return parts[2] if len(parts) > 3 and parts[0] in _HEADS and parts[1] == "heads" else ""


AutoConfig.register(StructuredRewardConfig.model_type, StructuredRewardConfig)
AutoModel.register(StructuredRewardConfig, StructuredRewardModel)
AutoModelForSequenceClassification.register(StructuredRewardConfig, StructuredRewardModel)
