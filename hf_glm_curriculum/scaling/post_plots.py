"""Pictures of a post-training law: its result against each input, with bands and runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hf_glm_curriculum.figures import new_figure, save_figure
from hf_glm_curriculum.scaling.post_law import PostTrainingLaw

_LINE, _RUNS = "#d64550", "#4c78a8"


def post_law_png(law: PostTrainingLaw, path: Path) -> None:
    """Draw the result against each input, the other inputs at their median; runs are moved there.

    A run's point is the law's value at the medians plus the run's own residual.

    Args:
        law: The law.
        path: PNG to write.

    Raises:
        StateError: The file cannot be written.
    """
    runs = law.evidence.runs
    middle = {name: float(np.median(runs.inputs[name])) for name in law.inputs}
    residuals = runs.values - law.predict(**runs.inputs)
    figure = new_figure(4.6 * len(law.inputs), 4.2)
    panels = figure.subplots(1, len(law.inputs), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, law.inputs, strict=True):
        seen = runs.inputs[name]
        x = np.geomspace(seen.min() / 1.5, seen.max() * 10, 120)
        at = {**middle, name: x}
        low, high = law.predict_interval(**at)
        axes.fill_between(x, low, high, color=_LINE, alpha=0.18, lw=0)
        axes.plot(x, law.predict(**at), color=_LINE, lw=1.3)
        moved = law.predict(**{**middle, name: seen}) + residuals
        axes.scatter(seen, moved, color=_RUNS, s=16, zorder=3, lw=0)
        axes.axvline(seen.max(), color="#8c8c8c", lw=0.8, ls=":")
        axes.set_xscale("log")
        axes.set_xlabel(name.replace("_", " "))
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(law.metric)
    save_figure(figure, path)
