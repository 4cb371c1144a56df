"""Prompt and answer of a sample, read back from the training data."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from hf_glm_curriculum.data.content_id import content_ids

if TYPE_CHECKING:
    import pandas as pd

_PAIRS = (("prompt", "response"), ("prompt", "completion"), ("instruction", "output"))


class DatasetTexts:
    """Reads text columns where the data set has them, and decodes tokens where it has not."""

    def __init__(self, dataset: Any, tokenizer: Any) -> None:
        """Keep the data set and the trainer's ``processing_class``; either may be None."""
        self._dataset = dataset if hasattr(dataset, "__getitem__") else None
        self._tokenizer = tokenizer if hasattr(tokenizer, "decode") else None
        self._names = set(getattr(dataset, "column_names", None) or ())

    def readable(self) -> bool:
        """Whether the first row's text can be read, which speaks for the rest."""
        return self.pair(0) is not None

    def decodes(self) -> bool:
        """Whether text is decoded from tokens: in a template, perhaps cut, not as it was written.

        The first row speaks for the rest.
        """
        if self._dataset is None or len(self._dataset) == 0:
            return False
        record = self._dataset[0]
        pairs = ([record.get(name) for name in names] for names in _PAIRS)
        return not any(all(isinstance(text, str) for text in pair) for pair in pairs)

    def pair(self, row: int, sample: int | None = None) -> tuple[str, str] | None:
        """(prompt, response) of a row of the data set, or None where it cannot be read.

        Args:
            row: row number, negative for samples that the data set does not list.
            sample: content id, which tells the samples of a packed row apart; the first if None.
        """
        if self._dataset is None or row < 0 or row >= len(self._dataset):
            return None
        record = self._dataset[row]
        if not isinstance(record, dict):
            return None
        for prompt, response in _PAIRS:
            if isinstance(record.get(prompt), str) and isinstance(record.get(response), str):
                extra = record.get("input") if prompt == "instruction" else None
                return f"{record[prompt]}\n\n{extra}" if extra else record[prompt], record[response]
        return self._decode(record, sample)

    def _decode(self, record: dict[str, Any], sample: int | None) -> tuple[str, str] | None:
        tokens = record.get("input_ids")
        if tokens is None or self._tokenizer is None:
            return None
        tokens = [int(t) for t in tokens]
        trained = _trained_positions(record, len(tokens))
        if "seq_lengths" in self._names:
            part = _packed_part(tokens, record["seq_lengths"], sample)
            if part is None:
                return None
            tokens, trained = tokens[part], trained[part]
        prompt = [t for t, used in zip(tokens, trained, strict=False) if not used]
        answer = [t for t, used in zip(tokens, trained, strict=False) if used]
        decode = self._tokenizer.decode
        return tuple(decode(part, skip_special_tokens=True).strip() for part in (prompt, answer))  # type: ignore[return-value]

    def attach(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Add ``prompt`` and ``response`` columns by ``row`` and ``id``; None where unknown."""
        places = zip(frame["row"], frame["id"], strict=True)
        pairs = [self.pair(int(row), int(sample)) or (None, None) for row, sample in places]
        prompts, responses = zip(*pairs, strict=True) if pairs else ((), ())
        return frame.assign(prompt=list(prompts), response=list(responses))


def _packed_part(tokens: list[int], lengths: Any, sample: int | None) -> slice | None:
    """Where a packed row holds the sample of an id; None if it does not."""
    ends = torch.tensor([0, *(int(length) for length in lengths)]).cumsum(0)
    parts = [slice(start, end) for start, end in pairwise(ends.tolist())]
    if sample is None:
        return parts[0]
    ids = content_ids(torch.tensor([tokens]), cu_seq_lens=ends).tolist()
    return parts[ids.index(sample)] if sample in ids else None


def _trained_positions(record: dict[str, Any], length: int) -> list[bool]:
    """Which tokens the loss is on: by labels, TRL's masks, or all of them."""
    labels = record.get("labels")
    if labels is not None:
        return [int(label) >= 0 for label in labels]
    for name in ("completion_mask", "assistant_masks"):
        if record.get(name) is not None and len(record[name]):
            return [bool(used) for used in record[name]]
    return [True] * length
