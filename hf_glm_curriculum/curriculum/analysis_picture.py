"""Histograms of the entropies of a set of instructions."""

from __future__ import annotations

from pathlib import Path

from hf_glm_curriculum.curriculum.analysis import MEASURES, InstructionAnalysis
from hf_glm_curriculum.curriculum.text_entropy import ARTICLE_BANDS
from hf_glm_curriculum.figures import new_figure, save_figure

_BANDS = ("#8c8c8c", "#e4733a", "#54a24b")


def entropy_png(analysis: InstructionAnalysis, path: Path) -> None:
    """Draw the three histograms, the articles' bands over that of the characters.

    Raises:
        StateError: the file cannot be written.
    """
    figure = new_figure(7.0, 7.6)
    panels = figure.subplots(len(analysis.distributions), 1)
    for axes, (name, found) in zip(panels, analysis.distributions.items(), strict=True):
        axes.stairs(found.counts, found.edges, fill=True, color="#4c78a8", alpha=0.85)
        axes.set_xlabel(MEASURES[name])
        axes.set_ylabel("rows")
        axes.grid(alpha=0.25)
        if name == "character":
            for (low, high), colour in zip(ARTICLE_BANDS, _BANDS, strict=True):
                label = f"article: {low}–{high} bits"
                axes.axvspan(low, high, color=colour, alpha=0.15, lw=0, label=label)
            axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)
