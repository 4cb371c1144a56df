"""One fine-tuning run, from data to report: what `sft` and `quickstart` share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.run_state import (
    CALLBACK,
    FolderPlan,
    RunRecord,
    is_main_process,
    run_record,
)
from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.commands.sft_curriculum import chooses_rows, with_curriculum
from hf_glm_curriculum.commands.sft_data import SftData, SftRecords, prepare_data
from hf_glm_curriculum.commands.stage_evaluation import StageEvaluation
from hf_glm_curriculum.config import dump_config, to_dict


@dataclass
class SftOutcome:
    """What a run came to.

    Attributes:
        folder: The run's folder.
        report: The report's path.
        heldout: Stage ("before", "after") → `held_out_loss` figures.
        answers: Stage → `evaluate_answers` figures.
        detection: `detection_report`, or None where no fault is known.
        states: State → number of samples.
        seconds: Wall time, over all resumptions.
    """

    folder: Path
    report: Path
    heldout: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    detection: dict[str, Any] | None = None
    states: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class _Run:
    """What the steps of a run share."""

    config: SftCommandConfig
    data: SftData
    model: Any
    tokenizer: Any
    evaluation: StageEvaluation
    outcome: SftOutcome


def run_sft(
    config: SftCommandConfig, records: SftRecords, plan: FolderPlan, about: Mapping[str, Any]
) -> SftOutcome | None:
    """Fine-tune, evaluate before and after, and write the report.

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
        return _fine_tune(config, records, plan, about)


def _fine_tune(
    config: SftCommandConfig, records: SftRecords, plan: FolderPlan, about: Mapping[str, Any]
) -> SftOutcome | None:
    """Do what `run_sft` says."""
    from hf_glm_curriculum.commands.sft_train import (
        load_for_training,
        refuse_foreign_launcher,
        training_arguments,
    )

    refuse_foreign_launcher()
    model, tokenizer = load_for_training(config)
    data = prepare_data(records, tokenizer, config)
    args = training_arguments(
        config,
        num_train_epochs=config.epochs,
        max_steps=config.max_steps,
        logging_steps=_log_every(config, len(data.train)),
        # Lanes lay the rows out themselves.
        **({"train_sampling_strategy": "sequential"} if chooses_rows(config) else {}),
    )
    evaluation = StageEvaluation(
        config,
        model,
        tokenizer,
        data.heldout,
        data.questions,
        data.fingerprint,
        plan.folder / "evaluation",
    )
    outcome = SftOutcome(
        plan.folder, plan.folder / "report.html", evaluation.heldout_loss, evaluation.answers
    )
    run = _Run(config, data, model, tokenizer, evaluation, outcome)
    if not is_main_process():
        _train(run, args, plan)
        return None
    with run_record(plan, {**about, **_about(run)}) as record:
        dump_config(config, plan.folder / "config.yaml")
        model.to(args.device)
        evaluation.measure("before", 0)
        trained = _train(run, args, plan)
        record.update(global_step=trained["global_step"])
        evaluation.measure("after", trained["global_step"])
        _conclude(run, record, trained["callback"])
    outcome.seconds = record.about["seconds"]
    _report(outcome)
    return outcome


def _log_every(config: SftCommandConfig, rows: int) -> int:
    """Steps between two logs: as asked, but a short run is to have twenty points to its curves."""
    processes = int(os.environ.get("WORLD_SIZE", "1") or 1)
    step = config.batch_size * config.gradient_accumulation * processes
    steps = config.max_steps if config.max_steps > 0 else config.epochs * rows / step
    return max(1, min(config.logging_steps, int(steps / 20)))


def _about(run: _Run) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.commands.host_trainer import HOSTS
    from hf_glm_curriculum.commands.sft_train import model_facts

    config = run.config
    return {
        "trainer": HOSTS[config.trainer],
        "seed": config.seed,
        "model": model_facts(run.model, config.model),
        "data": {
            "train": run.data.name,
            "rows": len(run.data.train),
            "heldout_rows": 0 if run.data.heldout is None else len(run.data.heldout),
            "fingerprint": run.data.fingerprint,
        },
        "config": to_dict(config),
    }


