"""Content ids: what changes them, what must not, and packed rows of every shape."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.data.content_id import UNUSED_ID, content_ids, segment_ids
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.segments import segment_map

MASK64 = 2**64 - 1
samples = st.lists(
    st.lists(st.integers(0, 151_000), min_size=1, max_size=12), min_size=1, max_size=6
)


def mix(value: int) -> int:
    """splitmix64 step on Python integers: the oracle."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def oracle(tokens: list[int]) -> int:
    total = sum(mix((token << 32) + place) for place, token in enumerate(tokens))
    value = mix((total + len(tokens) * 0x9E3779B97F4A7C15) & MASK64)
    return value - 2**64 if value >= 2**63 else value


def pad(rows: list[list[int]], side: str, extra: int = 0, fill: int = 7):
    width = max(map(len, rows)) + extra
    ids, mask = torch.full((len(rows), width), fill), torch.zeros(len(rows), width).long()
    for i, row in enumerate(rows):
        where = slice(width - len(row), width) if side == "left" else slice(0, len(row))
        ids[i, where], mask[i, where] = torch.tensor(row), 1
    return ids, mask


def restarts(rows: list[list[int]]) -> torch.Tensor:
    return torch.cat([torch.arange(len(row)) for row in rows]).unsqueeze(0)


def flat(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor([token for row in rows for token in row]).unsqueeze(0)


def boundaries(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(np.cumsum([0] + [len(row) for row in rows]), dtype=torch.int32)


@given(samples, st.integers(0, 3), st.integers(0, 200_000))
def test_padding_and_packing_do_not_change_ids(rows, extra, fill):
    expected = [oracle(row) for row in rows]
    for side in ("left", "right"):
        ids, mask = pad(rows, side, extra, fill)
        assert content_ids(ids, mask).tolist() == expected
        positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)  # as HF's generate makes them
        assert content_ids(ids, mask, positions).tolist() == expected
        assert content_ids(ids, mask, positions.clamp(min=0) * mask).tolist() == expected
    assert content_ids(flat(rows), cu_seq_lens=boundaries(rows)).tolist() == expected
    tail_is_padding_like = len(rows) > 1 and len(rows[-1]) == 1 and rows[-1] == rows[-2]
    if not tail_is_padding_like:
        assert content_ids(flat(rows), position_ids=restarts(rows)).tolist() == expected


@given(st.lists(st.integers(0, 50), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_order_matters(tokens, random):
    shuffled = tokens[:]
    random.shuffle(shuffled)
    first, second = (content_ids(torch.tensor([x])).item() for x in (tokens, shuffled))
    assert (first == second) == (tokens == shuffled)


def test_no_collision_among_close_neighbours():
    grid = torch.cartesian_prod(*[torch.arange(40)] * 3)  # 64,000 triples
    assert content_ids(grid).unique().numel() == len(grid)
    zeros = torch.zeros(300, 300, dtype=torch.long)
    mask = torch.ones(300, 300).tril()
    assert content_ids(zeros, mask).unique().numel() == 300  # length counts, token 0 counts


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dtype_and_mask_dtype_do_not_matter(dtype):
    ids, mask = pad([[1, 2, 3], [4]], "right")
    expected = [oracle([1, 2, 3]), oracle([4])]
    for kind in (torch.int64, torch.bool, torch.float32):
        assert content_ids(ids.to(dtype), mask.to(kind)).tolist() == expected


def test_segment_map_of_unpacked_rows():
    ids, mask = pad([[1, 2, 3], [4]], "left")
    found = segment_map(ids, mask)
    assert found.count == 2
    assert found.index.tolist() == [[0, 0, 0], [-1, -1, 1]]
    assert found.position.tolist() == [[0, 1, 2], [-1, -1, 0]]
    assert found.index.dtype == torch.int64


def test_segment_map_of_packed_rows_with_a_mask():
    positions = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 1, 2, 0, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]])
    found = segment_map(torch.ones(2, 6).long(), mask, positions)
    assert found.index.tolist() == [[0, 0, 1, 1, 1, -1], [2, 2, 2, 3, -1, -1]]
    assert found.position.tolist() == [[0, 1, 0, 1, 2, -1], [0, 1, 2, 0, -1, -1]]
    assert found.count == 4


def test_trl_pads_padding_free_rows_with_position_zero_and_no_mask():
    ids = torch.tensor([[5, 6, 8, 9, 0, 0, 0]])
    found = segment_map(ids, position_ids=torch.tensor([[0, 1, 0, 1, 0, 0, 0]]))
    assert found.index.tolist() == [[0, 0, 1, 1, -1, -1, -1]]
    assert found.count == 2


