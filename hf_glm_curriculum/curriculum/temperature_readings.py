"""What a temperature field reads: entropies, expected rarities, counts of tokens.

Shape letters: V vocabulary size, B rows, T positions, H hidden size, N tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.kernels.token_map import map_logits
from hf_glm_curriculum.models import backbone
from hf_glm_curriculum.progress import progress

_BUFFERED = 2**20


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats of softmax(logits) [..., V] → [...]; −∞ logits are allowed."""
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def expected_value(logits: Tensor, values: Tensor) -> Tensor:
    """Mean of ``values`` [V] under softmax(logits) [..., V] → [...]."""
    return logits.softmax(-1) @ values.to(logits)


def count_tokens(
    ids: Iterable[Any], vocab_size: int, show_progress: bool | None = None
) -> np.ndarray:
    """Count tokens of a stream: rows of ids, rows with ``input_ids``, or single ids.

    Negative ids are left out, so that labels may be counted too.

    Returns:
        [V] int64.

    Raises:
        DataError: if there is no token, or an id is not below ``vocab_size``.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    total = len(ids) if hasattr(ids, "__len__") else None  # pyright: ignore[reportArgumentType]
    buffered: list[np.ndarray] = []
    size = 0
    with progress(total, "Counting tokens", show_progress) as bar:
        for row in ids:
            found = np.asarray(tokens_of(row)).reshape(-1)
            buffered.append(found)
            size += found.size
            if size >= _BUFFERED:
                _count(buffered, counts)
                buffered, size = [], 0
            bar.advance()
    _count(buffered, counts)
    if not counts.any():
        raise DataError("ids: must hold at least one token, got none; pass rows of token ids.")
    return counts


def _count(rows: list[np.ndarray], counts: np.ndarray) -> None:
    if not rows:
        return
    ids = np.concatenate(rows)
    ids = ids[ids >= 0].astype(np.int64, copy=False)
    if ids.size and ids.max() >= len(counts):
        raise DataError(
            f"ids: must be below vocab_size={len(counts)}, got {ids.max()}; pass the number of "
            "the model's logits."
        )
    counts += np.bincount(ids, minlength=len(counts))


def tokens_of(row: Any) -> Any:
    """The ids of a row: its ``input_ids`` where it is a mapping, else the row itself."""
    return row["input_ids"] if isinstance(row, Mapping) else row


def batches(rows: Iterable[Any], batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Right-padded ids [B, T], their mask [B, T], and which positions predict a label [B, T].

    Rows with ``labels`` count where these are not negative, others everywhere.
    """
    stream = iter(rows)
    while part := list(islice(stream, batch_size)):
        ids = [torch.as_tensor(tokens_of(row), dtype=torch.long).reshape(-1) for row in part]
        labels = [
            torch.as_tensor(row["labels"]).reshape(-1)
            if isinstance(row, Mapping) and "labels" in row
            else one
            for row, one in zip(part, ids, strict=True)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        sizes = torch.tensor([len(one) for one in ids])
        mask = torch.arange(padded.shape[1]) < sizes[:, None]
        wanted = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        yield padded, mask.long(), torch.nn.functional.pad(wanted[:, 1:] >= 0, (0, 1))


@torch.no_grad()
def read_positions(model: Any, ids: Tensor, mask: Tensor, read: Callable[..., Tensor]) -> Tensor:
    """A reading of the next-token distribution at every position, logits made in chunks.

    Args:
        model: a causal LM; put into evaluation mode for the call.
        ids: [B, T] int64.
        mask: [B, T], 1 for real tokens.
        read: logits [N, V] → [N].

    Returns:
        [B, T]; padding holds numbers without meaning.
    """
    was_training = model.training
    model.eval()
    try:
        head = OutputHead.of(model)
        device = next(model.parameters()).device
        given = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
        output = backbone(model)(**given, use_cache=False)
        hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
        flat = hidden.reshape(-1, hidden.shape[-1]).to(head.weight.device)
        return map_logits(read, flat, heads=(head,)).view(ids.shape)
    finally:
        model.train(was_training)


def as_rows(ids: Tensor | Sequence[Any]) -> Iterable[Any]:
    """Rows of a tensor [B, T], or the rows that were given."""
    return list(ids) if isinstance(ids, Tensor) else ids
