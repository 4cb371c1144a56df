from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum import ProgressiveUnlock
from hf_glm_curriculum.errors import ConfigError, DataError, StateError

ORDER = ("factual", "logic", "compliance")


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([list(values)] * 4)


def test_the_hard_dimension_alone_until_it_has_settled():
    unlock = ProgressiveUnlock(ORDER, target=0.7, min_steps=5, max_steps=None, window=3)
    for _ in range(20):
        assert unlock.update(rows(0.6, 1.0, 1.0)).tolist() == [True, False, False]
    # Three means above the target are needed, not one.
    seen = [unlock.update(rows(0.8, 0.1, 1.0)).sum().item() for _ in range(3)]
    assert seen == [1, 2, 2]  # mean of (.6, .8, .8) is above 0.7 at the second
    assert unlock.stage == 1 and not unlock.finished


def test_not_before_min_steps():
    unlock = ProgressiveUnlock(ORDER, min_steps=4, window=2)
    counts = [int(unlock.update(rows(0.9, 0.9, 0.9)).sum()) for _ in range(9)]
    assert counts == [1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert unlock.finished


def test_max_steps_lets_the_others_in_anyway():
    unlock = ProgressiveUnlock(ORDER, min_steps=2, max_steps=4)
    counts = [int(unlock.update(rows(0.1, 0.1, 0.1)).sum()) for _ in range(9)]
    assert counts == [1, 1, 1, 2, 2, 2, 2, 3, 3]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.integers(0, 5), st.integers(1, 5))
def test_nothing_is_ever_locked_again(means, least, window):
    unlock = ProgressiveUnlock(ORDER, min_steps=least, max_steps=least + 9, window=window)
    before = unlock.unlocked()
    for mean in means:
        after = unlock.update(rows(mean, mean, mean))
        assert after[0] and not (before & ~after).any()
        before = after


def test_closed_and_null_rows_do_not_move_the_mean():
    unlock = ProgressiveUnlock(ORDER, min_steps=1, window=1)
    scores = torch.tensor([[0.9, 0.5, 0.5], [0.1, 0.5, 0.5], [float("nan"), 0.5, 0.5]])
    mask = torch.tensor([[True] * 3, [False] * 3, [True] * 3])
    assert int(unlock.update(scores, mask).sum()) == 2
    closed = ProgressiveUnlock(ORDER, min_steps=1, window=1)
    assert int(closed.update(scores, torch.zeros(3, 3, dtype=torch.bool)).sum()) == 1


def test_groups_and_column_order():
    unlock = ProgressiveUnlock(("factual", ("logic", "compliance")), min_steps=1, window=1)
    columns = ("compliance", "factual", "logic")
    assert unlock.unlocked(columns).tolist() == [False, True, False]
    assert unlock.update(rows(0.1, 0.9, 0.1), dimensions=columns).tolist() == [True] * 3


def test_state_goes_on_where_it_was():
    one, two = (ProgressiveUnlock(ORDER, min_steps=3, window=4) for _ in range(2))
    torch.manual_seed(1)
    batches = [0.55 + 0.45 * torch.rand(4, 3) for _ in range(20)]
    for batch in batches[:6]:
        one.update(batch)
    two.load_state_dict(one.state_dict())
    for batch in batches[6:]:
        assert torch.equal(one.update(batch), two.update(batch))
    assert one.state_dict() == two.state_dict()
    with pytest.raises(StateError, match="the order"):
        ProgressiveUnlock(("logic", "factual")).load_state_dict(
            ProgressiveUnlock(("factual", "logic")).state_dict()
        )


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="twice"):
        ProgressiveUnlock(("factual", "factual"))
    with pytest.raises(ConfigError, match="max_steps: must be at least min_steps"):
        ProgressiveUnlock(ORDER, min_steps=10, max_steps=5)
    with pytest.raises(ConfigError, match="target"):
        ProgressiveUnlock(ORDER, target=70)
    with pytest.raises(ConfigError, match="unknown dimension 'compliance'"):
        ProgressiveUnlock(("factual", "logic")).unlocked(ORDER)
    with pytest.raises(DataError, match="compliance of row 0"):
        ProgressiveUnlock(ORDER).update(rows(0.1, 0.2, 3.0))
