"""Answers drawn from the policy, and what all models say of them. Pure functions.

Shape letters: B rows, P prompt columns, T response columns, D critics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from hf_glm_curriculum.ppo.advantages import state_mask, token_mask
from hf_glm_curriculum.ppo.packing import PackedRows, pack_rows


@dataclass
class Rollout:
    """A batch of prompts with the policy's answers, on the device."""

    query_ids: Tensor
    """[B, P], padded on the left."""

    query_mask: Tensor
    """bool [B, P]."""

    response_ids: Tensor
    """[B, T]; what lies behind a row's length means nothing."""

    lengths: Tensor
    """Response tokens of each row with the stop token, [B]."""

    ended: Tensor
    """Whether the response came to its stop token, bool [B]."""

    prompts: list[Any]
    """B prompts as the data holds them: texts or conversations."""

    prompt_texts: list[str]
    """B prompts as texts."""

    responses: list[str]
    """B answers as texts, without special tokens."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Other columns of the data, B values each."""

    logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    """Log-probabilities of the response tokens under the policy that answered, [B, T]."""

    entropy: Tensor = field(default_factory=lambda: torch.empty(0))
    """Entropy of that policy before each token, nats, [B, T]."""

    reference: Tensor = field(default_factory=lambda: torch.empty(0))
    """Log-probabilities under the reference, [B, T]."""

    values: Tensor = field(default_factory=lambda: torch.empty(0))
    """What the critics expect from each state, [B, T, D]; 0 where there is none."""

    def __len__(self) -> int:
        """B."""
        return len(self.lengths)

    @property
    def tokens(self) -> Tensor:
        """True on response tokens, [B, T]."""
        return token_mask(self.lengths, self.response_ids.shape[1])

    @property
    def states(self) -> Tensor:
        """True on states that have a value, [B, T]."""
        return state_mask(self.lengths, self.response_ids.shape[1])

    @property
    def total_lengths(self) -> Tensor:
        """Tokens of prompt and response, [B]."""
        return self.query_mask.sum(dim=1) + self.lengths

    def first(self, count: int) -> Rollout:
        """The first rows."""
        found = {name: value[:count] for name, value in vars(self).items() if name != "columns"}
        columns = {name: values[:count] for name, values in self.columns.items()}
        return Rollout(**found, columns=columns)

    def packed(self, rows: Sequence[int]) -> PackedRows:
        """Some rows, trimmed, for a forward pass."""
        index = torch.as_tensor(rows, device=self.lengths.device)
        return pack_rows(
            self.query_ids[index],
            self.query_mask[index],
            self.response_ids[index],
            self.lengths[index],
        )


def generation_settings(
    temperature: float, response_length: int, *, greedy: bool = False
) -> dict[str, Any]:
    """What answers are made with: the whole distribution at one temperature, or its maximum."""
    # One sequence a prompt, as a tensor, whatever the model's own generation config asks for.
    plain = {"num_beams": 1, "num_return_sequences": 1, "return_dict_in_generate": False}
    if greedy:
        return {**plain, "max_new_tokens": response_length, "do_sample": False}
    return {
        **plain,
        "max_new_tokens": response_length,
        "temperature": temperature + 1e-7,
        "top_k": 0,
        "top_p": 1.0,
        "do_sample": True,
    }


@torch.no_grad()
def generate(
    policy: Any,
    query_ids: Tensor,
    query_mask: Tensor,
    settings: Mapping[str, Any],
    pad_token_id: int,
    chunk: int,
    record: SampledLogprobs | None = None,
) -> Tensor:
    """Draw an answer to every prompt, [B, T] with `pad_token_id` behind each answer's end.

    Args:
        policy: a model with ``generate``; stops at its ``generation_config.eos_token_id``.
        query_ids: [B, P], padded on the left.
        query_mask: bool [B, P].
        settings: fields of a `GenerationConfig`.
        pad_token_id: fills answers that end early.
        chunk: rows generated at a time.
        record: keeps the log-probabilities that the first chunk was drawn with.
    """
    config = GenerationConfig(**settings, pad_token_id=pad_token_id)
    parts = []
    for start in range(0, len(query_ids), chunk):
        rows = slice(start, start + chunk)
        watched = record if start == 0 else None
        made = policy.generate(
            input_ids=torch.where(query_mask[rows], query_ids[rows], 0),
            attention_mask=query_mask[rows].long(),
            generation_config=config,
            logits_processor=LogitsProcessorList([] if watched is None else [watched]),
        )
        parts.append(made[:, query_ids.shape[1] :])
        if watched is not None:
            watched.finish(made)
    width = max(part.shape[1] for part in parts)
    return torch.cat(
        [torch.nn.functional.pad(p, (0, width - p.shape[1]), value=pad_token_id) for p in parts]
    )


def response_ends(response_ids: Tensor, stop_token_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Lengths with the first stop token, and whether there is one; [B] each.

    A response without one is as long as the columns. Pad ids say nothing: where the pad token is
    a stop token, the first one still ends the answer and belongs to it.
    """
    columns = response_ids.shape[1]
    stops = torch.isin(response_ids, response_ids.new_tensor(list(stop_token_ids)))
    ended = stops.any(dim=1)
    first = stops.int().argmax(dim=1) + 1
    return torch.where(ended, first, columns), ended


class SampledLogprobs(LogitsProcessor):
    """Log-probabilities that tokens were really drawn with, to hold against the policy's own.

    A generation config can carry processors (suppressed tokens, repetition penalties, …) that
    change what is sampled. Only the logits of one step are kept.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.columns: list[Tensor] = []
        self._last: Tensor | None = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Look at the scores as all processors before left them."""
        self._keep(input_ids)
        self._last = torch.log_softmax(scores.float() / self.temperature, dim=-1)
        return scores

    def finish(self, sequences: Tensor) -> None:
        """Take the last token in."""
        self._keep(sequences)
        self._last = None

    def differs(self, logprobs: Tensor, lengths: Tensor) -> float:
        """Largest difference to the policy's log-probabilities over the answers' tokens, nats.

        0 where nothing was recorded: an engine of the user's own drew the answers.
        """
        if not self.columns:
            return 0.0
        drawn = torch.stack(self.columns, dim=1)
        rows, columns = drawn.shape
        gap = (drawn - logprobs[:rows, :columns]).abs()
        return float(gap[token_mask(lengths[:rows], columns)].max())

    def _keep(self, sequences: Tensor) -> None:
        if self._last is not None:
            self.columns.append(self._last.gather(1, sequences[:, -1:])[:, 0])
