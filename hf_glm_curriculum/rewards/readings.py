"""What can be read off responses without a model: length, repetition, refusals, boilerplate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.text.refusals import is_refusal
from hf_glm_curriculum.text.repetition import distinct_n, repeated_ngram_share
from hf_glm_curriculum.text.templates import template_closing, template_opening
from hf_glm_curriculum.text.words import word_count


@dataclass(frozen=True)
class TextReadings:
    """One value a response, float64 [B] each; shares and flags in [0, 1]."""

    length: Tensor
    """Words and Han characters, or tokens where their numbers were given."""

    repetition: Tensor
    """Share of n-grams that occurred before in the same response."""

    refusal: Tensor
    """1 for a refusal that nobody asked for."""

    template: Tensor
    """1 for a boilerplate opening or closing."""

    empty: Tensor
    """1 for a response without a visible character."""

    unfinished: Tensor
    """1 for a response that generation cut off before its end-of-sequence token."""

    diversity: float
    """distinct-2 over all responses of the batch."""

    def metrics(self) -> dict[str, float]:
        """Means over the batch, and the diversity."""
        if not len(self.length):
            return {}
        return {
            "length": float(self.length.mean()),
            "repetition": float(self.repetition.mean()),
            "refusal_rate": float(self.refusal.mean()),
            "template_rate": float(self.template.mean()),
            "empty_rate": float(self.empty.mean()),
            "unfinished_rate": float(self.unfinished.mean()),
            "distinct_2": self.diversity,
        }


def read_responses(
    responses: Sequence[str],
    *,
    ngram: int = 3,
    n_tokens: Sequence[int] | Tensor | None = None,
    ended: Sequence[bool] | Tensor | None = None,
    refusal_ok: Sequence[bool] | Tensor | None = None,
) -> TextReadings:
    """Read a batch of responses, English or Chinese.

    Args:
        responses: B texts.
        ngram: size of the n-grams whose repetition counts.
        n_tokens: [B], length in tokens; words and Han characters are counted without it.
        ended: [B], whether the response came to its end-of-sequence token; all did without it.
        refusal_ok: [B], whether refusing is what the prompt calls for; nowhere without it.

    Raises:
        DataError: if an argument does not have one value for each response.
    """
    number = len(responses)
    wanted = _values("refusal_ok", refusal_ok, number, 0.0)
    declined = _flags(map(is_refusal, responses))
    lengths = _values("n_tokens", n_tokens, number, 0.0)
    if n_tokens is None:
        lengths = torch.tensor([word_count(r) for r in responses], dtype=torch.float64)
    repeated = [repeated_ngram_share(response, ngram) for response in responses]
    return TextReadings(
        length=lengths,
        repetition=torch.tensor(repeated, dtype=torch.float64),
        refusal=declined * (1.0 - wanted),
        template=_flags(bool(template_opening(r) or template_closing(r)) for r in responses),
        empty=_flags(not response.strip() for response in responses),
        unfinished=1.0 - _values("ended", ended, number, 1.0),
        diversity=distinct_n(responses, 2),
    )


def _flags(values: object) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)  # type: ignore


def _values(
    field: str, given: Sequence[float] | Tensor | None, number: int, default: float
) -> Tensor:
    if given is None:
        return torch.full((number,), default, dtype=torch.float64)
    values = torch.as_tensor(given).detach().double().cpu()
    if values.shape != (number,):
        raise DataError(
            f"{field}: needs one value for each of {number} responses, got {list(values.shape)}"
        )
    return values
