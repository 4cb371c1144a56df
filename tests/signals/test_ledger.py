"""The ledger against a dictionary of Python lists."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.signals.ledger import SampleLedger
from hf_glm_curriculum.signals.microbatch import SampleSignals
from hf_glm_curriculum.signals.slopes import append, mean_valid, robust_scale, slope, std_valid


def signals(ids, losses, **columns):
    n = len(ids)
    values = {
        "onset_loss": [0.0] * n,
        "opening_loss": [0.0] * n,
        "first_loss": [0.0] * n,
        "closing_loss": [0.0] * n,
        "grad_norm": [1.0] * n,
        "weight": [1.0] * n,
        **columns,
    }
    return SampleSignals(
        ids=torch.tensor(ids),
        n_tokens=torch.full((n,), 3),
        loss=torch.tensor(losses, dtype=torch.float32),
        **{name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()},
    )


STEPS = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0.125, 8, width=32)), min_size=1, max_size=6),
    min_size=1,
    max_size=12,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_rings_and_means_equal_plain_lists(steps):
    """Two visits of one sample in one step are one, with the mean of both."""
    ledger = SampleLedger(SampleIndex(np.arange(100, 106)), history=3)
    seen: dict[int, list[float]] = {}
    for step in steps:
        ledger.observe(signals([100 + k for k, _ in step], [x for _, x in step]))
        for k in {k for k, _ in step}:
            visit = [x for j, x in step if j == k]
            seen.setdefault(k, []).append(sum(visit) / len(visit))
    frame = ledger.to_pandas().set_index("row")
    assert sorted(frame.index) == sorted(seen)
    history = ledger.history(torch.arange(6)).loss
    for k, values in seen.items():
        kept = values[-3:]
        ring = history[k][torch.isfinite(history[k])].tolist()
        assert ring == pytest.approx(kept, rel=1e-5)
        assert frame.loc[k, "visits"] == len(values)
        assert frame.loc[k, "loss_mean"] == pytest.approx(np.mean(values), rel=1e-5)
        if len(kept) > 1:
            expected = np.polyfit(range(len(kept)), kept, 1)[0]
            assert frame.loc[k, "loss_slope"] == pytest.approx(expected, abs=1e-4)


def test_unknown_ids_change_nothing_until_added():
    ledger = SampleLedger()
    step = signals([7, 8], [1.0, 2.0])
    ledger.add(torch.tensor([8]))
    assert ledger.observe(step).tolist() == [-1, 0]
    ledger.add(torch.tensor([7, 8, 9]))
    assert len(ledger) == 3 and ledger.lookup(torch.tensor([7, 8, 9, 10])).tolist() == [1, 0, 2, -1]
    assert ledger.to_pandas()["id"].tolist() == [8]


def test_growth_keeps_what_was_seen():
    ledger = SampleLedger(history=2)
    for k in range(200):
        ledger.add(torch.tensor([k]))
        ledger.observe(signals([k], [float(k)]))
    frame = ledger.to_pandas()
    assert frame["loss"].tolist() == [float(k) for k in range(200)]


def test_nan_losses_and_gradients_are_no_observation():
    ledger = SampleLedger(SampleIndex(np.arange(3)))
    ledger.observe(signals([0, 1, 2], [1.0, float("nan"), 2.0], grad_norm=[1.0, 1.0, float("nan")]))
    frame = ledger.to_pandas()
    assert frame["row"].tolist() == [0, 2] and np.isnan(frame["grad_norm"][1])


def test_drift_is_the_cosine_distance_to_the_visit_before():
    ledger = SampleLedger(SampleIndex(np.arange(1)), drift=True)
    for angle in (0.0, 0.3, 0.3):
        step = signals([0], [1.0])
        step.embedding = torch.zeros(1, 64)
        step.embedding[0, 0], step.embedding[0, 1] = np.cos(angle), np.sin(angle)
        ledger.observe(step)
        last = ledger.to_pandas()["drift"][0]
        expected = {0.0: np.nan, 0.3: 1 - np.cos(0.3)}[angle]
        if angle == 0.3 and expected is not None:
            break
    assert last == pytest.approx(1 - np.cos(0.3), abs=1e-3)


@pytest.mark.parametrize("drift", [False, True])
def test_a_million_samples_fit_the_budget(drift):
    ledger = SampleLedger(SampleIndex(np.arange(1_000_000)), drift=drift)
    assert ledger.nbytes <= (300e6 if drift else 150e6)


def test_damaged_files_are_named(tmp_path):
    ledger = SampleLedger(SampleIndex(np.arange(4)))
    ledger.save(tmp_path / "a.safetensors")
    tensors = ledger.tensors()
    del tensors["visits"]
    with pytest.raises(StateError, match="missing or of the wrong length"):
        SampleLedger.from_tensors(tensors)
    with pytest.raises(StateError, match="cannot read"):
        SampleLedger.load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match="at least 2 visits, got 1"):
        SampleLedger(history=1)


def test_slope_mean_and_std_with_gaps():
    nan = float("nan")
    values = torch.tensor([[1.0, 2.0, 4.0, nan], [3.0, nan, 5.0, nan], [2.0, nan, nan, nan]])
    assert slope(values)[:2].tolist() == pytest.approx([1.5, 2.0])
    assert torch.isnan(slope(values)[2]) and torch.isnan(std_valid(values)[2])
    assert mean_valid(values).tolist() == pytest.approx([7 / 3, 4.0, 2.0])
    assert std_valid(values)[1] == pytest.approx(1.0)
    assert append(values, torch.tensor([9.0, 9.0, 9.0]))[0].tolist() == [1.0, 2.0, 4.0, 9.0]
    full = torch.tensor([[1.0, 2.0]])
    assert append(full, torch.tensor([3.0])).tolist() == [[2.0, 3.0]]
    median, deviation = robust_scale(torch.tensor([1.0, 2.0, 3.0, nan, 100.0, float("inf")]))
    assert median == 2.0 and deviation == pytest.approx(1.48)
