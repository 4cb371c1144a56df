"""Pictures hold what the run had, for runs of every shape."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hf_glm_curriculum.migration import plots
from hf_glm_curriculum.migration.config import MigrationConfig
from hf_glm_curriculum.migration.output import write_outputs
from hf_glm_curriculum.migration.schedule import schedule_for

pytestmark = pytest.mark.pictures

SCHEDULES = {
    "window at the end": schedule_for(MigrationConfig(), 400),
    "switch inside": schedule_for(MigrationConfig(pretrain_steps=300), 400),
    "all window": schedule_for(MigrationConfig(window=1.0), 3),
    "one step": schedule_for(MigrationConfig(window=1.0), 1),
}


@pytest.fixture
def drawn(monkeypatch):
    """Figures instead of files."""
    kept = {}
    monkeypatch.setattr(plots, "save_figure", lambda figure, path: kept.update({path.stem: figure}))
    return kept


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_heat_maps_hold_the_schedule(name, drawn, tmp_path):
    schedule = SCHEDULES[name]
    plots.layers_png(schedule, 4, tmp_path / "layers.png")
    pretrain, instruction = (axes.collections[0] for axes in drawn["layers"].axes[:2])
    steps = plots.plotted_steps(schedule)
    for column, step in enumerate(steps):
        weights = schedule.weights(step, 4)
        for image, wanted in zip((pretrain, instruction), weights.numpy(), strict=True):
            np.testing.assert_allclose(np.asarray(image.get_array())[:, column], wanted)
    assert steps[0] <= schedule.begin and steps[-1] <= schedule.max_steps


def test_asked_and_drawn_ratios_are_drawn(drawn, tmp_path):
    schedule = SCHEDULES["switch inside"]
    metrics = [{"step": s, "migration/ratio_drawn": s / 400} for s in (10, 290, 350)]
    plots.ratios_png(schedule, metrics, "migration/", tmp_path / "ratios.png")
    lines = {line.get_label(): line for line in drawn["ratios"].axes[0].lines}
    assert list(lines["drawn"].get_xdata()) == [290, 350]  # what lies far before is left out
    asked = lines["asked"]
    for step, ratio in zip(asked.get_xdata(), asked.get_ydata(), strict=True):
        assert ratio == schedule.injected_ratio(step)


def test_a_run_that_never_logged_has_no_loss_picture(tmp_path):
    write_outputs(tmp_path, "migration", SCHEDULES["window at the end"], 2, {"pretrain": 3.0})
    folder = tmp_path / "migration"
    assert sorted(p.name for p in folder.iterdir()) == ["layers.png", "ratios.png", "schedule.json"]
    written = json.loads((folder / "schedule.json").read_text())
    assert written["window"] == [360, 400] and written["label_tokens"] == {"pretrain": 3.0}
