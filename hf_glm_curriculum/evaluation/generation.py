"""Greedy answers to a list of prompts, in batches, from any causal language model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.data.record_formats import flatten
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress

if TYPE_CHECKING:
    from transformers import GenerationConfig

Prompt = str | Sequence[dict[str, str]]
"""One user turn, or the turns {role, content} up to the answer."""


def generate_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 64,
    batch_size: int = 8,
    description: str = "Answering",
    show_progress: bool | None = None,
) -> list[str]:
    """Answer prompts greedily.

    Prompts go through the chat template where the tokenizer has one, padded on the left and
    sorted by length. Of the model's own generation settings only the end-of-sequence tokens count,
    so that penalties or suppressed tokens do not leak into a comparison. The model's mode and
    settings and the tokenizer's padding side are restored.

    Args:
        model: A causal language model (PEFT-wrapped too), on any device.
        tokenizer: Its tokenizer, with a padding token.
        prompts: What the user says, one turn each, or whole conversations.
        max_new_tokens: Tokens after which an answer is cut.
        batch_size: Prompts answered together.
        description: The words before the progress bar.
        show_progress: See `progress`; None shows a bar on a terminal only.

    Returns:
        The answers without special tokens and outer blanks, in the order of the prompts.

    Raises:
        DataError: max_new_tokens or batch_size is below 1.
    """
    import torch

    if max_new_tokens < 1 or batch_size < 1:
        raise DataError(
            f"max_new_tokens, batch_size: must be at least 1, got {max_new_tokens}, {batch_size}"
        )
    texts = [prompt_text(tokenizer, prompt) for prompt in prompts]
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    answers = [""] * len(texts)
    settings = greedy_config(model, tokenizer, max_new_tokens)
    bar_steps = progress(len(texts), description, show_progress)
    with torch.inference_mode(), prepared(model, tokenizer, settings), bar_steps as bar:
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = [texts[row] for row in rows]
            for row, text in zip(rows, _answer(model, tokenizer, batch), strict=True):
                answers[row] = text
            bar.advance(len(rows))
    return answers


def prompt_text(tokenizer: Any, prompt: Prompt) -> str:
    """A prompt as the model reads it: by the chat template, or followed by a line break.

    The same forms as `data.tokenization.tokenize_sft` trains on.
    """
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if not tokenizer.chat_template:
        return f"{prompt if isinstance(prompt, str) else flatten(turns)}\n"
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def greedy_config(model: Any, tokenizer: Any, max_new_tokens: int) -> GenerationConfig:
    """Greedy decoding that stops at the model's and the tokenizer's end-of-sequence tokens."""
    from transformers import GenerationConfig

    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = {*(own if isinstance(own, (list, tuple)) else [own]), tokenizer.eos_token_id}
    return GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(end for end in ends if end is not None) or None,
        pad_token_id=tokenizer.pad_token_id,
        use_cache=True,
    )


@contextmanager
def prepared(model: Any, tokenizer: Any, settings: GenerationConfig) -> Iterator[None]:
    """Eval mode, our generation settings and left padding for the length of a block."""
    from hf_glm_curriculum.models import causal_lm

    inner = causal_lm(model)
    was_training, own, side = model.training, inner.generation_config, tokenizer.padding_side
    model.eval()
    inner.generation_config, tokenizer.padding_side = settings, "left"
    try:
        yield
    finally:
        model.train(was_training)
        inner.generation_config, tokenizer.padding_side = own, side


def _answer(model: Any, tokenizer: Any, texts: list[str]) -> list[str]:
    """One batch of rendered prompts → answers."""
    device = next(model.parameters()).device
    # A chat template has written the special tokens already.
    plain = not tokenizer.chat_template
    batch = tokenizer(texts, padding=True, add_special_tokens=plain, return_tensors="pt")
    batch = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    output = model.generate(**batch)
    new = output[:, batch["input_ids"].shape[1] :]
    return [text.strip() for text in tokenizer.batch_decode(new, skip_special_tokens=True)]
