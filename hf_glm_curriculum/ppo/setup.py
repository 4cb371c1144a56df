"""What is checked and built before TRL's trainer is: nothing is refused after it."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from torch import nn

from hf_glm_curriculum.errors import ConfigError, DataError, IncompatibleError, ModelError
from hf_glm_curriculum.models import causal_lm
from hf_glm_curriculum.ppo.config import StructuredPPOConfig
from hf_glm_curriculum.ppo.modules import check_critic, critic_for


def check_policy(model: Any, ref_model: Any, peft_config: Any, tokenizer: Any) -> None:
    """Refuse what cannot be trained.

    Raises:
        ModelError: if the policy is no causal language model, has nothing to train, or is the
            reference.
        IncompatibleError: if it is an encoder-decoder or trained through a prompt, or the
            tokenizer lacks a pad token.
    """
    if ref_model is not None and ref_model is model:
        raise ModelError(
            "ref_model: is the policy itself; pass None (a copy is made, or the adapter switched "
            "off), or a model of its own"
        )
    inner = causal_lm(model)
    if getattr(inner.config, "is_encoder_decoder", False):
        raise IncompatibleError(
            f"model: {type(inner).__name__} is an encoder-decoder; PPO here trains decoders"
        )
    for config in getattr(model, "peft_config", {}).values():
        if getattr(config, "is_prompt_learning", False):
            raise IncompatibleError(
                "model: trains a prompt, whose tokens would shift every answer; use LoRA"
            )
    if peft_config is None and not any(p.requires_grad for p in model.parameters()):
        raise ModelError(
            "model: none of its parameters is trainable; it may serve as a frozen reward backbone "
            "too: pass PPO a model of its own"
        )
    if tokenizer.pad_token_id is None:
        raise IncompatibleError(
            "processing_class: has no pad token; set tokenizer.pad_token = tokenizer.eos_token"
        )


def stop_tokens(args: StructuredPPOConfig, tokenizer: Any, model: Any) -> list[int]:
    """The tokens that end an answer; none lets every answer run to full length.

    With ``stop_token="eos"`` these are the tokenizer's EOS and every other end of a turn that the
    model's generation config lists, as chat models do.

    Raises:
        ConfigError: if the tokenizer does not have the token that is asked for.
    """
    if args.stop_token is None:
        size = len(tokenizer)
        if args.stop_token_id is not None and not 0 <= args.stop_token_id < size:
            raise ConfigError(
                f"stop_token_id: must be one of the tokenizer's {size:,} ids, got "
                f"{args.stop_token_id}"
            )
        return [] if args.stop_token_id is None else [args.stop_token_id]
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            "stop_token: is 'eos', and the tokenizer has no EOS token; set tokenizer.eos_token, "
            "or stop_token to None and stop_token_id to the token that ends an answer"
        )
    listed = model.generation_config.eos_token_id
    others = listed if isinstance(listed, list) else []
    return [tokenizer.eos_token_id, *(t for t in others if t != tokenizer.eos_token_id)]


def prompt_room(args: StructuredPPOConfig, model: Any) -> int | None:
    """Most tokens of a prompt, so that prompt and answer fit into the context.

    Raises:
        ConfigError: if the answer alone does not fit.
    """
    config = causal_lm(model).config.get_text_config()
    context = getattr(config, "max_position_embeddings", None)
    if context is None:
        return args.max_prompt_length
    room = context - args.response_length
    if room < 1:
        raise ConfigError(
            f"response_length: must leave room for a prompt in the model's {context:,} positions, "
            f"got {args.response_length}"
        )
    return room if args.max_prompt_length is None else min(room, args.max_prompt_length)


def value_model_for(
    args: StructuredPPOConfig, given: Any, policy: Any, critics: int, peft: bool
) -> Any:
    """The value model given, or one made for the policy.

    Raises:
        ModelError: if the one given does not fit.
    """
    if given is None:
        kind = args.value_model_kind
        if kind == "auto":
            kind = "shared" if peft else "copy"
        given = critic_for(policy, critics, kind)
        if kind == "shared":
            given.to(next(policy.parameters()).device)
    check_critic(given, critics, policy)
    return given


def check_rows(args: StructuredPPOConfig, rows: int) -> None:
    """Refuse data that do not fill one update, and settle how many updates there are.

    Raises:
        DataError: if there are fewer prompts than an update takes.
    """
    per_update = args.rows_per_device * PartialState().num_processes
    if rows < per_update:
        raise DataError(
            f"train_dataset: has {rows} prompts, and an update takes {per_update}; lower "
            "per_device_train_batch_size or gradient_accumulation_steps, or add prompts"
        )
    if args.total_updates is not None:
        args.total_episodes = args.total_updates * per_update


def check_collator(collator: Any, rows: Any) -> None:
    """Refuse a collator that does not give what a rollout needs.

    Raises:
        IncompatibleError: naming the collator and what is missing.
    """
    wanted = ("input_ids", "attention_mask", "prompts", "prompt_texts", "columns")
    try:
        batch = collator([rows[0]])
        reason = f"gives no {', '.join(n for n in wanted if n not in batch)}"
        fits = all(name in batch for name in wanted)
    except Exception as error:
        reason, fits = f"raised {type(error).__name__} on the first row", False
    if not fits:
        raise IncompatibleError(
            f"data_collator: {type(collator).__name__} {reason}; leave it out (prompts are padded "
            "on the left here), or subclass PromptCollator"
        )


def without_dropout(model: Any) -> None:
    """Turn off dropout that is a number of an attention module, as TRL does where it is a module.

    With it, two passes over the same tokens differ, and ratios are no ratios of policies.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float) and value > 0:
                setattr(module, name, 0.0)


def set_precision(args: StructuredPPOConfig) -> None:
    """Let ``bf16`` and ``fp16`` act: TRL's PPO makes its accelerator without them."""
    wanted = args.mixed_precision
    shared = AcceleratorState._shared_state
    if shared and shared.get("_mixed_precision") != wanted:
        AcceleratorState._reset_state(reset_partial_state=False)
    # TRL's, made next, shares this one's state.
    Accelerator(mixed_precision=wanted, cpu=args.use_cpu)


def float_head(model: nn.Module) -> None:
    """Keep trainable parameters in float32 under fp16, whose optimizer steps need them."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype == torch.float16:
            parameter.data = parameter.data.float()
