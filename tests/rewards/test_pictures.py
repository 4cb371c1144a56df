from __future__ import annotations

import pytest

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.rewards.pictures import (
    checkpoint_bars_png,
    checkpoint_radar_png,
    gate_openness_png,
)

pytestmark = pytest.mark.pictures

PNG = b"\x89PNG"
RESULTS = {
    "SFT": {"factual": 0.4, "logic": 0.5, "compliance": 0.9},
    "PPO": {"factual": 0.7, "logic": 0.6, "compliance": 0.9},
}


@pytest.fixture
def drawn(monkeypatch):
    """What is put on axes, besides being drawn."""
    from matplotlib.axes import Axes

    lines = []
    plot = Axes.plot

    def spy(self, xs, ys, *args, **kwargs):
        lines.append((kwargs.get("label"), list(xs), list(ys)))
        return plot(self, xs, ys, *args, **kwargs)

    monkeypatch.setattr(Axes, "plot", spy)
    return lines


def test_gates_over_time(tmp_path, drawn):
    metrics = [
        {"step": 1, "loss": 1.0},
        {"step": 1, "structured/open_logic": 0.25, "structured/score_logic": 0.5},
        {"step": 2, "structured/open_logic": 0.75, "structured/open_factual": 1.0},
    ]
    path = tmp_path / "gates.png"
    assert gate_openness_png(metrics, path)
    assert path.read_bytes().startswith(PNG)
    assert drawn == [
        ("logic", [1, 2], [0.25, 0.75]),
        ("logic", [1], [0.5]),
        ("factual", [2], [1.0]),
    ]


def test_a_run_without_gates_has_no_picture(tmp_path):
    assert not gate_openness_png([{"step": 1, "loss": 1.0}], tmp_path / "gates.png")
    assert not (tmp_path / "gates.png").exists()


def test_checkpoints_as_radar_and_bars(tmp_path, drawn):
    checkpoint_radar_png(RESULTS, tmp_path / "radar.png")
    checkpoint_bars_png(RESULTS, tmp_path / "bars.png")
    assert [line[2] for line in drawn] == [[0.4, 0.5, 0.9, 0.4], [0.7, 0.6, 0.9, 0.7]]
    for name in ("radar", "bars"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)


def test_bad_input_is_named(tmp_path):
    with pytest.raises(DataError, match="needs three dimensions, got a, b"):
        checkpoint_radar_png({"one": {"a": 1.0, "b": 0.5}}, tmp_path / "x.png")
    with pytest.raises(DataError, match="PPO has factual"):
        checkpoint_bars_png({**RESULTS, "PPO": {"factual": 1.0}}, tmp_path / "x.png")
    with pytest.raises(DataError, match="at least one checkpoint"):
        checkpoint_bars_png({}, tmp_path / "x.png")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StateError, match="cannot write"):
        checkpoint_bars_png(RESULTS, file / "x.png")
