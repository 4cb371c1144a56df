"""Sample ids from content: a 64-bit hash of a sample's real tokens, in order.

Trainers drop id columns before the model sees a batch (PITFALLS 4), so a sample is recognised
by what it says: ``id = finish(sum_j mix(token_j, j), length)`` over the real tokens ``j = 0, 1,
...`` of one sample. The sum makes the id independent of padding, batch mates and packing; the
position inside ``mix`` makes it sensitive to order. All arithmetic is modulo 2^64.

``mix`` is the finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014) over a key that holds token and position without overlap, so
that no two (token, position) pairs below 2^32 share a value.

Shape letters: B rows, T positions, S samples (segments).
"""

import torch
from torch import Tensor

from hf_glm_curriculum.segments import SegmentMap, segment_map

UNUSED_ID = 2**63 - 1
"""No sample ever has this id; tables use it as "empty"."""


def signed(value: int) -> int:
    """Return the int64 with the same 64 bits as the unsigned ``value``."""
    return value - 2**64 if value >= 2**63 else value


GAMMA = 0x9E3779B97F4A7C15
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
SHIFTS = (30, 27, 31)


def content_ids(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens: Tensor | None = None,
) -> Tensor:
    """Hash each sample of a batch into an id that depends on its real tokens only.

    Args:
        input_ids: integer [B, T]; token ids must fit in 32 bits.
        attention_mask: see `segment_map`.
        position_ids: see `segment_map`.
        cu_seq_lens: see `segment_map`.

    Returns:
        int64 [S], in row-major order of the samples; never `UNUSED_ID`.

    Raises:
        DataError: if the shapes do not belong together.
    """
    segments = segment_map(input_ids, attention_mask, position_ids, cu_seq_lens)
    return segment_ids(input_ids, segments)


def segment_ids(input_ids: Tensor, segments: SegmentMap) -> Tensor:
    """Hash the samples of a batch whose map is known already.

    Args:
        input_ids: integer, any shape.
        segments: map of the same shape, from `segment_map`.

    Returns:
        int64 [segments.count].
    """
    index = segments.index.reshape(-1)
    real = index >= 0
    key = (input_ids.reshape(-1).long() << 32) + segments.position.reshape(-1)
    mixed = torch.where(real, _mix(key), 0)
    slot = torch.where(real, index, segments.count)
    total = mixed.new_zeros(segments.count + 1).index_add_(0, slot, mixed)
    length = mixed.new_zeros(segments.count + 1).index_add_(0, slot, real.long())
    ids = _mix(total + length * signed(GAMMA))[: segments.count]
    return torch.where(ids == UNUSED_ID, UNUSED_ID - 1, ids)


def _mix(key: Tensor) -> Tensor:
    """Scramble int64 keys, one to one (splitmix64 step); `content_column` holds the numpy twin."""
    value = key + signed(GAMMA)
    value = (value ^ _shift_right(value, SHIFTS[0])) * signed(MULTIPLIER_1)
    value = (value ^ _shift_right(value, SHIFTS[1])) * signed(MULTIPLIER_2)
    return value ^ _shift_right(value, SHIFTS[2])


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift zeros in from the left; torch's ``>>`` on int64 copies the sign bit instead."""
    return (value >> bits) & (2 ** (64 - bits) - 1)
