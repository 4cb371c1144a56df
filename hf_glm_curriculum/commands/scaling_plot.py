"""`scaling plot`: the pictures of a law once more, with other budgets or further runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.scaling_config import ScalingPlotConfig
from hf_glm_curriculum.storage import ensure_folder, read_json


def run(config: ScalingPlotConfig, argv: Sequence[str]) -> int:
    """Draw as configured.

    Raises:
        HfGlmCurriculumError: The law or the table cannot be read, or the folder not written.
    """
    from hf_glm_curriculum.scaling.law import ScalingLaw
    from hf_glm_curriculum.scaling.plots import fit_png, frontier_png, isoflop_png
    from hf_glm_curriculum.scaling.post_law import FILE_KIND, PostTrainingLaw
    from hf_glm_curriculum.scaling.post_plots import post_law_png
    from hf_glm_curriculum.scaling.run_table import read_runs

    folder = Path(config.output_dir or Path(config.law).parent).expanduser()
    kept = read_json(Path(config.law).expanduser())
    if isinstance(kept, dict) and kept.get("kind") == FILE_KIND:
        post_law_png(PostTrainingLaw.load(config.law), ensure_folder(folder) / "post_law.png")
        say(f"picture: {folder / 'post_law.png'}")
        return 0
    law = ScalingLaw.load(config.law)
    more = None
    if config.runs:
        table = read_runs(config.runs, conventions=law.conventions)
        more = table.N, table.D, table.L
    ensure_folder(folder)
    fit_png(law, folder / "fit.png")
    isoflop_png(law, folder / "isoflop.png", config.budgets or None)
    frontier_png(law, folder / "frontier.png", more)
    say(f"pictures: {folder}: fit.png, isoflop.png, frontier.png")
    return 0
