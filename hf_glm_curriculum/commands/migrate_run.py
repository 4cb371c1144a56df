"""One run that ends pre-training and enters instruction tuning, from data to report."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.migrate_config import MigrateCommandConfig
from hf_glm_curriculum.commands.migrate_data import (
    INSTRUCTION,
    PRETRAIN,
    MigrateData,
    MigrateRecords,
    prepare_migration,
)
from hf_glm_curriculum.commands.run_state import (
    MIGRATION,
    FolderPlan,
    RunRecord,
    is_main_process,
    run_record,
)
from hf_glm_curriculum.commands.scratch_model import SCRATCH, new_model, new_tokenizer
from hf_glm_curriculum.commands.stage_evaluation import StageEvaluation
from hf_glm_curriculum.commands.switch_clock import Stopwatch, SwitchClock
from hf_glm_curriculum.config import dump_config, to_dict

_SAVES, _MEASUREMENTS = 10, 20


@dataclass
class MigrateOutcome:
    """What a run came to.

    Attributes:
        folder: The run's folder.
        report: The report's path.
        heldout: "instructions" or "documents" → stage → `held_out_loss` figures.
        answers: Stage → `evaluate_answers` figures.
        switch: Seconds of the switch, of a usual pause, and of a stop and start; see `switch` in
            `run.json`.
        seconds: Wall time, over all resumptions.
    """

    folder: Path
    report: Path
    heldout: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    switch: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class _Run:
    """What the steps of a run share."""

    config: MigrateCommandConfig
    data: MigrateData
    records: MigrateRecords
    model: Any
    tokenizer: Any
    args: Any
    watch: Stopwatch
    switch: dict[str, Any]


def run_migrate(
    config: MigrateCommandConfig,
    records: MigrateRecords,
    plan: FolderPlan,
    about: Mapping[str, Any],
) -> MigrateOutcome | None:
    """Pre-train, migrate, fine-tune, evaluate before and after, and write the report.

    Everything that can be refused is refused before the run's folder is touched.

    Args:
        config: Settings.
        records: The data.
        plan: What is to be done with the output folder.
        about: Fields for `run.json` and the report's heading: command, argv, title.

    Returns:
        The outcome; None on other processes than the first.

    Raises:
        HfGlmCurriculumError: Data, model, settings or folder do not allow the run.
    """
    with library_bars():
        run = _prepared(config, records, dict((plan.previous or {}).get("switch") or {}))
        if not is_main_process():
            _train(run, plan, None)
            return None
        return _recorded(run, plan, about)


def _prepared(
    config: MigrateCommandConfig, records: MigrateRecords, switch: dict[str, Any]
) -> _Run:
    """Load or make the model, tokenise and mix; nothing is written."""
    from hf_glm_curriculum.commands.sft_train import refuse_foreign_launcher, training_arguments

    refuse_foreign_launcher()
    config = _resolved(config)
    _schedule(config)
    args = training_arguments(
        config,
        max_steps=config.max_steps,
        # Every rank reads for itself, and a run goes on at the place it was left at.
        accelerator_config={"dispatch_batches": False},
        ignore_data_skip=True,
        dataloader_num_workers=config.workers,
    )
    watch = Stopwatch()
    with watch.time("load_model"):
        model, tokenizer = _model(config, records)
    rows = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    with watch.time("prepare_data"):
        data = prepare_migration(records, tokenizer, config, rows)
    return _Run(config, data, records, model, tokenizer, args, watch, switch)


def _resolved(config: MigrateCommandConfig) -> MigrateCommandConfig:
    """The config with what it leaves to the length of the run."""
    migration = dataclasses.replace(config.migration, pretrain_steps=config.pretrain_steps)
    return dataclasses.replace(
        config,
        migration=migration,
        save_steps=config.save_steps or max(1, config.max_steps // _SAVES),
        eval_steps=config.eval_steps or max(1, config.max_steps // _MEASUREMENTS),
    )


def _schedule(config: MigrateCommandConfig) -> Any:
    """When what begins.

    Raises:
        ConfigError: The schedule does not fit into the run.
    """
    from hf_glm_curriculum.migration.schedule import schedule_for

    return schedule_for(config.migration, config.max_steps)


def _model(config: MigrateCommandConfig, records: MigrateRecords) -> tuple[Any, Any]:
    """The model and its tokenizer, loaded or new.

    Raises:
        ModelError: The model cannot be loaded or made.
    """
    from hf_glm_curriculum.commands.sft_train import load_for_training
    from hf_glm_curriculum.models import load_tokenizer

    if config.model != SCRATCH:
        return load_for_training(config)
    sizes = config.scratch
    tokenizer = (
        load_tokenizer(sizes.tokenizer)
        if sizes.tokenizer
        else new_tokenizer(records.texts(), sizes.vocab_size)
    )
    return new_model(sizes, tokenizer, config.max_length or 0, config.seed), tokenizer


def _recorded(run: _Run, plan: FolderPlan, about: Mapping[str, Any]) -> MigrateOutcome:
    """Train and evaluate while `run.json` is kept."""
    from hf_glm_curriculum.evaluation.report import write_report

    config, data = run.config, run.data
    heldout = {PRETRAIN: data.heldout_documents} if data.heldout_documents is not None else {}
    evaluation = StageEvaluation(
        config,
        run.model,
        run.tokenizer,
        data.instructions.heldout,
        data.instructions.questions,
        data.fingerprint,
        plan.folder / "evaluation",
        heldout,
    )
    losses = {INSTRUCTION: evaluation.heldout_loss, **evaluation.more_loss}
    outcome = MigrateOutcome(plan.folder, plan.folder / "report.html", losses, evaluation.answers)
    with run_record(plan, {**about, **_about(run)}) as record:
        dump_config(config, plan.folder / "config.yaml")
        run.model.to(run.args.device)
        evaluation.measure("before", 0)
        steps = _train(run, plan, record)
        record.update(global_step=steps, switch=run.switch)
        evaluation.measure("after", steps)
    outcome.heldout = {INSTRUCTION: evaluation.heldout_loss, **evaluation.more_loss}
    outcome.switch, outcome.seconds = run.switch, record.about["seconds"]
    write_report(plan.folder)
    return outcome


def _about(run: _Run) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.commands.host_trainer import HOSTS
    from hf_glm_curriculum.commands.sft_train import model_facts

    config, data = run.config, run.data
    heldout = data.instructions.heldout, data.heldout_documents
    return {
        "trainer": HOSTS[config.trainer],
        "seed": config.seed,
        "model": model_facts(run.model, config.model),
        "data": {
            "train": " and ".join(run.records.names),
            "rows": len(data.documents) + len(data.instructions.train),
            "document_rows": len(data.documents),
            "instruction_rows": len(data.instructions.train),
            "heldout_rows": sum(len(one) for one in heldout if one is not None),
            "fingerprint": data.fingerprint,
        },
        "switch": run.switch,
        "config": to_dict(config),
    }


def _train(run: _Run, plan: FolderPlan, record: RunRecord | None) -> int:
    """Train to the end and save the model; the number of steps."""
    from hf_glm_curriculum.commands.host_trainer import build_trainer
    from hf_glm_curriculum.commands.sft_train import complete_saved
    from hf_glm_curriculum.commands.training_progress import TrainingProgress

    migration = _migration(run)
    heldout = _measuring(run)
    clock = SwitchClock(run.config.pretrain_steps, lambda seen: _switched(run, seen, record))
    shown = TrainingProgress(heldout=heldout, phases=_phases(run.config))
    callbacks = [migration, clock, *([heldout] if heldout else []), shown, clock.tail]
    if is_main_process():
        say(_announcement(run, plan))
    with run.watch.time("start_trainer"):
        trainer = build_trainer(
            run.config, run.args, run.model, run.tokenizer, run.data.train, callbacks
        )
    called = time.perf_counter()
    try:
        trainer.train(resume_from_checkpoint=str(plan.checkpoint) if plan.checkpoint else None)
    finally:
        shown.close()
        migration.detach()
    with run.watch.time("save_model"):
        trainer.save_model(str(plan.folder / "model"))
        if is_main_process():
            complete_saved(run.config, plan.folder / "model")
    if clock.started is not None:
        run.watch.seconds["first_batch"] = clock.started - called
    run.switch["restart_seconds"] = run.watch.total
    run.switch["restart_parts"] = dict(run.watch.seconds)
    return trainer.state.global_step


def _migration(run: _Run) -> Any:
    """The callback that moves objectives and ratios."""
    from hf_glm_curriculum.migration.callback import ObjectiveMigrationCallback

    return ObjectiveMigrationCallback(
        run.config.migration,
        mixture=run.data.train,
        pretrain_source=PRETRAIN,
        instruction_source=INSTRUCTION,
        name=MIGRATION,
        debug_dir=run.config.debug_dir,
    )


def _measuring(run: _Run) -> Any:
    """The callback that measures the held-out losses under way; None without held-out data."""
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.evaluation.heldout import HeldOutLossCallback

    data = run.data
    if data.instructions.heldout is None:
        return None
    return HeldOutLossCallback(
        data.instructions.heldout,
        SftCollator(run.tokenizer.pad_token_id),
        run.config.batch_size,
        every=run.config.eval_steps,
        more={} if data.heldout_documents is None else {PRETRAIN: data.heldout_documents},
    )


def _switched(run: _Run, seen: dict[str, float], record: RunRecord | None) -> None:
    """Keep what the switch cost, at once: a later part of the run has it then."""
    run.switch |= {"step": run.config.pretrain_steps, **seen}
    if record is not None:
        record.update(switch=run.switch)


def _phases(config: MigrateCommandConfig) -> dict[int, str]:
    """Step → what the run does from there on."""
    schedule = _schedule(config)
    phases = {0: "Pre-training", schedule.begin: "Migration"}
    if config.sft_steps:
        phases[schedule.end] = "Instruction tuning"
    return phases


def _announcement(run: _Run, plan: FolderPlan) -> str:
    """What is about to be trained."""
    config = run.config
    what = "a new model" if config.model == SCRATCH else config.model
    how = f"LoRA r={config.lora_rank}" if config.lora else "all weights"
    where = f", going on from {plan.checkpoint.name}" if plan.checkpoint else ""
    return (
        f"Training {what} ({how}): {config.pretrain_steps:,} steps on "
        f"{len(run.data.documents):,} rows of documents, then {config.sft_steps:,} on "
        f"{len(run.data.instructions.train):,} instructions{where} …"
    )
