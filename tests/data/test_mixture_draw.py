"""The drawing rule against what it promises: shares, evenness, whole steps."""

from __future__ import annotations

import numpy as np
import pytest

from hf_glm_curriculum.data.mixture_draw import DrawState, choose, record, take_effect


def draw(ratios, sizes, n, step_rows=None, state=None, forget=False):
    """Draw n rows; ``sizes[s](i)`` is the size of row i of source s."""
    state = state or DrawState.fresh(len(ratios))
    if forget:
        take_effect(state, ratios)
    drawn = []
    for _ in range(n):
        size_of = lambda s: float(sizes[s](state.rows[s]))  # noqa: E731
        source, charge = choose(state, ratios, size_of, step_rows)
        record(state, ratios, source, charge, int(size_of(source)))
        drawn.append(source)
    return drawn, state


def random_sizes(sources, seed, most):
    tables = np.random.default_rng(seed).integers(1, most + 1, (sources, 5000))
    return [lambda i, table=table: table[i] for table in tables]


@pytest.mark.parametrize("ratios", [[0.7, 0.3], [0.995, 0.005], [0.5, 0.3, 0.15, 0.05], [1.0]])
def test_rows_never_stray_a_row_from_their_share(ratios):
    ones = [lambda i: 1] * len(ratios)
    counts = np.zeros(len(ratios))
    drawn, _ = draw(ratios, ones, 2000)
    for number, source in enumerate(drawn, 1):
        counts[source] += 1
        assert np.abs(counts - number * np.array(ratios)).max() <= 1.0


@pytest.mark.parametrize("seed", range(5))
def test_tokens_never_stray_a_row_from_their_share(seed):
    most, generator = 500, np.random.default_rng(seed)
    ratios = generator.dirichlet([0.5, 1.0, 2.0]).tolist()
    sizes = random_sizes(3, seed, most)
    counts, state = np.zeros(3), DrawState.fresh(3)
    for _ in range(3000):
        (source,), state = draw(ratios, sizes, 1, state=state)
        counts[source] += sizes[source](state.rows[source] - 1)
        assert np.abs(counts - counts.sum() * np.array(ratios)).max() <= most


def test_a_small_source_comes_at_even_intervals_and_not_at_once():
    drawn, _ = draw([0.99, 0.01], [lambda i: 1] * 2, 1000)
    places = np.flatnonzero(drawn)
    assert len(places) == 10
    assert 45 <= places[0] <= 55  # the middle of its first hundred rows
    assert set(np.diff(places)) == {100}


def test_a_source_at_zero_is_neither_drawn_nor_asked_for_its_size():
    def never(i):
        raise AssertionError("asked")

    drawn, _ = draw([1.0, 0.0], [lambda i: 1, never], 50)
    assert drawn == [0] * 50


def test_debts_end_when_a_source_leaves():
    sizes = [lambda i: 10, lambda i: 10]
    _, state = draw([0.5, 0.5], sizes, 1)
    assert state.credit == [-5.0, 5.0]
    draw([1.0, 0.0], sizes, 1, state=state, forget=True)
    assert state.credit[1] == 0.0


@pytest.mark.parametrize("ratio", [0.001, 0.05, 0.13, 0.4])
def test_every_step_holds_each_source_and_no_more_than_that_costs(ratio):
    sizes = random_sizes(2, 1, 300)
    drawn, state = draw([1 - ratio, ratio], sizes, 8 * 500, step_rows=8)
    steps = np.array(drawn).reshape(500, 8)
    assert (steps == 1).any(1).all() and (steps == 0).any(1).all()
    share = state.tokens[1] / sum(state.tokens)
    assert max(ratio, 1 / 8) * 0.95 < share < max(ratio, 1 / 8) * 1.1


def test_rows_that_only_a_step_asked_for_are_not_held_against_a_source():
    sizes = [lambda i: 100, lambda i: 100]
    _, state = draw([0.999, 0.001], sizes, 8 * 100, step_rows=8)
    assert state.rows[1] == 100
    assert min(state.credit) >= -100
    drawn, _ = draw([0.5, 0.5], sizes, 80, step_rows=8, state=state)
    assert abs(sum(drawn) - 40) <= 1


def test_three_sources_in_steps_of_three():
    drawn, _ = draw([0.98, 0.01, 0.01], [lambda i: 1] * 3, 30, step_rows=3)
    assert {tuple(sorted(step)) for step in np.array(drawn).reshape(10, 3)} == {(0, 1, 2)}


def test_a_state_survives_json():
    import json

    _, state = draw([0.7, 0.3], random_sizes(2, 0, 50), 37, step_rows=4)
    assert DrawState.from_dict(json.loads(json.dumps(state.as_dict()))) == state
