"""`scaling sweep`: a grid of small models, resumable run by run, and the law they follow."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.run_state import FolderPlan, plan_folder, run_record
from hf_glm_curriculum.commands.scaling_fit import LAW_FILE, save_law
from hf_glm_curriculum.commands.scaling_sweep_config import ScalingSweepConfig
from hf_glm_curriculum.commands.scaling_tables import show_evidence, show_law
from hf_glm_curriculum.config import dump_config, to_dict
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.scaling.conventions import Conventions
from hf_glm_curriculum.scaling.sweep import (
    DIVERGED,
    Cell,
    grid,
    keep_result,
    result_of,
    write_results,
)

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.scaling_corpus import Corpus
    from hf_glm_curriculum.scaling.law import ScalingLaw

MODELS, TABLE = "sweep", "runs.csv"
# What a result does not depend on: the grid itself, and how the sweep is run and fitted.
_FREE = {
    "output_dir",
    "architectures",
    "shapes",
    "tokens",
    "parameters",
    "form",
    "bootstraps",
    "saves",
    "cpu",
    "resume",
    "overwrite",
}


def run(config: ScalingSweepConfig, argv: Sequence[str]) -> int:
    """Train the grid and fit it.

    Raises:
        HfGlmCurriculumError: Settings, text or folder do not allow it.
    """
    from hf_glm_curriculum.commands.scaling_corpus import read_corpus

    plan = plan_folder(config.output_dir, config.resume, config.overwrite)
    say("Reading the text and fitting a tokenizer …")
    corpus = read_corpus(config)
    say(f"{corpus.name}: {corpus.tokens:,} tokens to train on, {corpus.held_out.size:,} held out")
    about = {
        "command": "scaling sweep",
        "argv": list(argv),
        "title": "Sweep of small models",
        "config": to_dict(config),
        "data": {"train": corpus.name, "tokens": corpus.tokens, "fingerprint": corpus.fingerprint},
        "seed": config.seed,
    }
    with library_bars(), run_record(plan, about):
        _prepare(plan, config)
        results = _train(config, corpus, plan.folder)
        write_results(plan.folder / TABLE, results)
        say(f"table: {plan.folder / TABLE}")
        _fit_all(config, corpus, results, plan.folder)
    return 0


def _prepare(plan: FolderPlan, config: ScalingSweepConfig) -> None:
    """Clear what an older sweep left, if it is to go."""
    if plan.clear:
        shutil.rmtree(plan.folder / MODELS, ignore_errors=True)
        for path in [*plan.folder.glob("law*.json"), *plan.folder.glob("*.png")]:
            path.unlink()
        (plan.folder / TABLE).unlink(missing_ok=True)
    dump_config(config, plan.folder / "config.yaml")


def _train(config: ScalingSweepConfig, corpus: Corpus, folder: Path) -> list[dict[str, Any]]:
    """Every run's result, trained now or before."""
    cells = grid(config.architectures, config.shapes, config.tokens)
    shared = {name: value for name, value in to_dict(config).items() if name not in _FREE}
    shared["corpus"] = _corpus_key(config, corpus)
    keys = {cell: cell.key(shared) for cell in cells}
    done = {cell: result_of(folder / MODELS, cell, keys[cell]) for cell in cells}
    kept = sum(result is not None for result in done.values())
    if kept:
        say(f"{kept} of {len(cells)} runs are finished already")
    clock = _Clock(cells, done)
    with progress(clock.total, "Sweep") as bar:
        bar.advance(clock.kept)
        for number, cell in enumerate(cells, 1):
            if done[cell] is None:
                bar.describe(f"{cell.name} ({number} of {len(cells)})")
                result = _one(config, cell, corpus, folder / MODELS, keys[cell], bar)
                done[cell] = result
                say(f"[{number}/{len(cells)}] {_line(cell, result)}{clock.after(cell)}")
    return [result for result in done.values() if result is not None]


