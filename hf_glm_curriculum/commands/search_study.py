"""The study of a search: an optuna study in a journal file, so that a killed search goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from hf_glm_curriculum.commands.search_config import SearchConfig, grid_values
from hf_glm_curriculum.commands.search_trial import TrialFailed, run_trial
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.optional import require
from hf_glm_curriculum.progress import ProgressBar, progress

JOURNAL = "study.journal"
_ENTRIES = "space"


@dataclass
class Study:
    """An optuna study and what its trials are made of."""

    config: SearchConfig
    base: dict[str, Any]
    folder: Path
    optuna: Any
    study: Any


def open_study(config: SearchConfig, base: dict[str, Any]) -> Study:
    """Open the study in the output folder, or go on with the one that is there.

    Args:
        config: Settings of the search.
        base: The command's settings that trials change.

    Raises:
        MissingDependencyError: optuna is not installed.
        StateError: The folder holds a search of something else.
    """
    optuna = require("optuna", "search")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = require("optuna.storages.journal", "search")
    folder = Path(config.output_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    # The lock is a file that is linked: it works where links do, and a dead owner's is taken over.
    backend = journal.JournalFileBackend(str(folder / JOURNAL))
    pruner = optuna.pruners.NopPruner()
    if config.prune:
        pruner = optuna.pruners.MedianPruner(n_startup_trials=config.prune_after)
    study = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="search",
        load_if_exists=True,
        direction=config.direction,
        sampler=_sampler(optuna, config),
        pruner=pruner,
    )
    asked = {"target": config.target, _ENTRIES: config.space, "objective": config.objective}
    known = study.user_attrs.get("asked")
    if known is not None and known != asked:
        changed = ", ".join(name for name in asked if known.get(name) != asked[name])
        raise StateError(
            f"output_dir {folder} holds a search with other settings ({changed}); choose another "
            "folder, or search what it searches"
        )
    study.set_user_attr("asked", asked)
    if config.sampler == "grid" and known is None:
        _enqueue_grid(study, config)
    return Study(config, base, folder, optuna, study)


def _sampler(optuna: Any, config: SearchConfig) -> Any:
    """What draws settings; a grid's are all in the queue from the start."""
    if config.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=config.seed)
    return optuna.samplers.RandomSampler(seed=config.seed)


def _enqueue_grid(study: Any, config: SearchConfig) -> None:
    """Queue every combination, in an order that the seed shuffles."""
    names = list(config.space)
    every = list(product(*(grid_values(entry) for entry in config.space.values())))
    Random(config.seed).shuffle(every)
    for values in every:
        study.enqueue_trial(dict(zip(names, values, strict=True)))


def run_study(study: Study) -> None:
    """Run trials until there are enough, time is up or the grid is tried.

    A trial that a kill cut off is marked as failed and its settings are tried first.
    """
    _take_up_cut_off(study)
    began = time.monotonic()
    todo = _room(study)
    with (
        progress(todo, "Trials") as bar,
        ThreadPoolExecutor(study.config.jobs) as pool,
    ):
        running = [pool.submit(_worker, study, began, bar) for _ in range(study.config.jobs)]
        for future in running:
            future.result()


def _take_up_cut_off(study: Study) -> None:
    state = study.optuna.trial.TrialState
    for trial in study.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
        study.study.tell(trial.number, state=state.FAIL)
        study.study.enqueue_trial(trial.params, user_attrs={"again": trial.number})


def _room(study: Study) -> int:
    """Trials that may still begin; those that a kill cut off do not count."""
    state = study.optuna.trial.TrialState
    states = (state.COMPLETE, state.PRUNED, state.RUNNING)
    done = len(study.study.get_trials(deepcopy=False, states=states))
    failed = [
        trial
        for trial in study.study.get_trials(deepcopy=False, states=(state.FAIL,))
        if "error" in trial.user_attrs
    ]
    return max(0, _most(study.config) - done - len(failed))


def _most(config: SearchConfig) -> int:
    if config.sampler != "grid":
        return config.trials
    size = 1
    for entry in config.space.values():
        size *= len(grid_values(entry))
    return min(config.trials, size)


def _worker(study: Study, began: float, bar: ProgressBar) -> None:
    limit = study.config.seconds
    while _room(study) > 0 and (limit is None or time.monotonic() - began < limit):
        _one(study)
        bar.advance()


def _one(study: Study) -> None:
    """Ask for settings, run them, tell what they came to."""
    state = study.optuna.trial.TrialState
    trial = study.study.ask()
    chosen = {name: suggest(trial, name, e) for name, e in study.config.space.items()}
    folder = study.folder / f"trial-{trial.number:04d}"

    def should_stop(step: int, value: float) -> bool:
        trial.report(value, step)
        return bool(trial.should_prune())

    try:
        value = run_trial(
            study.config.target,
            with_settings(study.base, chosen),
            folder,
            study.config.objective,
            should_stop,
        )
    except TrialFailed as error:
        trial.set_user_attr("error", str(error)[:500])
        study.study.tell(trial, state=state.FAIL)
        return
    if value is None:
        study.study.tell(trial, state=state.PRUNED)
    else:
        study.study.tell(trial, value)
    _tidy(study)


def suggest(trial: Any, name: str, entry: Mapping[str, Any]) -> Any:
    """What a trial takes for one setting."""
    if "choices" in entry:
        return trial.suggest_categorical(name, list(entry["choices"]))
    low, high, step = entry["low"], entry["high"], entry.get("step")
    if isinstance(low, int) and isinstance(high, int) and not isinstance(step, float):
        more = {"log": True} if entry.get("log") else {"step": step or 1}
        return trial.suggest_int(name, low, high, **more)
    return trial.suggest_float(name, low, high, step=step, log=bool(entry.get("log")))


def with_settings(base: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The base with dotted settings replaced."""
    found: dict[str, Any] = {**base}
    for name, value in chosen.items():
        *outer, last = name.split(".")
        place = found
        for key in outer:
            inner = place.get(key)
            place[key] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[key]
        place[last] = value
    return found


def best_trial(study: Study) -> Any:
    """The best finished trial, or None."""
    state = study.optuna.trial.TrialState
    if not study.study.get_trials(deepcopy=False, states=(state.COMPLETE,)):
        return None
    return study.study.best_trial


def _tidy(study: Study) -> None:
    """Delete the runs of trials that are not the best; their settings and logs stay."""
    best = best_trial(study)
    if study.config.keep == "all" or best is None:
        return
    state = study.optuna.trial.TrialState
    ended = study.study.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED))
    for trial in ended:
        if trial.number != best.number:
            shutil.rmtree(study.folder / f"trial-{trial.number:04d}" / "run", ignore_errors=True)
