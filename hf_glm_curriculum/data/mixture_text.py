"""Sources of a mixture that are still text: documents, or prompts with responses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import datasets

from hf_glm_curriculum.data.chunks import chunk_documents, chunks
from hf_glm_curriculum.data.tokenization import tokenize_sft
from hf_glm_curriculum.errors import DataError

PREPARED = ("input_ids", "labels")
ROWS_PER_BATCH = 64
_TOKENIZATION_LOG = "hf_glm_curriculum.data.tokenization"


def kind_of(name: str, columns: Sequence[str]) -> str:
    """What a source holds: "tokens", "instructions" (prompt and response) or "documents" (text).

    Raises:
        DataError: if it is none of them.
    """
    if "input_ids" in columns:
        return "tokens"
    if "messages" in columns or {"prompt", "response"} <= set(columns):
        return "instructions"
    if "text" in columns:
        return "documents"
    raise DataError(
        f"source {name!r}: has neither input_ids, nor prompt and response (or messages), nor text; "
        f"its columns are {sorted(columns)}; tokenise it, or rename the columns"
    )


def prepare(
    name: str, dataset: Any, columns: Sequence[str], tokenizer: Any, max_length: int
) -> datasets.Dataset | datasets.IterableDataset:
    """Tokenise a source: documents into chunks, instructions with loss on the answers.

    A data set is tokenised now, a stream while it is read. Instructions without an answer token
    within ``max_length`` are left out.

    Args:
        name: of the source, for errors.
        dataset: a `datasets.Dataset` or `datasets.IterableDataset`.
        columns: its columns.
        tokenizer: a Hugging Face tokenizer, or None.
        max_length: tokens of a row.

    Returns:
        The source with ``input_ids`` and ``labels`` only; as it is, if it has tokens already.

    Raises:
        DataError: if the source is text and there is no tokenizer, or it cannot be tokenised.
    """
    kind = kind_of(name, columns)
    if kind == "tokens":
        return dataset
    if tokenizer is None:
        raise DataError(
            f"source {name!r}: holds text ({sorted(columns)}) and no input_ids; tokenise it, or "
            "give the mixture a tokenizer= to do it"
        )
    if isinstance(dataset, datasets.IterableDataset):
        batches = _Batches(kind, tokenizer, max_length)
        return dataset.map(
            batches, batched=True, batch_size=ROWS_PER_BATCH, remove_columns=list(columns)
        )
    try:
        if kind == "documents":
            return chunk_documents(dataset, tokenizer, max_length)
        rows = tokenize_sft(dataset, tokenizer, max_length, without_labels="drop")
    except DataError as error:
        raise DataError(f"source {name!r}: {error}") from error
    return rows.select_columns(list(PREPARED))


class _Batches:
    """Tokenises the batches of a stream; what there is to say, it says once."""

    def __init__(self, kind: str, tokenizer: Any, max_length: int) -> None:
        self.kind, self.tokenizer, self.max_length = kind, tokenizer, max_length
        self.said = False

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Turn columns of text into columns of tokens and labels, of any number of rows."""
        if self.kind == "documents":
            texts = [text for text in batch["text"] if text and text.strip()]
            rows = [row.tolist() for row in chunks(texts, self.tokenizer, self.max_length)]
            return {"input_ids": rows, "labels": rows}
        log = logging.getLogger(_TOKENIZATION_LOG)
        level = log.level
        if self.said:
            log.setLevel(logging.ERROR)
        try:
            rows = tokenize_sft(
                datasets.Dataset.from_dict(batch),
                self.tokenizer,
                self.max_length,
                without_labels="drop",
            )
        except DataError as error:
            if not str(error).startswith("labels:"):
                raise
            return {name: [] for name in PREPARED}  # no row of this batch keeps an answer
        finally:
            log.setLevel(level)
        self.said = True
        return {name: rows[name][:] for name in PREPARED}
