"""Rows as the models read them: prompt and response without the padding between, trimmed.

A rollout is left-padded prompts beside right-padded responses. Forward passes read each row's
real tokens only, padded on the right to the longest row *of the pass*. What is padding follows
from masks and lengths, never from token ids: a pad id inside a text is a token.

Shape letters: b rows of a pass, W its width, T response columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

READING_FILL = 0.8
"""`least_fill` of passes that only read."""


@dataclass(frozen=True)
class PackedRows:
    """Some rows of a rollout, ready for a forward pass."""

    input_ids: Tensor
    """[b, W], zeros where padded."""

    attention_mask: Tensor
    """[b, W], 1 on real tokens."""

    starts: Tensor
    """Prompt tokens of each row, [b]: response token t is input token start + t."""

    lengths: Tensor
    """Response tokens of each row, [b]."""

    columns: int
    """T: columns that results are laid out in."""

    def state_places(self) -> Tensor:
        """Input position of the state before response token t, [b, T], clamped to the row.

        The state after the last token (t = length) is the last token's own position.
        """
        t = torch.arange(self.columns, device=self.starts.device)
        return self.starts[:, None] - 1 + torch.minimum(t, self.lengths[:, None])

    def labels(self) -> Tensor:
        """The response token each input position predicts, −100 elsewhere, [b, W]."""
        width = self.input_ids.shape[1]
        place = torch.arange(width, device=self.starts.device)
        first = self.starts[:, None] - 1
        predicts = (place >= first) & (place < first + self.lengths[:, None])
        following = torch.roll(self.input_ids, -1, dims=1)
        return torch.where(predicts, following, -100)

    def last_places(self) -> Tensor:
        """Input position of each row's last token, [b]."""
        return self.starts + self.lengths - 1


def pack_rows(
    query_ids: Tensor,
    query_mask: Tensor,
    response_ids: Tensor,
    lengths: Tensor,
    columns: int | None = None,
) -> PackedRows:
    """Join prompts and responses without the padding between.

    Args:
        query_ids: [b, P], padded on the left.
        query_mask: bool [b, P].
        response_ids: [b, R].
        lengths: response tokens of each row, [b], at least 1.
        columns: T; R without it.
    """
    starts = query_mask.sum(dim=1)
    width = int((starts + lengths).max())
    place = torch.arange(width, device=query_ids.device)[None]
    offset = query_ids.shape[1] - starts[:, None]
    from_query = query_ids.gather(1, (place + offset).clamp(max=query_ids.shape[1] - 1))
    from_response = response_ids.gather(
        1, (place - starts[:, None]).clamp(0, response_ids.shape[1] - 1)
    )
    ids = torch.where(place < starts[:, None], from_query, from_response)
    real = place < (starts + lengths)[:, None]
    return PackedRows(
        input_ids=torch.where(real, ids, 0),
        attention_mask=real.long(),
        starts=starts,
        lengths=lengths,
        columns=response_ids.shape[1] if columns is None else columns,
    )


def by_length(
    total_lengths: Tensor, rows: Sequence[int], size: int, least_fill: float = 0.0
) -> Iterator[list[int]]:
    """Split rows into parts of at most `size`, rows of like length together, longest first.

    Longest first, so that memory that does not suffice is found out at once.

    Args:
        total_lengths: tokens of every row, [B].
        rows: which to split.
        size: most rows of a part.
        least_fill: a part ends before a row shorter than this share of its longest, which would
            be padding for the rest. 0 where every process has to make equally many passes.
    """
    lengths = total_lengths.tolist()
    order = sorted(rows, key=lambda row: (-lengths[row], row))
    part: list[int] = []
    for row in order:
        if part and (len(part) == size or lengths[row] < least_fill * lengths[part[0]]):
            yield part
            part = []
        part.append(row)
    if part:
        yield part
