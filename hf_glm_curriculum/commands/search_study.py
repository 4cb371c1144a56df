"""The study of a search: an optuna study in a journal file, so that a killed search goes on."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from hf_glm_curriculum.commands.search_config import SearchConfig, grid_values
from hf_glm_curriculum.commands.search_trial import TrialCutOff, TrialFailed, run_trial
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.optional import require
from hf_glm_curriculum.progress import ProgressBar, progress

JOURNAL = "study.journal"


@dataclass
class Study:
    """An optuna study and what its trials are made of.

    Attributes:
        config: Settings of the search.
        base: The command's settings that trials change.
        folder: The search's own.
        optuna: The library.
        study: Its study.
        lock: Held while a trial begins or ends: workers must see each other's.
        stopping: Set when the search is to end at once.
    """

    config: SearchConfig
    base: dict[str, Any]
    folder: Path
    optuna: Any
    study: Any
    lock: Any = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)


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
        pruner=pruner,
    )
    _refuse_another(study, _identity(config, base), folder)
    if config.sampler == "grid":
        _enqueue_grid(study, config)
    study.sampler = _sampler(optuna, config, len(study.get_trials(deepcopy=False)))
    return Study(config, base, folder, optuna, study)


def _identity(config: SearchConfig, base: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in every call for its trials to be comparable."""
    text = json.dumps(base, sort_keys=True, default=str)
    return {
        "target": config.target,
        "space": config.space,
        "objective": config.objective,
        "direction": config.direction,
        "grid": config.sampler == "grid",
        "base": hashlib.sha256(text.encode()).hexdigest(),
    }


def _refuse_another(study: Any, asked: dict[str, Any], folder: Path) -> None:
    known = study.user_attrs.get("asked")
    if known is not None and known != asked:
        changed = ", ".join(name for name in asked if known.get(name) != asked[name])
        raise StateError(
            f"output_dir {folder} holds a search with other settings ({changed}); choose another "
            "folder, or search what it searches"
        )
    study.set_user_attr("asked", asked)


def _sampler(optuna: Any, config: SearchConfig, known: int) -> Any:
    """What draws settings; a grid's are all in the queue from the start.

    A call that goes on draws from a stream of its own: the first one's would repeat its trials.
    """
    seed = Random(f"{config.seed} {known}").getrandbits(32) if known else config.seed
    if config.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=seed)
    return optuna.samplers.RandomSampler(seed=seed)


def _enqueue_grid(study: Any, config: SearchConfig) -> None:
    """Queue every combination that is not queued yet, in an order that the seed shuffles."""
    names = list(config.space)
    every = list(enumerate(product(*(grid_values(entry) for entry in config.space.values()))))
    known = {trial.user_attrs.get("grid") for trial in study.get_trials(deepcopy=False)}
    Random(config.seed).shuffle(every)
    for place, values in every:
        if place not in known:
            settings = dict(zip(names, values, strict=True))
            study.enqueue_trial(settings, user_attrs={"grid": place})


def run_study(study: Study) -> None:
    """Run trials until there are enough, time is up or the grid is tried.

    A trial that a kill cut off is marked as failed and its settings are tried again.
    """
    _take_up_cut_off(study)
    began = time.monotonic()
    todo = _room(study)
    with (
        progress(todo, "Trials") as bar,
        ThreadPoolExecutor(study.config.jobs) as pool,
    ):
        running = [pool.submit(_worker, study, began, bar) for _ in range(study.config.jobs)]
        try:
            for future in running:
                future.result()
        finally:  # an interrupt, or a worker's error, ends the others' trials too
            study.stopping.set()


def _take_up_cut_off(study: Study) -> None:
    state = study.optuna.trial.TrialState
    for trial in study.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
        study.study.tell(trial.number, state=state.FAIL)
    trials = study.study.get_trials(deepcopy=False)
    again = {trial.user_attrs.get("again") for trial in trials}
    for trial in trials:
        if _is_cut_off(trial, state) and trial.number not in again:
            settings = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            study.study.enqueue_trial(settings, user_attrs={"again": trial.number})


def _is_cut_off(trial: Any, state: Any) -> bool:
    """Whether a trial ended with the search and not by an error of its own."""
    return trial.state == state.FAIL and "error" not in trial.user_attrs


def _room(study: Study) -> int:
    """Trials that may still begin; those that a kill cut off do not count."""
    state = study.optuna.trial.TrialState
    begun = (state.COMPLETE, state.PRUNED, state.RUNNING, state.FAIL)
    trials = study.study.get_trials(deepcopy=False, states=begun)
    return max(0, _most(study.config) - sum(not _is_cut_off(t, state) for t in trials))


def _most(config: SearchConfig) -> int:
    if config.sampler != "grid":
        return config.trials
    size = 1
    for entry in config.space.values():
        size *= len(grid_values(entry))
    return min(config.trials, size)


def _worker(study: Study, began: float, bar: ProgressBar) -> None:
    while (begun := _begin(study, began)) is not None:
        _one(study, *begun)
        bar.advance()


def _begin(study: Study, began: float) -> tuple[Any, dict[str, Any]] | None:
    """A new trial and its settings; None where no more is to begin."""
    limit = study.config.seconds
    with study.lock:
        late = limit is not None and time.monotonic() - began >= limit
        if late or study.stopping.is_set() or _room(study) == 0:
            return None
        trial = study.study.ask()
        return trial, {name: suggest(trial, name, e) for name, e in study.config.space.items()}


def _one(study: Study, trial: Any, chosen: dict[str, Any]) -> None:
    """Run a trial and tell what it came to; one that is cut off is left for the next call."""
    state = study.optuna.trial.TrialState

    def should_stop(step: int, value: float) -> bool:
        trial.report(value, step)
        return bool(trial.should_prune())

    try:
        value = run_trial(
            study.config.target,
            with_settings(study.base, chosen),
            study.folder / f"trial-{trial.number:04d}",
            study.config.objective,
            should_stop,
            study.stopping,
        )
        if value is not None and not math.isfinite(value):
            raise TrialFailed(f"objective: {study.config.objective} came to {value}")
    except TrialCutOff:
        return
    except TrialFailed as error:
        trial.set_user_attr("error", str(error)[:500])
        study.study.tell(trial, state=state.FAIL)
        return
    with study.lock:
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
    """Delete the runs of trials that are not the best; settings, logs and failed runs stay."""
    best = best_trial(study)
    if study.config.keep == "all" or best is None:
        return
    state = study.optuna.trial.TrialState
    ended = (state.COMPLETE, state.PRUNED, state.FAIL)
    for trial in study.study.get_trials(deepcopy=False, states=ended):
        if trial.number != best.number and "error" not in trial.user_attrs:
            shutil.rmtree(study.folder / f"trial-{trial.number:04d}" / "run", ignore_errors=True)
