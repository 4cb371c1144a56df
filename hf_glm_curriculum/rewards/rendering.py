"""Prompts and responses as the tokens a reward model reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_glm_curriculum.errors import DataError, ModelError

logger = logging.getLogger(__name__)

TOO_LONG = ("error", "cut")


@dataclass
class TokenBatch:
    """A padded batch: [B, T] int64 each; `token_type_ids` where the tokenizer makes pairs."""

    input_ids: Tensor
    attention_mask: Tensor
    token_type_ids: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are there, by the names models take them under."""
        return {name: value for name, value in vars(self).items() if value is not None}


class TextRenderer:
    """Turns (prompt, response) into tokens, the same for training and for scoring.

    A chat template renders one exchange, cut after its end-of-turn token; a tokenizer without one
    joins prompt and response by a line break and closes with its end-of-sequence token; an
    encoder reads the two as a pair.

    Args:
        tokenizer: a Hugging Face tokenizer.
        max_length: tokens that fit; None for no limit.
        pair: encode as a pair of texts, for encoders.
        too_long: what becomes of a pair that does not fit: the prompt loses its oldest tokens
            either way; where the response alone is too long, "error" raises and "cut" keeps the
            response's last tokens.

    Raises:
        ModelError: There is no tokenizer, or it has no end-of-sequence token to close with.
        DataError: `too_long` is neither.
    """

    def __init__(
        self, tokenizer: Any, max_length: int | None, *, pair: bool, too_long: str = "error"
    ) -> None:
        if tokenizer is None:
            raise ModelError(
                "tokenizer: the reward model has none, so it cannot read text; set "
                "model.tokenizer, or pass tokenizer= to from_backbone"
            )
        if too_long not in TOO_LONG:
            raise DataError(f"too_long: must be 'error' or 'cut', got {too_long!r}")
        self.tokenizer, self.pair, self.too_long = tokenizer, pair, too_long
        limits = [n for n in (max_length, tokenizer.model_max_length) if n and n < 10**9]
        self.max_length = min(limits) if limits else None
        self.template = bool(tokenizer.chat_template) and not pair
        if not pair and not self.template and tokenizer.eos_token_id is None:
            raise ModelError(
                "tokenizer: has neither a chat template nor an EOS token, so nothing says where a "
                "response ends; set tokenizer.eos_token"
            )
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {int(i) for i in tokenizer.all_special_ids}
        self._special |= {int(i) for i, token in added.items() if token.special}

    def encode(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """Token ids of each (prompt, response), without padding.

        Raises:
            DataError: The lists differ in length, hold something that is not text, or a response
                is too long and `too_long` says error.
        """
        check_texts(prompts, responses)
        if not len(prompts):
            return []
        if self.pair:
            return self._pairs(prompts, responses)
        rows = self._ids([self._text(p, r) for p, r in zip(prompts, responses, strict=True)])
        return [self._fitted(self._closed(ids), place, responses) for place, ids in enumerate(rows)]

    def pad(self, rows: Sequence[Sequence[int]]) -> TokenBatch:
        """Pad token ids on the right with zeros that the mask leaves out."""
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.as_tensor(row)
            mask[place, : len(row)] = 1
        return TokenBatch(ids, mask, self._types(rows, ids) if self.pair else None)

    def _text(self, prompt: str, response: str) -> str:
        if not self.template:
            return f"{prompt}\n{response}"
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
        try:
            return self.tokenizer.apply_chat_template(turns, tokenize=False)
        except Exception as error:  # a template is a program: it raises what it likes
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"the chat template refuses a prompt ({reason}); change the template or the text"
            ) from error

    def _ids(self, texts: list[str]) -> list[list[int]]:
        # A chat template has written the special tokens already.
        plain = not self.template
        return self.tokenizer(
            texts, add_special_tokens=plain, return_attention_mask=False, verbose=False
        )["input_ids"]

    def _closed(self, ids: list[int]) -> list[int]:
        """End with the end-of-turn token: cut the blanks after it, or append EOS."""
        end = len(ids)
        while end and ids[end - 1] not in self._special:
            if not self.template or self.tokenizer.decode([ids[end - 1]]).strip():
                return ids if self.tokenizer.eos_token_id is None else self._with_eos(ids)
            end -= 1
        return ids[:end] if end else self._with_eos(ids)

    def _with_eos(self, ids: list[int]) -> list[int]:
        return [*ids, self.tokenizer.eos_token_id]

    def _fitted(self, ids: list[int], place: int, responses: Sequence[str]) -> list[int]:
        """Drop the oldest tokens of what does not fit."""
        if self.max_length is None or len(ids) <= self.max_length:
            return ids
        if self.too_long == "error":
            self._check_response(responses[place], place, extra=1)
        return ids[-self.max_length :]

    def _check_response(self, response: str, place: int, extra: int) -> None:
        """Refuse a response that fills the context alone."""
        ids = self.tokenizer(response, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) + extra > (self.max_length or 0):
            raise DataError(
                f"row {place}: the response has {len(ids)} tokens, and the reward model reads "
                f"{self.max_length}; shorten it, raise max_tokens, or pass too_long='cut'"
            )

    def _pairs(self, prompts: Sequence[str], responses: Sequence[str]) -> list[list[int]]:
        """Special tokens, the prompt's, and the response's, the prompt cut to fit."""
        plain = {"add_special_tokens": False, "verbose": False, "return_attention_mask": False}
        firsts = self.tokenizer(list(prompts), **plain)["input_ids"]
        seconds = self.tokenizer(list(responses), **plain)["input_ids"]
        room = self.tokenizer.num_special_tokens_to_add(pair=True)
        rows = []
        for place, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
            if self.max_length is not None:
                if self.too_long == "error":
                    self._check_response(responses[place], place, extra=room)
                second = second[-max(1, self.max_length - room) :]
                keep = self.max_length - room - len(second)
                first = first[-keep:] if keep > 0 else []
            rows.append(self._joined(first, second))
        return rows

    def _joined(self, first: list[int], second: list[int]) -> list[int]:
        """[CLS] first [SEP] second [SEP], as BERT and its kin read a pair."""
        tokenizer = self.tokenizer
        begin, between = tokenizer.cls_token_id, tokenizer.sep_token_id
        if begin is None or between is None:
            raise ModelError(
                "tokenizer: an encoder's needs a [CLS] and a [SEP] token; use its own tokenizer"
            )
        return [begin, *first, between, *second, between]

    def _types(self, rows: Sequence[Sequence[int]], ids: Tensor) -> Tensor | None:
        """Segment 0 up to the first [SEP] and 1 after it, where the tokenizer has segments."""
        if "token_type_ids" not in self.tokenizer.model_input_names:
            return None
        types = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            start = list(row).index(self.tokenizer.sep_token_id) + 1
            types[place, start : len(row)] = 1
        return types