def _train(run: _Run, args: Any, plan: FolderPlan) -> dict[str, Any]:
    """Train to the end and save the model."""
    from hf_glm_curriculum.commands.host_trainer import build_trainer
    from hf_glm_curriculum.commands.sft_long_context import (
        long_context_callbacks,
        save_graph_settings,
    )
    from hf_glm_curriculum.commands.sft_train import complete_saved
    from hf_glm_curriculum.commands.training_progress import TrainingProgress
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.evaluation.heldout import HeldOutLossCallback
    from hf_glm_curriculum.lifespan.callback import SampleLifespanCallback
    from hf_glm_curriculum.lifespan.confirmed import Confirmed, confirmed_judge
    from hf_glm_curriculum.lifespan.judges import SignalJudge
    from hf_glm_curriculum.lifespan.sampling import unsampled

    config = run.config
    train, curriculum = with_curriculum(config, run.data.train, run.tokenizer)
    run.data.train = unsampled(train)  # rows of the base may have come to it
    # Samples that an annotator has kept or corrected are not asked about again.
    confirmed = Confirmed.from_data(run.data.train)
    judge = confirmed_judge(SignalJudge(config.lifespan.suspicion_threshold), confirmed)
    lifespan = SampleLifespanCallback(
        config.lifespan, judge=judge, name=CALLBACK, debug_dir=config.debug_dir
    )
    heldout = None
    if run.data.heldout is not None:
        collate = SftCollator(run.tokenizer.pad_token_id)
        heldout = HeldOutLossCallback(run.data.heldout, collate, config.batch_size)
    shown = TrainingProgress(lifespan, heldout)
    callbacks = [lifespan, *long_context_callbacks(config, run.model, run.tokenizer)]
    callbacks += [one for one in (curriculum, heldout, shown) if one is not None]
    trainer = build_trainer(config, args, run.model, run.tokenizer, train, callbacks)
    if is_main_process():
        say(_announcement(run, plan))
    resume = None if plan.checkpoint is None else str(plan.checkpoint)
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        shown.close()
        lifespan.detach()
        if curriculum is not None:
            curriculum.detach()
    trainer.save_model(str(plan.folder / "model"))
    if is_main_process():
        complete_saved(config, plan.folder / "model")
    save_graph_settings(config, plan.folder / "model")
    return {"global_step": trainer.state.global_step, "callback": lifespan}


def _announcement(run: _Run, plan: FolderPlan) -> str:
    """What is about to be trained."""
    config = run.config
    how = f"LoRA r={config.lora_rank}" if config.lora else "all weights"
    length = f"{config.epochs:g} epochs" if config.max_steps < 0 else f"{config.max_steps} steps"
    where = f", going on from {plan.checkpoint.name}" if plan.checkpoint else ""
    return f"Training {config.model} ({how}) on {len(run.data.train):,} samples, {length}{where} …"


def _conclude(run: _Run, record: RunRecord, callback: Any) -> None:
    """Write what the ledger found."""
    from hf_glm_curriculum.evaluation.outcome import write_outcome

    samples = callback.ledger.to_pandas()
    run.outcome.states = {k: int(v) for k, v in samples["state"].value_counts().items()}
    run.outcome.detection = write_outcome(
        run.evaluation.folder,
        samples,
        run.data.train,
        run.tokenizer,
        run.config.lifespan.suspicion_threshold,
    )
    record.update(states=run.outcome.states)


def outcome_of(folder: Path) -> SftOutcome:
    """The outcome of a finished run, read back from its folder.

    Raises:
        StateError: The folder is not a run's.
    """
    from hf_glm_curriculum.evaluation.run_folder import read_run

    run = read_run(folder)
    return SftOutcome(
        folder,
        folder / "report.html",
        run.evaluation.get("heldout") or {},
        run.evaluation.get("answers") or {},
        run.evaluation.get("detection"),
        run.run.get("states") or {},
        run.run.get("seconds") or 0.0,
    )


def _report(outcome: SftOutcome) -> None:
    from hf_glm_curriculum.evaluation.report import write_report

    write_report(outcome.folder)
