"""How many samples moved between states: counted, kept over a resume, drawn."""

from __future__ import annotations

import csv
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from transformers import TrainerCallback

from hf_glm_curriculum import LifespanConfig, SampleIndex, SampleLedger, SampleLifespanCallback
from hf_glm_curriculum.lifespan import life_views
from hf_glm_curriculum.lifespan.flow_plot import UNSEEN_COLOUR, states_png
from hf_glm_curriculum.lifespan.flows import UNSEEN, Moment, StateFlow, layout
from hf_glm_curriculum.lifespan.plots import STATE_COLOURS
from hf_glm_curriculum.signals.ledger import SampleState
from tests.lifespan.runs import random_rows, train

pytestmark = pytest.mark.pictures

MOMENTS = [
    Moment("epoch 1", 8, 1.0, {(UNSEEN, "TRAINING"): 70, (UNSEEN, "OBSERVED"): 20}),
    Moment(
        "judged",
        8,
        1.0,
        {("TRAINING", "TRAINING"): 70, ("OBSERVED", "MASTERED"): 15, ("OBSERVED", "OBSERVED"): 5},
    ),
    Moment(
        "end",
        12,
        1.5,
        {
            (UNSEEN, "TRAINING"): 10,
            ("TRAINING", "TRAINING"): 60,
            ("TRAINING", "OBSERVED"): 10,
            ("MASTERED", "MASTERED"): 15,
            ("OBSERVED", "OBSERVED"): 5,
        },
    ),
]


@given(st.lists(st.lists(st.integers(0, 5), min_size=7, max_size=7), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_plain_python(history):
    """Each line gives the samples' states at a moment; 5 stands for not yet seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life_views, "ROWS_PER_BLOCK", 3)
        ledger, flow = SampleLedger(SampleIndex(np.arange(7))), StateFlow()
        before = [UNSEEN] * 7
        expected = []
        for step, line in enumerate(history):
            for row, state in enumerate(line):
                if state < 5:
                    ledger.column("lifetime")[row] = 1
                    ledger.column("state")[row] = state
            flow.note(ledger, f"m{step}", step, step / 2)
            seen = ledger.column("lifetime") > 0
            names = [SampleState(s).name for s in ledger.column("state").tolist()]
            now = [name if known else UNSEEN for name, known in zip(names, seen, strict=True)]
            pairs = [p for p in zip(before, now, strict=True) if p[1] != UNSEEN]
            if any(a != b for a, b in pairs):
                expected.append((f"m{step}", step, {p: pairs.count(p) for p in pairs}))
            before = now
    assert [(m.name, m.step, m.moves) for m in flow.moments] == expected
    again = StateFlow.from_tensors(flow.tensors())
    assert again.moments == flow.moments


def test_layout_stacks_every_sample_and_leads_every_move():
    found = layout(MOMENTS)
    assert found.total == 100
    assert found.columns[0] == {UNSEEN: (0, 100)}
    sizes = [{s: high - low for s, (low, high) in column.items()} for column in found.columns]
    assert sizes[1] == {"OBSERVED": 20, "TRAINING": 70, UNSEEN: 10}
    assert sizes[3] == {"MASTERED": 15, "OBSERVED": 15, "TRAINING": 70}
    for number, column in enumerate(found.columns):
        edges = sorted(column.values())
        assert edges[0][0] == 0 and edges[-1][1] == 100
        assert all(a[1] == b[0] for a, b in pairwise(edges))
        for side, ribbons in (
            ("left", [r for r in found.ribbons if r.column == number]),
            ("right", [r for r in found.ribbons if r.column == number - 1]),
        ):
            if ribbons:
                taken = sorted(i for r in ribbons for i in range(*getattr(r, side)))
                assert taken == list(range(100))
                name = {"left": "source", "right": "target"}[side]
                for r in ribbons:
                    low, high = column[getattr(r, name)]
                    assert low <= getattr(r, side)[0] and getattr(r, side)[1] <= high


def pixels(path, colour: str) -> int:
    image = imread(path)[..., :3]
    return int((np.abs(image - np.array(to_rgb(colour))).max(-1) < 0.02).sum())


def test_the_picture_shows_the_states_that_occur(tmp_path):
    states_png(MOMENTS, tmp_path / "states.png")
    for name in ("TRAINING", "OBSERVED", "MASTERED"):
        assert pixels(tmp_path / "states.png", STATE_COLOURS[name]) > 300, name
    assert pixels(tmp_path / "states.png", UNSEEN_COLOUR) > 300
    for name in ("RELABEL", "RESAMPLE"):
        assert pixels(tmp_path / "states.png", STATE_COLOURS[name]) == 0, name
    states_png([], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def config():
    return LifespanConfig(warmup_visits=2, life_threshold=9.0)


def judge(cases):
    verdicts = ["MASTERED", "RESAMPLE", "RELABEL"]
    return [verdicts[row % 3] for row in cases["row"]]


def read(folder):
    with (folder / "state_flow.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs) -> None:
        if state.global_step == 13:
            raise RuntimeError("killed")


@pytest.mark.parametrize("at", [10, 12], ids=["inside", "boundary"])
def test_a_run_leaves_its_flow_and_a_resumed_one_the_same(tmp_path, at):
    common = {"max_steps": 20, "save_strategy": "steps", "save_steps": at, "rows": random_rows(12)}
    whole = SampleLifespanCallback(config(), judge=judge)
    train([whole], output_dir=tmp_path / "a", **common)
    first = SampleLifespanCallback(config(), judge=judge)
    with pytest.raises(RuntimeError, match="killed"):
        train([first], output_dir=tmp_path / "b", fail=Stop, **common)
    second = SampleLifespanCallback(config(), judge=judge)
    train([second], output_dir=tmp_path / "b", resume=True, **common)
    rows = read(tmp_path / "a" / "lifespan")
    assert rows == read(tmp_path / "b" / "lifespan")
    assert {row["moment"] for row in rows} >= {"epoch 1", "epoch 2", "judged"}
    judged = {(r["source"], r["target"]) for r in rows if r["moment"] == "judged"}
    assert {("OBSERVED", "MASTERED"), ("OBSERVED", "RESAMPLE"), ("OBSERVED", "RELABEL")} <= judged
    assert ("RESAMPLE", "TRAINING") in {(r["source"], r["target"]) for r in rows}
    last = [r for r in rows if (r["moment"], r["step"]) == (rows[-1]["moment"], rows[-1]["step"])]
    now: dict[str, int] = {}
    for row in last:
        now[row["target"]] = now.get(row["target"], 0) + int(row["samples"])
    assert now == whole.ledger.to_pandas()["state"].value_counts().to_dict()
    assert sum(int(r["samples"]) for r in rows if r["source"] == UNSEEN) == 12
    states = tmp_path / "a" / "lifespan" / "states.png"
    assert all(pixels(states, STATE_COLOURS[s]) > 50 for s in now)


def test_a_run_of_unknown_samples_counts_them_as_they_come(tmp_path):
    settings_ = LifespanConfig(index_dataset=False)
    train([SampleLifespanCallback(settings_)], output_dir=tmp_path, max_steps=7)
    rows = read(tmp_path / "lifespan")
    assert [(r["source"], r["target"], r["samples"]) for r in rows if r["moment"] == "epoch 1"] == [
        (UNSEEN, "TRAINING", "10")
    ]
    assert len(rows) == 1  # nothing moved in the rest of the run
