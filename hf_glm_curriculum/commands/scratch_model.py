"""A new model and tokenizer, made from settings and the run's own text instead of loaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from hf_glm_curriculum.commands.training_settings import check_least
from hf_glm_curriculum.errors import ConfigError, ModelError

SCRATCH = "scratch"
"""The name in `model` that asks for a new one."""

_SPECIAL = ("<pad>", "<eos>", "<user>", "<assistant>")
# Turns as the special tokens mark them; the answer and its end carry the loss.
_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<assistant>{{ message['content'] }}<eos>"
    "{% else %}<user>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass
class ScratchConfig:
    """Sizes of a new model with random weights, and of a tokenizer fitted to the data."""

    architecture: Literal["glm", "glm4", "llama", "qwen3"] = "glm"
    """The family, by its transformers name."""

    hidden_size: int = 192
    """Width of the hidden states."""

    layers: int = 6
    """Transformer blocks."""

    heads: int = 6
    """Query heads; they share hidden_size between them."""

    kv_heads: int = 2
    """Key and value heads."""

    intermediate_size: int = 512
    """Width inside the feed-forward layers."""

    vocab_size: int = 4096
    """Tokens of the byte-level BPE that is fitted to documents and instructions."""

    tokenizer: str | None = None
    """A folder or hub id whose tokenizer is taken instead of fitting one."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        check_least(self, _LEAST)
        if self.hidden_size % self.heads or (self.hidden_size // self.heads) % 2:
            raise ConfigError(
                f"heads: must share hidden_size into even widths, got {self.hidden_size} over "
                f"{self.heads} heads"
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"kv_heads: must divide heads, got {self.kv_heads} for {self.heads} heads"
            )


_LEAST = {
    "hidden_size": 8,
    "layers": 1,
    "heads": 1,
    "kv_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 300,
}


def new_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer fitted to texts, with a chat template; any text round-trips.

    Args:
        texts: What it is fitted to; the same texts give the same tokenizer.
        vocab_size: Tokens at most, the 256 bytes and 4 special ones among them.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[1],
        additional_special_tokens=list(_SPECIAL[2:]),
        chat_template=_TEMPLATE,
        padding_side="right",
    )


def new_model(config: ScratchConfig, tokenizer: Any, max_length: int, seed: int) -> Any:
    """A causal language model with random weights.

    Args:
        config: Its sizes.
        tokenizer: Tells vocabulary and special tokens.
        max_length: Longest sequence it will see.
        seed: Of the weights.

    Raises:
        ModelError: transformers refuses the sizes.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed

    set_seed(seed)
    try:
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(
                config.architecture,
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.hidden_size // config.heads,
                max_position_embeddings=max(64, max_length),
                bos_token_id=None,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
    except (ValueError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(
            f"cannot make a {config.architecture} model of these sizes ({reason}); change them"
        ) from error
