"""Weights, life vectors and states against hand-worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from hf_glm_curriculum.data.index import SampleIndex
from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.lifespan import weighting
from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.lifespan.judges import SignalJudge, read_verdicts
from hf_glm_curriculum.lifespan.population import unknown_population
from hf_glm_curriculum.lifespan.states import (
    after_visit,
    apply_verdicts,
    effective_weight,
    release,
)
from hf_glm_curriculum.signals.ledger import SampleLedger, SampleState

NAN = float("nan")


def population(**changes):
    values = {
        "progress": (torch.tensor(0.1), torch.tensor(0.05)),
        "instability": torch.tensor(0.2),
        "readings": {
            "onset": (torch.tensor(1.0), torch.tensor(0.5)),
            "opening": (torch.tensor(1.0), torch.tensor(0.5)),
            "first": (torch.tensor(2.0), torch.tensor(1.0)),
            "closing": (torch.tensor(0.5), torch.tensor(0.25)),
            "loss": (torch.tensor(2.0), torch.tensor(0.5)),
        },
        "loss_median": torch.tensor(2.0),
        "mean_weight": torch.tensor(1.0),
    }
    return weighting.Population(**{**values, **changes})


def test_article_weight_is_the_articles_formula():
    """Against a transcription of the formula with numpy's polyfit, as the article has it."""
    losses = [2.0, 1.9, 1.85, 1.7]
    grads = [1.0, 1.2, 0.9, 1.1]
    b = np.polyfit(range(4), losses, 1)[0]
    s = np.std(grads) / (np.mean(grads) + 1e-8)
    expected = max(0.1, min(2.0, 1.5 - b * 10 + 0.5 * (1 - s)))
    rows = torch.tensor([[*losses, NAN], [2.0, 2.3, 2.7, 3.0, NAN], [2.0, 1.0, NAN, NAN, NAN]])
    g = torch.tensor([[*grads, NAN]] * 3)
    weights = weighting.article_weight(rows, g, 0.1, 2.0)
    assert weights[0] == pytest.approx(expected, rel=1e-5)
    assert weights[1] == pytest.approx(0.1) and weights[2] == 1.0


def test_progress_weight_by_hand():
    losses = torch.tensor([[2.0, 1.0, NAN], [2.0, 2.0, NAN], [2.0, NAN, NAN]])
    grads = torch.tensor([[1.0, 3.0, NAN], [1.0, NAN, NAN], [NAN, NAN, NAN]])
    weights = weighting.progress_weight(losses, grads, population(), 0.1, 2.0)
    r = 1.0 / 1.5
    first = 1 + math.tanh((r - 0.1) / 0.05) - 0.5 * (0.5 - 0.2)
    second = 1 + math.tanh(-0.1 / 0.05)
    assert weights.tolist() == pytest.approx([first, max(0.1, second), 1.0], rel=1e-5)


def test_an_unknown_population_weighs_everything_one():
    nobody = unknown_population(torch.device("cpu"))
    losses = torch.rand(5, 4)
    assert (weighting.progress_weight(losses, losses, nobody, 0.1, 2.0) == 1).all()
    nothing = weighting.suspicion(dict.fromkeys(weighting.READINGS, losses[:, 0]), nobody)
    assert torch.isnan(nothing).all()
    assert (weighting.first_visit_weight(nothing, 0.1) == 1).all()


def test_identical_samples_are_not_split_by_rounding():
    losses = torch.tensor([[2.0, 1.0]] * 4) + torch.tensor([0, 1e-7, -1e-7, 0])[:, None]
    r = weighting.relative_progress(losses)
    same = population(progress=weighting.reference_scale(r, torch.ones(4, dtype=torch.bool)))
    weights = weighting.progress_weight(losses, torch.full((4, 2), NAN), same, 0.1, 2.0)
    assert weights.tolist() == pytest.approx([1.0] * 4, abs=0.2)


def test_suspicion_is_the_largest_of_three_means():
    readings = {
        "onset": torch.tensor([3.0, 1.0, 1.0, NAN]),
        "opening": torch.tensor([2.0, 2.0, 1.0, 1.0]),
        "first": torch.tensor([2.0, 8.0, 2.0, 1.0]),
        "closing": torch.tensor([0.5, 0.5, 1.5, 1.0]),
        "loss": torch.tensor([2.0, 2.0, 3.0, 1.0]),
    }
    found = weighting.suspicion(readings, population())
    # ((3-1)/.5 + (2-1)/.5)/2, ((8-2)/1 + (2-1)/.5)/2, ((1.5-.5)/.25 + (3-2)/.5)/2
    assert found[:3].tolist() == pytest.approx([3.0, 4.0, 3.0]) and torch.isnan(found[3])


def test_first_visit_only_takes_away():
    weights = weighting.first_visit_weight(torch.tensor([-5.0, 0.0, 1.0, 2.5, NAN]), 0.1)
    assert weights[[0, 1, 2, 4]].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert weights[3] == pytest.approx(max(0.1, 1 - math.tanh(1.5)))


def test_upper_scale_of_a_normal_sample_is_its_deviation():
    torch.manual_seed(0)
    values = 3 + 2 * torch.randn(20000)
    median, deviation = weighting.upper_scale(values, torch.ones(20000, dtype=torch.bool))
    assert median == pytest.approx(3, abs=0.1) and deviation == pytest.approx(2, rel=0.05)
    seen = torch.zeros(20000, dtype=torch.bool)
    seen[: weighting.LEAST_POPULATION - 1] = True
    assert torch.isnan(torch.stack(weighting.upper_scale(values, seen))).all()
    seen[weighting.LEAST_POPULATION] = True
    assert torch.isfinite(torch.stack(weighting.upper_scale(values, seen))).all()


