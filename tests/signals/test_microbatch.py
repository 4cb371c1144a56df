"""Which sample a token belongs to, and what is summed over it."""

from __future__ import annotations

import torch

from hf_glm_curriculum.data.content_id import content_ids
from hf_glm_curriculum.signals.microbatch import (
    ONSET_TOKENS,
    Microbatch,
    concatenate,
    label_rank,
    segment_sum,
    spread,
    target_segments,
)


def test_a_label_belongs_to_its_own_sample_in_packed_rows():
    segments = torch.tensor([[0, 0, 0, 1, 1, -1]])
    labels = torch.tensor([[-100, 5, 6, 7, 8, -100]])
    # Position 2 predicts token 3, the first of sample 1: its loss is sample 1's.
    assert target_segments(segments, labels).tolist() == [[0, 0, 1, 1, -1, -1]]


def test_rank_numbers_labels_across_rows_and_segments():
    target = torch.tensor([[0, -1, 0, 1], [2, 2, -1, 2]])
    assert label_rank(target, torch.tensor([2, 1, 3])).tolist() == [[0, -1, 1, 0], [0, 1, -1, 2]]


def test_segment_sum_and_spread_leave_padding_out():
    segments = torch.tensor([[0, 1, -1], [1, -1, 0]])
    values = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 4.0]])
    assert segment_sum(values, segments, 2).tolist() == [5.0, 5.0]
    wide = segment_sum(values[..., None].expand(-1, -1, 3), segments, 2)
    assert wide.shape == (2, 3) and wide[1].tolist() == [5.0, 5.0, 5.0]
    assert spread(torch.tensor([7.0, 8.0]), segments).tolist() == [[7, 8, 0], [8, 0, 7]]


def test_losses_by_hand():
    tokens = torch.arange(1, 13).unsqueeze(0)
    labels = tokens.clone()
    labels[0, :2] = -100
    batch = Microbatch.from_inputs(tokens, labels)
    loss = torch.zeros(1, 12)
    loss[0, 1:11] = torch.arange(10.0)  # ten labels, at positions 1..10
    surprisal = torch.full((1, 12), 0.5) * (batch.target >= 0)
    batch.record_losses(loss, surprisal)
    assert batch.n_tokens.item() == 10
    assert batch.loss.item() == 4.5
    assert batch.onset_loss.item() == sum(range(ONSET_TOKENS)) / ONSET_TOKENS - 0.5
    assert batch.opening_loss.item() == 1.5
    assert batch.first_loss.item() == 0.0
    assert batch.closing_loss.item() == 8.5
    assert batch.next_labels()[0, 1:11].tolist() == list(range(3, 13))


def test_a_sample_without_labels_is_nan():
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    labels = torch.tensor([[-100, -100, -100], [-100, 5, 6]])
    batch = Microbatch.from_inputs(tokens, labels)
    batch.record_losses(torch.ones(2, 3), torch.zeros(2, 3))
    assert torch.isnan(batch.loss[0]) and batch.loss[1] == 1
    assert batch.signals() is None  # no weight yet: the pass is not over


def test_concatenate_keeps_order_and_common_notes():
    parts = []
    for k in range(2):
        tokens = torch.tensor([[k + 1, 2, 3]])
        batch = Microbatch.from_inputs(tokens, tokens)
        batch.record_losses(torch.full((1, 3), float(k)), torch.zeros(1, 3))
        batch.weight = torch.ones(1)
        batch.notes = {"both": torch.tensor([float(k)]), f"only{k}": torch.zeros(1)}
        parts.append(batch.signals())
    joined = concatenate(parts)
    assert joined.loss.tolist() == [0.0, 1.0]
    assert list(joined.notes) == ["both"] and joined.notes["both"].tolist() == [0.0, 1.0]
    expected = [content_ids(torch.tensor([[k + 1, 2, 3]])).item() for k in range(2)]
    assert joined.ids.tolist() == expected
