"""Prompts in any form as token ids, and batches of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import torch

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.rewards.trl_functions import prompt_text

logger = logging.getLogger(__name__)

PROMPT_COLUMNS = ("prompt", "messages", "query", "text")
"""Where prompts are looked for, the first one winning; tokenised data only need `input_ids`."""

IDS = "input_ids"
TEXT = "prompt_text"
PROMPT = "prompt"
_OURS = (IDS, "attention_mask", TEXT)


def prepare_prompts(
    dataset: Any,
    tokenizer: Any,
    *,
    room: int | None,
    long_prompts: str = "error",
    field: str = "train_dataset",
) -> datasets.Dataset:
    """Tokenise prompts; every other column is kept.

    A text is tokenised as it is, a conversation through the chat template with the assistant's
    turn opened, and `input_ids` are taken as they are.

    Args:
        dataset: a map-style `datasets.Dataset` with a column of `PROMPT_COLUMNS` or `input_ids`.
        tokenizer: the policy's.
        room: most tokens of a prompt; None for no limit.
        long_prompts: ``"error"`` or ``"drop"``.
        field: what the data set is called in messages.

    Returns:
        The rows with `input_ids` (no padding), `prompt` and `prompt_text` beside their columns.

    Raises:
        DataError: naming the row, if a prompt is no prompt, empty or too long; or if the data set
            is a stream or has no prompts.
    """
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{field}: must be a map-style datasets.Dataset, got {type(dataset).__name__}; "
            "Dataset.from_list or list(stream.take(n)) makes one"
        )
    column = next((name for name in PROMPT_COLUMNS if name in dataset.column_names), None)
    if column is None and IDS not in dataset.column_names:
        raise DataError(
            f"{field}: has no prompts; name a column one of {', '.join(PROMPT_COLUMNS)} or {IDS}, "
            f"got {', '.join(dataset.column_names)}"
        )
    rows = [_row(row, place, column, tokenizer, field) for place, row in enumerate(dataset)]
    rows = _fitting(rows, room, long_prompts, field)
    if not rows:
        raise DataError(f"{field}: has no prompt left; raise max_prompt_length or add prompts")
    return datasets.Dataset.from_list(rows)


class PromptCollator:
    """Left-padded prompts of unequal lengths, the other columns as lists.

    Args:
        pad_token_id: fills what the mask leaves out.
    """

    def __init__(self, pad_token_id: int) -> None:
        self.pad_token_id = pad_token_id

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """`input_ids` and `attention_mask` [B, P], `prompts`, `prompt_texts`, and `columns`."""
        width = max(len(row[IDS]) for row in rows)
        ids = torch.full((len(rows), width), self.pad_token_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, width - len(row[IDS]) :] = torch.as_tensor(row[IDS])
            mask[place, width - len(row[IDS]) :] = 1
        others = [name for name in rows[0] if name not in (*_OURS, PROMPT)]
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "prompts": [row[PROMPT] for row in rows],
            "prompt_texts": [row[TEXT] for row in rows],
            "columns": {name: [row[name] for row in rows] for name in others},
        }


def _row(
    row: Mapping[str, Any], place: int, column: str | None, tokenizer: Any, field: str
) -> dict[str, Any]:
    if IDS in row:
        ids = list(row[IDS])
        mask = row.get("attention_mask")
        if mask is not None:
            ids = [token for token, real in zip(ids, mask, strict=True) if real]
        prompt = tokenizer.decode(ids, skip_special_tokens=True) if column is None else row[column]
    else:
        prompt = row[str(column)]
        ids = _tokens(prompt, place, str(column), tokenizer, field)
    if not ids:
        raise DataError(f"{field}, row {place}: the prompt is empty; drop the row")
    text = tokenizer.decode(ids, skip_special_tokens=True) if column is None else ""
    kept = {k: v for k, v in row.items() if k not in (*_OURS, column)}
    return {**kept, PROMPT: prompt, TEXT: text or prompt_text(prompt), IDS: ids}


def _tokens(prompt: Any, place: int, column: str, tokenizer: Any, field: str) -> list[int]:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    if not isinstance(prompt, list) or not all(isinstance(turn, Mapping) for turn in prompt):
        raise DataError(
            f"{field}, row {place}: {column} must be text or a list of messages, got "
            f"{type(prompt).__name__}; drop or repair the row"
        )
    if not tokenizer.chat_template:
        raise DataError(
            f"{field}, row {place}: is a conversation, and the tokenizer has no chat template; set "
            "tokenizer.chat_template, or give prompts as text"
        )
    found = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True)
    return list(found["input_ids"] if hasattr(found, "keys") else found)


def _fitting(
    rows: list[dict[str, Any]], room: int | None, long_prompts: str, field: str
) -> list[dict[str, Any]]:
    if room is None:
        return rows
    long = [place for place, row in enumerate(rows) if len(row[IDS]) > room]
    if not long:
        return rows
    if long_prompts == "drop":
        logger.warning(
            "%s: %d of %d prompts are longer than %d tokens and left out",
            field,
            len(long),
            len(rows),
            room,
        )
        return [row for row in rows if len(row[IDS]) <= room]
    raise DataError(
        f"{field}, row {long[0]}: the prompt has {len(rows[long[0]][IDS])} tokens, and {room} fit "
        f"({len(long)} rows are too long); shorten them, lower response_length, or set "
        "long_prompts='drop'"
    )