def test_positions_that_start_anywhere_hold_one_sample():
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    expected = content_ids(ids).tolist()
    for positions in ([5, 6, 7], [[5, 6, 7]], [[0, 1, 2], [2, 3, 4]]):
        assert content_ids(ids, position_ids=torch.tensor(positions)).tolist() == expected


def test_restart_at_another_number_is_a_boundary():
    ids = torch.tensor([[3, 4, 5, 6]])
    found = content_ids(ids, position_ids=torch.tensor([[2, 3, 2, 3]]))  # RoBERTa counts from 2
    assert found.tolist() == [oracle([3, 4]), oracle([5, 6])]


def test_multimodal_positions():
    ids = torch.tensor([[9, 9, 9, 5, 9, 6]])
    temporal = torch.tensor([[0, 0, 0, 1, 0, 1]])
    found = content_ids(ids, position_ids=temporal.expand(3, 1, 6))
    assert found.tolist() == [oracle([9, 9, 9, 5]), oracle([9, 6])]
    text_first = torch.stack([torch.tensor([[0, 1, 2, 3, 0, 1]]), *[temporal] * 3])
    assert content_ids(ids, position_ids=text_first).tolist() == found.tolist()


def test_decoding_step_is_one_sample_a_row():
    found = segment_map(torch.tensor([[5], [5]]), torch.ones(2, 9), torch.tensor([[8], [0]]))
    assert found.index.tolist() == [[0], [1]]


def test_mask_with_a_cached_prefix_in_front():
    mask = torch.tensor([[0, 1, 1, 0, 1, 1]])
    assert content_ids(torch.tensor([[7, 5, 6]]), mask).tolist() == [oracle([5, 6])]


def test_rows_without_a_real_token_still_count():
    ids, mask = torch.ones(3, 2).long(), torch.tensor([[1, 1], [0, 0], [1, 0]])
    for positions in (None, torch.tensor([[0, 1], [0, 0], [0, 0]])):
        found = segment_map(ids, mask, positions)
        assert (found.count, found.index.tolist()) == (3, [[0, 0], [-1, -1], [2, -1]])
    assert content_ids(ids, mask).tolist() == [oracle([1, 1]), oracle([]), oracle([1])]


def test_boundaries_with_a_tail_and_an_empty_sample():
    found = segment_map(torch.arange(6).unsqueeze(0), cu_seq_lens=torch.tensor([0, 2, 2, 5]))
    assert found.index.tolist() == [[0, 0, 2, 2, 2, -1]]
    assert found.count == 3


def test_one_dimensional_row():
    found = segment_map(torch.tensor([1, 2, 3]), position_ids=torch.tensor([0, 1, 0]))
    assert found.index.tolist() == [0, 0, 1]
    assert segment_ids(torch.tensor([1, 2, 3]), found).tolist() == [oracle([1, 2]), oracle([3])]


def test_sentinel_is_avoided(monkeypatch):
    module = "hf_glm_curriculum.data.content_id"
    monkeypatch.setattr(f"{module}._mix", lambda key: torch.full_like(key, UNUSED_ID))
    assert content_ids(torch.tensor([[1, 2]])).tolist() == [UNUSED_ID - 1]


def test_unpacked_and_boundary_paths_never_read_a_tensor_on_the_host(monkeypatch):
    def forbidden(self, *args):
        raise AssertionError("host synchronisation")

    ids, mask = pad([[1, 2, 3], [4]], "right")
    for name in ("item", "tolist", "__bool__", "__int__", "__index__", "nonzero", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    first, second = content_ids(ids, mask), content_ids(ids, cu_seq_lens=torch.tensor([0, 3, 6]))
    monkeypatch.undo()
    assert first.tolist() == [oracle([1, 2, 3]), oracle([4])]
    assert second.shape == (2,)


def test_works_on_the_meta_device():
    ids = torch.zeros(4, 5, dtype=torch.long, device="meta")
    assert content_ids(ids, torch.ones_like(ids)).shape == (4,)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"attention_mask": torch.ones(2, 1, 3, 3)}, "attention_mask"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
        ({"position_ids": torch.arange(4)}, "position_ids"),
        ({"position_ids": torch.zeros(2, 2, 3)}, "position_ids"),
        ({"cu_seq_lens": torch.tensor([0])}, "cu_seq_lens"),
    ],
)
def test_wrong_shapes_are_named(arguments, field):
    with pytest.raises(DataError, match=field) as caught:
        content_ids(torch.ones(2, 3).long(), **arguments)
    assert "\n" not in str(caught.value)
