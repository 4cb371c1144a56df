"""From plain documents to rows of a causal language model: tokens, EOS, chunks of equal length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_glm_curriculum.errors import ConfigError, DataError

DOCUMENTS_PER_BATCH = 64


def chunk_documents(
    dataset: datasets.Dataset,
    tokenizer: Any,
    max_length: int,
    *,
    column: str = "text",
    join: bool = True,
) -> datasets.Dataset:
    """Tokenise documents and cut them into rows; every token is a label.

    Args:
        dataset: rows with one document each.
        tokenizer: a Hugging Face tokenizer with an EOS token, which closes every document.
        max_length: tokens of a row.
        column: the column of the text.
        join: one document follows the other within a row, so that all rows but the last are full;
            False starts every document in a row of its own.

    Returns:
        ``input_ids`` and ``labels`` (int32 lists), in the order of the text. Rows of fewer than 2
        tokens, which predict nothing, are left out.

    Raises:
        ConfigError: if ``max_length`` is below 2.
        DataError: if there is no text, no EOS token, or no token.
    """
    if column not in dataset.column_names:
        raise DataError(
            f"column {column!r}: not among the columns {dataset.column_names}; name the column "
            "that holds the text"
        )
    texts = _texts(dataset.select_columns([column]).with_format(None), column)
    rows = list(chunks(texts, tokenizer, max_length, join))
    if not rows:
        raise DataError(f"column {column!r}: holds no text of 2 tokens or more; check the data")
    lengths = np.fromiter((len(row) for row in rows), np.int64, len(rows))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(rows)))
    return datasets.Dataset(pa.table({"input_ids": tokens, "labels": tokens}))


def chunks(
    texts: Iterable[str], tokenizer: Any, max_length: int, join: bool = True
) -> Iterator[np.ndarray]:
    """Yield the rows of :func:`chunk_documents`, int32 each, as the texts come.

    Raises:
        ConfigError: if ``max_length`` is below 2.
        DataError: if the tokenizer has no EOS token.
    """
    if max_length < 2:
        raise ConfigError(f"max_length: a row needs at least 2 tokens, got {max_length}")
    if tokenizer.eos_token_id is None:
        raise DataError(
            "tokenizer: has no EOS token, which closes a document; set tokenizer.eos_token"
        )
    rest = np.empty(0, np.int32)
    texts = iter(texts)
    while batch := list(itertools.islice(texts, DOCUMENTS_PER_BATCH)):
        for tokens in _encode(batch, tokenizer):
            held = np.concatenate([rest, tokens]) if join else tokens
            full = len(held) // max_length * max_length
            yield from held[:full].reshape(-1, max_length)
            rest = held[full:]
            if not join and len(rest) >= 2:
                yield rest
    if join and len(rest) >= 2:
        yield rest


def _encode(texts: list[str], tokenizer: Any) -> Iterator[np.ndarray]:
    """Yield the tokens of each text, closed by EOS once."""
    eos = tokenizer.eos_token_id
    for ids in tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]:
        closed = ids if ids and ids[-1] == eos else [*ids, eos]
        yield np.asarray(closed, dtype=np.int32)


def _texts(dataset: datasets.Dataset, column: str) -> Iterator[str]:
    """Yield the texts; blank ones are left out.

    Raises:
        DataError: naming the row, if one holds no text.
    """
    for number, row in enumerate(dataset):
        text = row[column]  # type: ignore[call-overload]
        if not isinstance(text, str):
            raise DataError(
                f"row {number}, column {column!r}: must be text, got {type(text).__name__}; drop "
                "or repair the row"
            )
        if text.strip():
            yield text