def check_texts(prompts: Sequence[str], responses: Sequence[str]) -> None:
    """Refuse lists that do not match or hold something else than text; tell of empty responses.

    Raises:
        DataError: Naming the row and what it holds.
    """
    for name, texts in (("prompts", prompts), ("responses", responses)):
        if isinstance(texts, str):
            raise DataError(f"{name}: must be a list of texts, got one text; wrap it in a list")
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(
                    f"{name}, row {row}: must be text, got {type(text).__name__}; drop or repair "
                    "the row"
                )
    if len(prompts) != len(responses):
        raise DataError(
            f"prompts, responses: must be of one length, got {len(prompts)} and {len(responses)}"
        )
    empty = [row for row, text in enumerate(responses) if not text.strip()]
    if empty:
        logger.warning(
            "%d of %d responses are empty (first: row %d); they are scored as the template "
            "renders them",
            len(empty),
            len(responses),
            empty[0],
        )


def tokenizers_agree(one: Any, other: Any) -> bool:
    """Whether two tokenizers give every text the same ids.

    Where they do not, ids of one mean nothing to the other: text has to be decoded and tokenised
    again.
    """
    if one is other:
        return True
    if one.get_vocab() != other.get_vocab():
        return False
    probe = "The year 2024, 3.14% – naïve café 你好，世界。\n\tdef f(x): return x**2"
    return one(probe)["input_ids"] == other(probe)["input_ids"]
