"""Pictures hold what they say: curves, bands, valleys, runs, rings around flagged ones."""

import numpy as np
import pytest

from hf_glm_curriculum import fit_scaling_law
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.scaling import plots, post_plots
from hf_glm_curriculum.scaling.post_law import fit_post_training_law
from tests.scaling.laws import law_of, runs_of


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    figures = []
    for module in (plots, post_plots):
        save = module.save_figure
        monkeypatch.setattr(
            module, "save_figure", lambda f, p, save=save: (figures.append(f), save(f, p))
        )
    return figures


def bent_law(form="chinchilla"):
    n, d, loss, unique = runs_of(form, noise=0.005)
    loss[10] *= 1.3
    return fit_scaling_law(n, d, loss, form=form, unique=unique)


@pytest.mark.parametrize("form", ["chinchilla", "kaplan", "data_limited"])
def test_every_picture_is_drawn_for_every_kind_of_form(tmp_path, drawn, form):
    law = bent_law(form)
    for name in ("fit", "isoflop", "frontier"):
        getattr(plots, f"{name}_png")(law, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").is_file()
    assert [len(figure.axes) for figure in drawn] == [2, 1, 2]


def test_the_fit_shows_runs_bands_and_flags(tmp_path, drawn):
    law = bent_law()
    plots.fit_png(law, tmp_path / "fit.png")
    left, right = drawn[0].axes
    assert len(left.lines) == 7 and len(left.collections) == 7 + 1 + 1
    runs, ring = left.collections[-2:]
    assert len(runs.get_offsets()) == len(law.evidence.runs)
    assert law.evidence.runs.values[10] in ring.get_offsets()[:, 1]
    errors = right.collections[0].get_offsets()[:, 1]
    assert errors.min() < -15


def test_valleys_end_in_their_floors(tmp_path, drawn):
    law = bent_law()
    plots.isoflop_png(law, tmp_path / "isoflop.png", [1e19, 1e20])
    axes = drawn[0].axes[0]
    *valleys, floors = axes.lines
    assert len(valleys) == 2
    for valley, size, loss in zip(valleys, *floors.get_data(), strict=True):
        x, y = valley.get_data()
        assert y.min() == pytest.approx(loss, rel=1e-3)
        assert x[y.argmin()] == pytest.approx(size, rel=0.05)


def test_the_frontier_shows_the_users_runs(tmp_path, drawn):
    law = bent_law()
    own = np.array([1e9]), np.array([2e10]), np.array([2.5])
    plots.frontier_png(law, tmp_path / "frontier.png", own)
    left, right = drawn[0].axes
    flops = 6 * 1e9 * 2e10
    assert left.collections[-1].get_offsets().tolist() == [[flops, 2.5]]
    assert right.collections[-1].get_offsets().tolist() == [[flops, 1e9]]


def test_given_laws_have_no_pictures(tmp_path):
    with pytest.raises(DataError, match="no runs to draw"):
        plots.fit_png(law_of("chinchilla"), tmp_path / "fit.png")


def test_a_post_training_law_has_a_panel_an_input(tmp_path, drawn):
    rows = np.repeat(np.geomspace(100, 1e5, 5), 4)
    pairs = np.tile(np.geomspace(100, 1e4, 4), 5)
    law = fit_post_training_law(
        {"sft_rows": rows, "preference_pairs": pairs}, 1 + 4 / rows**0.4 + 2 / pairs**0.3
    )
    post_plots.post_law_png(law, tmp_path / "post.png")
    assert [axes.get_xlabel() for axes in drawn[0].axes] == ["sft rows", "preference pairs"]
    for axes in drawn[0].axes:
        x, y = axes.lines[0].get_data()
        for size, value in axes.collections[-1].get_offsets():
            assert np.interp(size, x, y) == pytest.approx(value, rel=0.01)
