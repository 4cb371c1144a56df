"""Schedules: values at every step, mappings, and what is refused."""

from __future__ import annotations

import math

import pytest

from hf_glm_curriculum.errors import ConfigError
from hf_glm_curriculum.losses.schedules import (
    Steps,
    cosine,
    describe_schedule,
    linear,
    parse_schedule,
)


def test_ramps():
    ramp = linear(10, 20, 0.0, 1.0)
    assert [ramp(s) for s in (0, 10, 15, 20, 99)] == [0, 0, 0.5, 1, 1]
    wave = cosine(0, 8, 1.0, 0.0)
    assert [wave(s) for s in range(9)] == pytest.approx(
        [0.5 + 0.5 * math.cos(math.pi * s / 8) for s in range(9)]
    )
    jumps = Steps({5: 0.5, 2: 0.1}, begin=1.0)
    assert [jumps(s) for s in (0, 2, 4, 5, 50)] == [1.0, 0.1, 0.1, 0.5, 0.5]


@pytest.mark.parametrize("made", [linear(1, 5, 0.2, 0.8), cosine(0, 3, 1, 0), Steps({4: 0.5})])
def test_mappings_round_trip(made):
    assert parse_schedule(describe_schedule(made)) == made


def test_a_mapping_starts_here_and_from_the_present_weight():
    ramp = parse_schedule({"kind": "linear", "end": 30, "to": 1}, weight=0.4, step=20)
    assert ramp == linear(20, 30, 0.4, 1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "liner", "end": 3, "to": 1}, "did you mean linear"),
        ({"kind": "linear", "ende": 3, "to": 1}, "no field 'ende' in linear; did you mean end"),
        ({"kind": "linear", "to": 1}, "linear needs end"),
        ({"kind": "linear", "start": 5, "end": 5, "to": 1}, "0 <= start < end"),
        ({"kind": "cosine", "end": 5, "to": -1}, "finite number of 0 or more, got -1"),
        ({"kind": "step", "at": {}}, "at least one step"),
        ({"kind": "step", "at": {-1: 0.2}}, "0 or more, got -1"),
        ({"kind": "linear", "end": "soon", "to": 1}, "schedule end must be int"),
        (0.5, "must be a mapping or a callable"),
    ],
)
def test_bad_schedules_are_named(value, message):
    with pytest.raises(ConfigError, match=message):
        parse_schedule(value)
