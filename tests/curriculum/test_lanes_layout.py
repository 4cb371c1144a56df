"""The windows of an epoch, for many sizes: one lane each, every row once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hf_glm_curriculum.curriculum.lane_config import FAST, REFINE, LaneConfig
from hf_glm_curriculum.curriculum.lane_layout import LaneLayout, Steps

SIZES = [0, 1, 3, 7, 8, 9, 15, 16, 17, 33, 100]


def windows(layout: LaneLayout, order) -> list[list[list[int]]]:
    """Rows of each place of each window."""
    pairs = itertools.pairwise(order.starts.tolist())
    places = [order.rows[a:b].tolist() for a, b in pairs]
    assert len(places) == layout.places
    size = layout.steps.window
    return [places[i : i + size] for i in range(0, len(places), size)]


@pytest.mark.parametrize("schedule", ["mixed", "easy_first", "alternating"])
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_every_row_stands_once_in_a_window_of_its_lane(schedule, factor):
    steps = Steps(batch=4, accumulation=2)
    config = LaneConfig(schedule=schedule, fast_batch_factor=factor)
    for fast, refine in itertools.product(SIZES, SIZES):
        if not fast + refine:
            continue
        lanes = np.array([FAST] * fast + [REFINE] * refine, np.int8)
        layout = LaneLayout(lanes, steps, config)
        sizes = set()
        for epoch in (0, 1):
            order = layout.order(epoch)
            found = windows(layout, order)
            assert sorted(order.rows.tolist()) == list(range(fast + refine))
            assert len(found) == len(order.lanes) == layout.windows
            moved = 0
            for i, (window, lane) in enumerate(zip(found, order.lanes, strict=True)):
                rows = [row for place in window for row in place]
                kinds = {FAST if row < fast else REFINE for row in rows}
                if lane == FAST:
                    assert kinds == {FAST}
                    assert max(map(len, window)) <= factor
                else:
                    assert set(map(len, window)) == {1}
                    moved += sum(row < fast for row in rows)
                assert min(map(len, window)) >= 1
                # Only the last may be short, and batches within one differ by one row a place.
                assert len(window) == steps.window or i == len(found) - 1
                assert max(map(len, window)) - min(map(len, window)) <= 1
            assert moved == layout.moved < steps.window
            sizes.add(len(found))
        assert len(sizes) == 1


def test_batches_are_evened_by_the_lanes_own_rows():
    lanes = np.array([FAST] * 8 + [REFINE] * 5, np.int8)
    layout = LaneLayout(lanes, Steps(batch=4, evened=True), LaneConfig(shuffle=False))
    order = layout.order(0)
    last = order.rows[order.starts[-5] :].tolist()
    assert layout.places == 4 + 8 and order.lanes.tolist()[-1] == REFINE
    assert sorted(order.rows.tolist()) == sorted([*range(13), 8, 9, 10])
    assert last[-4:] == [12, 8, 9, 10]


def test_an_order_is_a_function_of_seed_and_epoch():
    lanes = np.array([FAST, REFINE] * 20, np.int8)
    steps = Steps(batch=2)
    first = LaneLayout(lanes, steps, LaneConfig(seed=3)).order(2)
    again = LaneLayout(lanes, steps, LaneConfig(seed=3)).order(2)
    assert np.array_equal(first.rows, again.rows) and np.array_equal(first.lanes, again.lanes)
    for seed, epoch in ((3, 1), (4, 2)):
        other = LaneLayout(lanes, steps, LaneConfig(seed=seed)).order(epoch)
        assert not np.array_equal(first.rows, other.rows)


def test_lanes_take_turns_in_proportion():
    lanes = np.array([FAST] * 16 + [REFINE] * 24, np.int8)
    layout = LaneLayout(lanes, Steps(batch=4), LaneConfig(schedule="alternating"))
    kinds = layout.order(0).lanes.tolist()
    assert kinds.count(FAST) == 2 and kinds.count(REFINE) == 6
    assert kinds.index(FAST) < 4 <= kinds.index(FAST, 4)
