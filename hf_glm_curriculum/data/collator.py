"""Padding of tokenised samples into a batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import ConfigError, DataError

IGNORED = -100
"""Label of tokens that carry no loss (the default ``ignore_index`` of cross-entropy)."""


@dataclass
class SftCollator:
    """Pads ``input_ids`` and ``labels`` to the longest sample of a batch.

    Attributes:
        pad_token_id: fills ``input_ids``; any valid token, since the mask hides it.
        padding_side: "right" or "left".
        pad_to_multiple_of: width becomes a multiple of this.
    """

    pad_token_id: int
    padding_side: str = "right"
    pad_to_multiple_of: int = 1

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: if one is out of range.
        """
        if self.padding_side not in ("left", "right"):
            raise ConfigError(f"padding_side: must be 'left' or 'right', got {self.padding_side!r}")
        if not isinstance(self.pad_token_id, int) or self.pad_token_id < 0:
            raise ConfigError(
                f"pad_token_id: must be a token id, got {self.pad_token_id!r}; a tokenizer "
                "without a padding token can use its eos_token_id"
            )
        if self.pad_to_multiple_of < 1:
            raise ConfigError(f"pad_to_multiple_of: must be >= 1, got {self.pad_to_multiple_of!r}")

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return input_ids, attention_mask and labels, int64 [B, T] each; other fields are left.

        Raises:
            DataError: if a sample lacks a field, or its labels differ in length from its tokens.
        """
        multiple = self.pad_to_multiple_of
        width = max(len(_field(sample, "input_ids")) for sample in samples)
        width = -(-width // multiple) * multiple
        shape = (len(samples), width)
        input_ids = torch.full(shape, self.pad_token_id)
        labels = torch.full(shape, IGNORED)
        attention_mask = torch.zeros(shape, dtype=torch.int64)
        for row, sample in enumerate(samples):
            tokens = torch.as_tensor(_field(sample, "input_ids"), dtype=torch.int64)
            targets = torch.as_tensor(_field(sample, "labels"), dtype=torch.int64)
            length = len(tokens)
            if len(targets) != length:
                raise DataError(
                    f"labels: sample {row} of the batch has {len(targets)} labels for {length} "
                    "tokens; one for each is needed, -100 where there is no loss"
                )
            start = width - length if self.padding_side == "left" else 0
            input_ids[row, start : start + length] = tokens
            labels[row, start : start + length] = targets
            attention_mask[row, start : start + length] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def _field(sample: Mapping[str, Any], name: str) -> Any:
    """Return a field of a sample or name what is missing."""
    if name not in sample:
        raise DataError(
            f"{name}: not in the sample, which has {sorted(sample)}; tokenise the data set with "
            "tokenize_sft first"
        )
    return sample[name]
