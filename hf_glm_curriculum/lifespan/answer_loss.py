"""Loss of answers under a language model, with and without the prompt before them.

Shape letters: N pairs, B pairs of a batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress

Pair = tuple[str, str]
"""(prompt, response)."""

_TOKENS_PER_BATCH = 2048


class AnswerLosses(NamedTuple):
    """What a model thinks of N answers; on the CPU."""

    total: Tensor
    """[N] float32 summed loss of the answer's tokens, nats."""
    n_tokens: Tensor
    """[N] int64 tokens of the answer, its end-of-turn token included."""

    @property
    def mean(self) -> Tensor:
        """[N] float32 nats a token."""
        return self.total / self.n_tokens


class ConditionalLosses(NamedTuple):
    """Loss of N answers given their prompts and given nothing; on the CPU."""

    loss_with: Tensor
    """[N] float32 mean loss of the answer's tokens given the prompt, nats."""
    loss_without: Tensor
    """[N] float32 mean loss of the same tokens without the prompt, nats."""

    @property
    def difficulty(self) -> Tensor:
        """[N] instruction-following difficulty: loss with the prompt over loss without it."""
        return self.loss_with / self.loss_without


def conditional_gain(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    batch_size: int = 8,
    max_length: int = 1024,
    chat_template: bool = True,
    show_progress: bool | None = None,
) -> ConditionalLosses:
    """Loss of each answer with and without its prompt: how much the prompt helps.

    The ratio of the two is the instruction-following difficulty of Li et al., "From quantity to
    quality: boosting LLM performance with self-guided data selection" (2023), eq. 4; near or
    above 1 the answer does not follow from the prompt. Without the prompt means with an empty
    one: the template stays, so that only the prompt's words make the difference.

    Args:
        model: a causal language model on any device; its mode is restored.
        tokenizer: of that model.
        pairs: (prompt, response) texts.
        batch_size: most pairs at once.
        max_length: most tokens of a pair; the start of a long prompt is cut, then a long answer.
        chat_template: use the tokenizer's chat template where it has one.
        show_progress: see `progress`.

    Returns:
        Two [N] float32 tensors.

    Raises:
        DataError: if there are no pairs, or the tokenizer's template refuses one.
    """
    options = {"batch_size": batch_size, "max_length": max_length, "show_progress": show_progress}
    rows = _tokenize(tokenizer, pairs, chat_template)
    opening = _opening(tokenizer, chat_template)
    alone = [(opening, answer) for _, answer in rows]
    return ConditionalLosses(
        _losses(model, rows, description="Loss with the prompt", **options).mean,
        _losses(model, alone, description="Loss without it", **options).mean,
    )


def answer_losses(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    with_prompt: bool = True,
    batch_size: int = 8,
    max_length: int = 1024,
    chat_template: bool = True,
    description: str = "Loss of answers",
    show_progress: bool | None = None,
) -> AnswerLosses:
    """Loss of each answer, given its prompt or given nothing; one forward a pair.

    Args:
        model: see :func:`conditional_gain`, like the rest.
        tokenizer: of that model.
        pairs: (prompt, response) texts.
        with_prompt: whether the prompt stands before the answer.
        batch_size: most pairs at once.
        max_length: most tokens of a pair.
        chat_template: use the tokenizer's chat template where it has one.
        description: the words before the progress bar.
        show_progress: see `progress`.

    Raises:
        DataError: if there are no pairs, or the tokenizer's template refuses one.
    """
    rows = _tokenize(tokenizer, pairs, chat_template)
    if not with_prompt:
        opening = _opening(tokenizer, chat_template)
        rows = [(opening, answer) for _, answer in rows]
    return _losses(model, rows, batch_size, max_length, description, show_progress)


def _tokenize(
    tokenizer: Any, pairs: Sequence[Pair], chat_template: bool
) -> list[tuple[list[int], list[int]]]:
    """(tokens before the answer, tokens of the answer) of each pair."""
    import datasets

    if not len(pairs):
        raise DataError("pairs: needs at least one (prompt, response), got none")
    prompts, responses = zip(*pairs, strict=True)
    texts = datasets.Dataset.from_dict({"prompt": list(prompts), "response": list(responses)})
    table = tokenize_sft(texts, tokenizer, chat_template=chat_template)
    rows = []
    for ids, labels in zip(table["input_ids"], table["labels"], strict=True):
        start = next(i for i, label in enumerate(labels) if label >= 0)
        rows.append((ids[:start], ids[start:]))
    return rows


def _opening(tokenizer: Any, chat_template: bool) -> list[int]:
    """Tokens that stand before an answer to nothing: the conversation with an empty prompt."""
    before = _tokenize(tokenizer, [("", "A")], chat_template)[0][0]
    first = tokenizer.bos_token_id
    return before or [tokenizer.eos_token_id if first is None else first]


def _losses(
    model: Any,
    rows: list[tuple[list[int], list[int]]],
    batch_size: int,
    max_length: int,
    description: str,
    show_progress: bool | None,
) -> AnswerLosses:
    """Forward passes over rows of like length, back in the rows' order."""
    cut = [_cut(before, answer, max_length) for before, answer in rows]
    total = torch.zeros(len(rows))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), progress(len(rows), description, show_progress) as bar:
            for batch in _batches(cut, batch_size):
                total[batch] = _batch_loss(model, [cut[i] for i in batch])
                bar.advance(len(batch))
    finally:
        model.train(was_training)
    return AnswerLosses(total, torch.tensor([len(answer) for _, answer in cut]))


def _cut(before: list[int], answer: list[int], max_length: int) -> tuple[list[int], list[int]]:
    """Keep the end of what comes before the answer, one token at least, and its start."""
    answer = answer[: max_length - 1]
    return before[max(0, len(before) + len(answer) - max_length) :], answer


def _batches(rows: list[tuple[list[int], list[int]]], batch_size: int) -> Iterator[list[int]]:
    """Row numbers in batches of like length, at most so many padded tokens at once."""
    length = [len(before) + len(answer) for before, answer in rows]
    batch: list[int] = []
    for row in sorted(range(len(rows)), key=length.__getitem__):
        full = len(batch) == batch_size or (len(batch) + 1) * length[row] > _TOKENS_PER_BATCH
        if batch and full:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _batch_loss(model: Any, rows: list[tuple[list[int], list[int]]]) -> Tensor:
    """[B] float32 summed loss of each row's answer, nats."""
    device = next(model.parameters()).device
    width = max(len(before) + len(answer) for before, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    real, wanted = torch.zeros_like(ids), torch.zeros(ids.shape, dtype=torch.bool)
    for i, (before, answer) in enumerate(rows):
        end = len(before) + len(answer)
        ids[i, :end] = torch.tensor([*before, *answer])
        real[i, :end] = 1
        wanted[i, len(before) : end] = True
    ids, wanted = ids.to(device), wanted[:, 1:].to(device)
    logits = model(input_ids=ids, attention_mask=real.to(device), use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1][wanted].float(), ids[:, 1:][wanted], reduction="none"
    )
    total = torch.zeros(len(rows), device=device)
    return total.index_add_(0, wanted.nonzero()[:, 0], losses).cpu()
