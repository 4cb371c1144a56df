"""`scaling fit`: a law from a table of runs or from their logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.scaling_config import ScalingFitConfig
from hf_glm_curriculum.commands.scaling_tables import show_evidence, show_law, show_more
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.storage import ensure_folder

if TYPE_CHECKING:
    from hf_glm_curriculum.scaling.law import ScalingLaw
    from hf_glm_curriculum.scaling.run_table import RunTable

LAW_FILE = "law.json"


def run(config: ScalingFitConfig, argv: Sequence[str]) -> int:
    """Fit as configured.

    Raises:
        HfGlmCurriculumError: Settings, table or folder do not allow it.
    """
    if not config.runs:
        raise ConfigError("runs: needs a table of runs; pass a CSV file")
    folder = Path(config.output_dir).expanduser()
    if (folder / LAW_FILE).exists() and not config.overwrite:
        raise StateError(
            f"output_dir {folder} holds a law; pass --overwrite, or choose another folder"
        )
    if config.post:
        _fit_post(config, folder)
    else:
        _fit_runs(config, folder)
    return 0


def _fit_runs(config: ScalingFitConfig, folder: Path) -> None:
    from hf_glm_curriculum.scaling.fit import fit_scaling_law
    from hf_glm_curriculum.scaling.run_table import read_runs

    if len(config.runs) > 1:
        raise ConfigError(f"runs: takes one table, got {len(config.runs)}; join them into one")
    conventions = Conventions(
        config.parameters, config.flops_per_parameter_token, config.loss_unit, config.tokenizer
    )
    columns = {
        "N": config.n_column,
        "D": config.d_column,
        "C": config.c_column,
        "L": config.loss_column,
        "U": config.unique_column,
    }
    table = read_runs(config.runs[0], columns, conventions)
    unique = table.U if config.form == "data_limited" else None
    if config.form == "data_limited" and unique is None:
        raise ConfigError(
            "form: data_limited needs a column of unique tokens; pass --unique-column"
        )
    law = fit_scaling_law(
        table.N,
        table.D,
        table.L,
        config.form,
        config.huber,
        config.bootstraps,
        config.seed,
        unique=unique,
        conventions=conventions,
        leave_out=_left_out(config, table),
    )
    show_law(law, law.formula)
    say(f"columns: {'; '.join(table.used)}")
    say(f"conventions: {law.conventions.line()}")
    show_evidence(law, table.lines)
    save_law(law, ensure_folder(folder))


def save_law(law: ScalingLaw, folder: Path) -> None:
    """Write a law with its three pictures.

    Raises:
        StateError: The folder cannot be written.
    """
    from hf_glm_curriculum.scaling.plots import fit_png, frontier_png, isoflop_png

    law.save(folder / LAW_FILE)
    fit_png(law, folder / "fit.png")
    isoflop_png(law, folder / "isoflop.png")
    frontier_png(law, folder / "frontier.png")
    say(f"law: {folder / LAW_FILE}; pictures: fit.png, isoflop.png, frontier.png beside it")


def _left_out(config: ScalingFitConfig, table: RunTable) -> list[int]:
    """Rows that the user takes out, from 0."""
    places = {line: row for row, line in enumerate(table.lines)}
    unknown = [line for line in config.leave_out if line not in places]
    if unknown:
        raise ConfigError(f"leave_out: the table has no run on line {unknown[0]}")
    rows = {places[line] for line in config.leave_out}
    if config.leave_out_highest:
        order = np.argsort(np.where(np.isnan(table.L), -np.inf, table.L))
        rows |= {int(row) for row in order[-config.leave_out_highest :]}
    return sorted(rows)


def _fit_post(config: ScalingFitConfig, folder: Path) -> None:
    from hf_glm_curriculum.scaling.post_law import fit_post_training_law
    from hf_glm_curriculum.scaling.post_plots import post_law_png
    from hf_glm_curriculum.scaling.run_logs import read_post_runs

    runs = read_post_runs(config.runs, config.metric, config.curve)
    law = fit_post_training_law(
        runs.inputs,
        runs.values,
        metric=config.metric,
        rises=config.rises,
        huber=config.huber,
        bootstraps=config.bootstraps,
        seed=config.seed,
        leave_out=config.leave_out,
    )
    show_law(law, f"{config.metric}: {law.form.formula}")
    for words in runs.notes:
        say(f"note: {words}")
    for name, value in law.constants.items():
        say(f"note: {name} is {value:g} in all runs, so that the law says nothing about it")
    show_evidence(law)
    seen = law.evidence.runs.inputs
    show_more(law, {name: float(seen[name].max()) for name in law.inputs}, 0.01)
    law.save(ensure_folder(folder) / LAW_FILE)
    post_law_png(law, folder / "post_law.png")
    say(f"law: {folder / LAW_FILE}; picture: post_law.png beside it")
