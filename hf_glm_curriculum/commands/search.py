"""`search`: hyper-parameters of a command's config, by optuna."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.search_config import SearchConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args
from hf_glm_curriculum.errors import ConfigError, StateError

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.search_study import Study

BEST, TABLE, PICTURE = "best.yaml", "trials.csv", "search.png"
_CLASSES = {
    "sft": ("sft_config", "SftCommandConfig"),
    "migrate": ("migrate_config", "MigrateCommandConfig"),
    "reward": ("reward_config", "RewardCommandConfig"),
    "ppo": ("ppo_config", "PpoCommandConfig"),
}
# Where a trial goes, and what it would leave outside its folder, over and over.
_SET_HERE = ("output_dir", "resume", "overwrite", "debug_dir", "push_to_hub", "harvest_into")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, SearchConfig)


def run(args: argparse.Namespace) -> int:
    """Search, and write the best settings as a config of the command.

    Raises:
        ConfigError: A setting is unknown or out of range.
        MissingDependencyError: optuna is not installed.
        StateError: The folder cannot be written, holds another search, or every trial failed.
    """
    from hf_glm_curriculum.commands.run_state import alone_in, check_writable
    from hf_glm_curriculum.commands.search_study import open_study, run_study
    from hf_glm_curriculum.storage import ensure_folder

    config = config_from_args(SearchConfig, args)
    base = prepare(config)
    folder = Path(config.output_dir).expanduser()
    check_writable(folder)
    with alone_in(ensure_folder(folder)):
        study = open_study(config, base)
        try:
            run_study(study)
        finally:
            _write_table(study)
        return _finish(study)


def prepare(config: SearchConfig) -> dict[str, Any]:
    """Read the base, and check the space against the command's config before the first trial.

    The names of `config.space` become full ones, so that they meet the base's.

    Returns:
        The base's settings, nested as the command's config is.

    Raises:
        ConfigError: With the nearest valid name, or the command's own refusal of a value.
    """
    from hf_glm_curriculum.commands.search_config import grid_values
    from hf_glm_curriculum.commands.search_study import with_settings
    from hf_glm_curriculum.config import load_config, settings_in

    module, name = _CLASSES[config.target]
    cls = getattr(import_module(f"hf_glm_curriculum.commands.{module}"), name)
    base = settings_in(cls, Path(config.base).expanduser()) if config.base else {}
    base = {key: value for key, value in base.items() if key not in _SET_HERE}
    config.space = _full_names(cls, config.space)
    for setting, entry in config.space.items():
        ends = grid_values(entry) if "choices" in entry else [entry["low"], entry["high"]]
        for value in ends:
            load_config(cls, None, with_settings(base, {setting: value}))
    return base


def _full_names(cls: type, space: dict[str, Any]) -> dict[str, Any]:
    """The space by full names of settings."""
    from hf_glm_curriculum.config import setting_path

    found: dict[str, Any] = {}
    for name, entry in space.items():
        full = setting_path(cls, name)
        if full in _SET_HERE:
            raise ConfigError(
                f"space.{name}: trials do without it, or the search sets it; leave it out"
            )
        if full in found:
            raise ConfigError(f"space.{name}: {full} is there twice; keep one of the two")
        found[full] = entry
    return found


def _finish(study: Study) -> int:
    """Show the trials, write the best, draw the history."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.search_study import best_trial, with_settings

    _show(study)
    best = best_trial(study)
    if best is None:
        raise StateError(
            f"no trial came to its end; their errors are in {study.folder / TABLE} and in "
            "trial-*/trial.log"
        )
    _write_best(study, with_settings(study.base, best.params))
    _draw(study)
    chosen = ", ".join(f"{name} {value}" for name, value in best.params.items())
    say(f"best: {study.config.objective} {best.value:.6g} in trial {best.number} with {chosen}")
    say(f"config: {study.folder / BEST}; trials: {study.folder / TABLE}, {study.folder / PICTURE}")
    return 0


def _write_best(study: Study, settings: dict[str, Any]) -> None:
    import yaml

    from hf_glm_curriculum.storage import atomic_write_text

    path = study.folder / BEST
    head = f"# hf-glm-curriculum {study.config.target} --config {path}\n"
    head += f"# The best of a search for {study.config.objective}.\n"
    atomic_write_text(path, head + yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _rows(study: Study) -> list[dict[str, Any]]:
    trials = study.study.get_trials(deepcopy=False)
    return [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": trial.value,
            "seconds": None if trial.duration is None else trial.duration.total_seconds(),
            **{name: trial.params.get(name) for name in study.config.space},
            "error": trial.user_attrs.get("error", ""),
        }
        for trial in trials
    ]


def _write_table(study: Study) -> None:
    import csv
    import io

    from hf_glm_curriculum.storage import atomic_write_text

    rows = _rows(study)
    names = ["trial", "state", "value", "seconds", *study.config.space, "error"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    atomic_write_text(study.folder / TABLE, buffer.getvalue())


def _show(study: Study) -> None:
    from hf_glm_curriculum.commands.console import show_table

    rows = [row for row in _rows(study) if row["state"] != "waiting"]
    sign = 1 if study.config.direction == "minimize" else -1
    rows.sort(key=lambda r: (r["value"] is None, sign * (r["value"] or 0)))
    columns = ("trial", "state", study.config.objective, *study.config.space)
    lines = [
        (
            row["trial"],
            row["state"],
            "–" if row["value"] is None else f"{row['value']:.5g}",
            *(str(row[name]) for name in study.config.space),
        )
        for row in rows[:20]
    ]
    show_table(f"{len(rows)} trials", columns, lines, right=(0, 2))


def _draw(study: Study) -> None:
    """Objective of every trial over time, and over each setting."""
    from hf_glm_curriculum.figures import new_figure, save_figure

    done = [row for row in _rows(study) if row["value"] is not None]
    names = list(study.config.space)
    figure = new_figure(7.0, 2.6 * (1 + len(names)))
    panels = figure.subplots(1 + len(names), 1, squeeze=False)[:, 0]
    values = [row["value"] for row in done]
    pick = min if study.config.direction == "minimize" else max
    panels[0].plot([row["trial"] for row in done], values, "o", color="#4c78a8", ms=4)
    best = [pick(values[: i + 1]) for i in range(len(values))]
    panels[0].step([row["trial"] for row in done], best, where="post", color="#e4733a", lw=1)
    panels[0].set_xlabel("trial")
    for axes, name in zip(panels[1:], names, strict=True):
        entry = study.config.space[name]
        xs = [row[name] if "low" in entry else str(row[name]) for row in done]
        axes.plot(xs, values, "o", color="#4c78a8", ms=4)
        axes.set_xlabel(name)
        if entry.get("log"):
            axes.set_xscale("log")
    for axes in panels:
        axes.set_ylabel(study.config.objective, fontsize=8)
        axes.grid(alpha=0.25)
    save_figure(figure, study.folder / PICTURE)
