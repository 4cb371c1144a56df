"""Which sample each position of a batch belongs to: padding and packing, read in one place.

Shape letters: B rows, T positions, S samples (segments).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_glm_curriculum.errors import DataError


@dataclass(frozen=True)
class SegmentMap:
    """Which sample each position of a batch belongs to.

    Attributes:
        index: int64, shaped as ``input_ids``: sample number 0..count-1 in row-major order, -1 on
            padding.
        position: int64, same shape: place of the token inside its sample, from 0; -1 on padding.
        count: number of samples (rows when nothing is packed; an all-padding row counts).
    """

    index: Tensor
    position: Tensor
    count: int


def segment_map(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens: Tensor | None = None,
) -> SegmentMap:
    """Find the samples in a batch: one a row, or several in a packed or padding-free row.

    Args:
        input_ids: integer [B, T] (or [T], taken as one row).
        attention_mask: [B, T], 0 on padding; a longer one (cache or prefix in front) is cut to
            its last T columns.
        position_ids: [B, T], [1, T], [T], or [3 | 4, B, T] (multimodal; channel 0 is read). A
            sample starts at the first real token of a row, at position 0 and wherever positions
            fall; rows that simply count up hold one sample, whatever they start at. Positions
            under the mask are ignored. Without a mask, two or more equal tokens that all stand
            at position 0 at the end of a row are padding (TRL pads packed rows so).
        cu_seq_lens: [S + 1] sample boundaries in the flattened batch (``cu_seq_lens_q`` of
            padding-free collators); takes precedence over ``position_ids``.

    Returns:
        The map. Only ``position_ids`` without ``cu_seq_lens`` cost a host synchronisation: one
        scalar, the number of samples, which sizes the output.

    Raises:
        DataError: if the shapes do not belong together.
    """
    ids = input_ids if input_ids.dim() == 2 else input_ids.reshape(1, -1)
    real = _real_tokens(ids, attention_mask)
    if cu_seq_lens is not None:
        found = _from_boundaries(real, cu_seq_lens)
    elif position_ids is not None:
        found = _from_positions(ids, real, position_ids, masked=attention_mask is not None)
    else:
        row = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1)
        position = torch.where(real, real.cumsum(1) - 1, -1)
        found = SegmentMap(torch.where(real, row, -1), position, ids.shape[0])
    shape = input_ids.shape
    return SegmentMap(found.index.reshape(shape), found.position.reshape(shape), found.count)


def _real_tokens(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return bool [B, T], False on padding."""
    if attention_mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    mask = attention_mask.reshape(1, -1) if attention_mask.dim() == 1 else attention_mask
    rows, width = ids.shape
    if mask.dim() != 2 or mask.shape[0] != rows or mask.shape[1] < width:
        raise DataError(
            f"attention_mask: must be [{rows}, {width}] like input_ids, got "
            f"{list(attention_mask.shape)}; pass the 2-D padding mask, not one made for attention"
        )
    return mask[:, mask.shape[1] - width :] != 0


def _from_boundaries(real: Tensor, cu_seq_lens: Tensor) -> SegmentMap:
    """Read samples from cumulative lengths [S + 1] over the flattened batch; never synchronises."""
    boundaries = cu_seq_lens.reshape(-1).to(device=real.device, dtype=torch.int64)
    count = boundaries.numel() - 1
    if count < 1:
        raise DataError(
            "cu_seq_lens: needs at least two boundaries (0 and the length of the row), got "
            f"{boundaries.numel()}; leave it out for rows that are not packed"
        )
    place = torch.arange(real.numel(), device=real.device)
    index = torch.searchsorted(boundaries, place, right=True) - 1
    index = torch.where(real.reshape(-1) & (index < count), index, -1)
    return _with_positions(index, count)


def _from_positions(ids: Tensor, real: Tensor, position_ids: Tensor, masked: bool) -> SegmentMap:
    """Read samples from restarts of the positions; one synchronisation, for the count."""
    position, multimodal = _flat_positions(ids, position_ids)
    if not masked and not multimodal:
        real = real & ~_trailing_zero_run(ids, position)
    column = torch.arange(ids.shape[1], device=ids.device).expand_as(real)
    last_real = torch.where(real, column, -1).cummax(1).values
    before = torch.nn.functional.pad(last_real[:, :-1], (1, 0), value=-1)
    fell = position < position.gather(1, before.clamp(min=0))
    if not multimodal:  # an image in front puts a run of equal temporal positions, zeros, there
        fell = fell | (position == 0)
    start = real & (fell | (before < 0))
    per_row = start.sum(1).clamp(min=1)
    first = per_row.cumsum(0) - per_row
    index = torch.where(real, first.unsqueeze(1) + start.cumsum(1) - 1, -1)
    return _with_positions(index.reshape(-1), int(per_row.sum()))


def _flat_positions(ids: Tensor, position_ids: Tensor) -> tuple[Tensor, bool]:
    """Return positions as [B, T] and whether they are multimodal (equal positions allowed)."""
    position = position_ids.to(ids.device)
    multimodal = position.dim() == 3 and position.shape[0] == 3
    if position.dim() == 3 and position.shape[0] in (1, 3, 4):
        position = position[0]
    if position.dim() == 1:
        position = position.unsqueeze(0)
    rows, width = ids.shape
    if position.dim() != 2 or position.shape[1] != width or position.shape[0] not in (1, rows):
        raise DataError(
            f"position_ids: must be [{rows}, {width}], [1, {width}], [{width}] or [3, {rows}, "
            f"{width}] to go with input_ids, got {list(position_ids.shape)}; leave them out for "
            "rows that are not packed"
        )
    return position.long().expand(rows, width), multimodal


def _trailing_zero_run(ids: Tensor, position: Tensor) -> Tensor:
    """Return bool [B, T]: the padding that TRL appends to packed rows, which carry no mask."""
    suspect = (position == 0) & (ids == ids[:, -1:])
    run = suspect.flip(1).long().cumprod(1).flip(1).bool()
    return run & (run.sum(1, keepdim=True) >= 2)


def _with_positions(index: Tensor, count: int) -> SegmentMap:
    """Add each token's place in its sample to a flat index (-1 on padding)."""
    real = index >= 0
    slot = torch.where(real, index, count)
    length = index.new_zeros(count + 1).index_add_(0, slot, real.long())
    first = length.cumsum(0) - length
    position = torch.where(real, real.cumsum(0) - 1 - first[slot], -1)
    return SegmentMap(index, position, count)
