"""All ranks see every rank's signals: the collectives behind identical ledgers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hf_glm_curriculum.errors import HfGlmCurriculumError
from hf_glm_curriculum.signals.microbatch import TOKEN_MEANS, SampleSignals

_COLUMNS = (
    "n_tokens",
    "loss",
    *TOKEN_MEANS,
    "grad_norm",
    "weight",
)


def world_size() -> int:
    """Number of processes in the default group; 1 without one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process in the default group; 0 without one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def sum_over_ranks(tensor: Tensor) -> None:
    """Add a tensor up over all ranks, in place."""
    dist.all_reduce(tensor)


Made = TypeVar("Made")


def from_first_rank(make: Callable[[], Made]) -> Made:
    """What ``make`` returns on rank 0, on every rank.

    For answers that need not be the same twice, such as those of a judge who asks a service or a
    model; the other ranks wait and do not call it.

    Args:
        make: called on rank 0 only; its result must be picklable.

    Raises:
        HfGlmCurriculumError: on the other ranks, if ``make`` raised on rank 0.
    """
    if world_size() == 1:
        return make()
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = make()
        except BaseException as error:
            box[1] = f"{type(error).__name__}: {error}"
            dist.broadcast_object_list(box, src=0)
            raise
    dist.broadcast_object_list(box, src=0)
    if box[1] is not None:
        raise HfGlmCurriculumError(f"rank 0 failed, so every rank stops: {box[1]}")
    return box[0]


def gather_signals(signals: SampleSignals) -> SampleSignals:
    """Join every rank's signals in rank order; each rank returns the same.

    Ranks may hold different numbers of samples, but must agree on which notes there are and on
    whether there are embeddings. Sizes travel first, so the call synchronises with the host once.

    Args:
        signals: this rank's signals, M of them.

    Returns:
        The signals of all ranks, one after the other.
    """
    notes = sorted(signals.notes)
    columns = [getattr(signals, name) for name in _COLUMNS] + [signals.notes[n] for n in notes]
    # float64 carries float32 values and token counts alike without loss.
    table = torch.stack([c.double() for c in columns], dim=1)
    if signals.embedding is not None:
        table = torch.cat([table, signals.embedding.double()], dim=1)
    ids, parts = gather_rows(signals.ids), gather_rows(table)
    columns = list(parts[:, : len(columns)].unbind(1))
    named = dict(zip(_COLUMNS, columns, strict=False))
    values = {name: value.to(getattr(signals, name).dtype) for name, value in named.items()}
    extra = columns[len(_COLUMNS) :]
    embedding = None if signals.embedding is None else parts[:, len(_COLUMNS) + len(notes) :]
    return replace(
        signals,
        ids=ids,
        embedding=None if embedding is None else embedding.float(),
        notes={name: value.float() for name, value in zip(notes, extra, strict=True)},
        **values,
    )


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate [M, ...] tensors of different M over all ranks, in rank order."""
    world = world_size()
    size = torch.tensor([rows.shape[0]], device=rows.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    dist.all_gather(sizes, size)
    counts = [int(s) for s in sizes]
    padded = rows.new_zeros((max(counts), *rows.shape[1:]))
    padded[: rows.shape[0]] = rows
    parts = [torch.zeros_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