def _corpus_key(config: ScalingSweepConfig, corpus: Corpus) -> str:
    """What the text is, whatever share of it the largest run reads."""
    import hashlib

    head = corpus.train[: config.batch_size].tobytes() + corpus.held_out.tobytes()
    return hashlib.sha256(head).hexdigest()[:16]


def _one(
    config: ScalingSweepConfig, cell: Cell, corpus: Corpus, folder: Path, key: str, bar: Any
) -> dict[str, Any]:
    """Train one run and keep its result."""
    from hf_glm_curriculum.commands.scaling_sweep_train import train_cell

    own = folder / cell.name
    marker = own / "key"
    if own.exists() and not (marker.is_file() and marker.read_text("utf-8") == key):
        shutil.rmtree(own)  # of other settings: its checkpoints are of no use
    own.mkdir(parents=True, exist_ok=True)
    marker.write_text(key, "utf-8")
    result = train_cell(
        config, cell, corpus, own, lambda tokens: bar.advance(tokens * _weight(cell))
    )
    keep_result(folder, cell, key, result)
    return result


def _weight(cell: Cell) -> float:
    """What a token costs in a run, as measured on a CPU, up to a factor."""
    return cell.layers * cell.hidden_size**2 / 64 + 64


class _Clock:
    """How much work is left."""

    def __init__(self, cells: Sequence[Cell], done: Mapping[Cell, Any]) -> None:
        self.total = float(sum(map(self.work, cells)))
        self.kept = float(sum(self.work(cell) for cell in cells if done[cell] is not None))
        self._left = self.total - self.kept
        self._done, self._began = 0.0, time.monotonic()

    @staticmethod
    def work(cell: Cell) -> float:
        """Of one run."""
        return _weight(cell) * cell.tokens

    def after(self, cell: Cell) -> str:
        """What is left when a run has ended."""
        self._done += self.work(cell)
        self._left -= self.work(cell)
        if self._left <= 0:
            return ""
        minutes = (time.monotonic() - self._began) * self._left / self._done / 60
        return f", about {minutes:.0f} min left" if minutes >= 1 else ", under a minute left"


def _line(cell: Cell, result: Mapping[str, Any]) -> str:
    loss = "diverged" if result["status"] == DIVERGED else f"loss {result['loss']:.3f}"
    return f"{cell.name}: {loss}, {result['seconds']:.0f} s"


def _fit_all(
    config: ScalingSweepConfig, corpus: Corpus, results: Sequence[dict[str, Any]], folder: Path
) -> None:
    """The law of all runs, and of each architecture where its runs identify one."""
    law = _fit(config, corpus, results)
    show_law(law, f"All runs: {law.formula}")
    say(f"conventions: {law.conventions.line()}")
    show_evidence(law)
    save_law(law, folder)
    if len(config.architectures) < 2:
        return
    for name in config.architectures:
        own = [result for result in results if result["architecture"] == name]
        with contextlib.suppress(DataError):
            part = _fit(config, corpus, own)
            part.save(folder / f"{Path(LAW_FILE).stem}_{name}.json")
            show_law(part, f"{name} alone")


def _fit(
    config: ScalingSweepConfig, corpus: Corpus, results: Sequence[Mapping[str, Any]]
) -> ScalingLaw:
    from hf_glm_curriculum.scaling.fit import fit_scaling_law

    repeated = config.form == "data_limited"
    return fit_scaling_law(
        [result["N"] for result in results],
        [result["D"] for result in results],
        [float("nan") if result["loss"] is None else result["loss"] for result in results],
        config.form,
        bootstraps=config.bootstraps,
        seed=config.seed,
        unique=[result["unique_tokens"] for result in results] if repeated else None,
        conventions=Conventions(
            config.parameters,
            tokenizer=f"BPE of {config.vocab_size} fitted to {corpus.name}",
        ),
    )