def test_life_norm_is_infinite_while_a_component_is_unknown():
    vector = weighting.life_vector(
        torch.tensor([[2.0, 1.0], [2.0, 1.0]]),
        torch.tensor([[1.0, 1.0], [1.0, 1.0]]),
        torch.tensor([0.3, NAN]),
    )
    scale = torch.tensor([2 / 3, 0.1, 0.3])
    norms = weighting.life_norm(vector, scale, (True, True, True))
    assert norms[0] == pytest.approx(math.sqrt(2), rel=1e-4) and norms[1] == math.inf
    assert weighting.life_norm(vector, scale, (True, False, False))[1] == pytest.approx(1, rel=1e-4)


def test_effective_weights_of_every_state():
    config = LifespanConfig()
    states = torch.tensor([s.value for s in SampleState], dtype=torch.uint8)
    raw = torch.full((5,), 1.5)
    assert effective_weight(states, raw, torch.tensor(0.75), config).tolist() == pytest.approx(
        [2.0, 0.1, 0.1, 1.0, 0.0]
    )
    plain = LifespanConfig(normalize_weights=False)
    assert effective_weight(states, raw, torch.tensor(0.75), plain)[0] == 1.5


@pytest.mark.parametrize(
    ("state", "visits", "norm", "suspicion", "after"),
    [
        ("TRAINING", 3, 0.4, 0.0, "OBSERVED"),
        ("TRAINING", 2, 0.4, 0.0, "TRAINING"),
        ("TRAINING", 3, 0.6, 0.0, "TRAINING"),
        ("TRAINING", 2, math.inf, 3.0, "OBSERVED"),
        ("TRAINING", 1, math.inf, 3.0, "TRAINING"),
        ("TRAINING", 9, NAN, NAN, "TRAINING"),
        ("RESAMPLE", 1, math.inf, 0.0, "TRAINING"),
        ("MASTERED", 9, 0.1, 9.0, "MASTERED"),
        ("RELABEL", 9, 0.1, 9.0, "RELABEL"),
        ("OBSERVED", 9, 9.0, 0.0, "OBSERVED"),
    ],
)
def test_transitions(state, visits, norm, suspicion, after):
    config = LifespanConfig(suspicion_threshold=2.5)
    found = after_visit(
        torch.tensor([SampleState[state].value], dtype=torch.uint8),
        torch.tensor([visits]),
        torch.tensor([norm]),
        torch.tensor([suspicion]),
        config,
    )
    assert SampleState(found.item()).name == after


def test_verdicts_act_once_and_can_be_taken_back():
    ledger = SampleLedger(SampleIndex(np.arange(4)))
    ledger.column("state")[:] = torch.tensor([1, 1, 1, 0])
    ledger.column("visits")[:] = 5
    rows = torch.arange(4)
    verdicts = read_verdicts(["MASTERED", "RESAMPLE", "RELABEL", "RELABEL"], 4)
    config = LifespanConfig(max_resamples=1)
    names = [SampleState(s).name for s in apply_verdicts(ledger, rows, verdicts, config).tolist()]
    assert names == ["MASTERED", "RESAMPLE", "RELABEL", "TRAINING"]  # the last was not observed
    assert ledger.column("visits").tolist() == [5, 0, 5, 5]
    ledger.column("state")[1] = SampleState.OBSERVED.value
    again = apply_verdicts(ledger, rows[1:2], read_verdicts(["RESAMPLE"], 1), config)
    assert SampleState(again.item()) == SampleState.MASTERED  # its one resample is spent
    release(ledger, rows[:3])
    assert ledger.column("state").tolist() == [0, 0, 0, 0]


def test_signal_judge():
    cases = pd.DataFrame(
        {
            "suspicion": [3.0, 2.2, 0.0, NAN, 0.0],
            "loss": [3.0, 3.0, 3.0, 3.0, 0.1],
            "loss_rank": [0.2, 0.2, 0.2, 0.9, 0.9],
        }
    )
    assert SignalJudge()(cases) == ["RELABEL", "OBSERVED", "MASTERED", "RESAMPLE", "MASTERED"]
    assert SignalJudge(suspicion_threshold=4.0)(cases)[0] == "MASTERED"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weighting": "linear"}, "weighting: must be one of progress, article, none"),
        ({"history": 1}, "history: must be at least 2, got 1"),
        ({"weight_floor": 3.0}, "weight_floor: must not exceed weight_cap"),
        ({"signals": ("slope", "colour")}, "signals: must be one of"),
        ({"signals": ()}, "signals: needs at least one"),
        ({"sync_every": 0}, "sync_every: must be at least 1"),
        ({"life_threshold": NAN}, "life_threshold: must be at least"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        LifespanConfig(**settings)


def test_token_weighted_mean():
    weight, tokens = torch.tensor([1.0, 3.0, 9.0]), torch.tensor([1, 3, 5])
    keep = torch.tensor([True, True, False])
    assert weighting.token_weighted_mean(weight, tokens, keep) == pytest.approx(2.5)
    assert weighting.token_weighted_mean(weight, tokens, torch.zeros(3, dtype=torch.bool)) == 1
