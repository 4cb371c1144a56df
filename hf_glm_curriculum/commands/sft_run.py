"""One fine-tuning run, from data to report: what `sft` and `quickstart` share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.run_state import (
    CALLBACK,
    FolderPlan,
    RunRecord,
    cached,
    is_main_process,
    run_record,
)
from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.commands.sft_data import SftData, SftRecords, prepare_data
from hf_glm_curriculum.config import dump_config, to_dict
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text


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
    folder: Path
    outcome: SftOutcome

    @property
    def evaluation(self) -> Path:
        return self.folder / "evaluation"


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
        foreign_launcher,
        load_for_training,
        training_arguments,
    )

    launcher = foreign_launcher()
    if launcher:
        raise IncompatibleError(
            f"{launcher}: samples cannot be followed where a model's layers are split; start with "
            "accelerate launch or torchrun (DDP, FSDP2, DeepSpeed ZeRO)"
        )
    model, tokenizer = load_for_training(config)
    data = prepare_data(records, tokenizer, config)
    args = training_arguments(config, len(data.train))
    outcome = SftOutcome(plan.folder, plan.folder / "report.html")
    run = _Run(config, data, model, tokenizer, plan.folder, outcome)
    if not is_main_process():
        _train(run, args, plan)
        return None
    with run_record(plan, {**about, **_about(run)}) as record:
        dump_config(config, plan.folder / "config.yaml")
        model.to(args.device)
        _evaluate(run, "before", "0")
        trained = _train(run, args, plan)
        record.update(global_step=trained["global_step"])
        _evaluate(run, "after", str(trained["global_step"]))
        _conclude(run, record, trained["callback"])
    outcome.seconds = record.about["seconds"]
    _report(outcome)
    return outcome


def _about(run: _Run) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.models import model_fingerprint

    config, parameters = run.config, list(run.model.parameters())
    return {
        "trainer": {"trainer": "transformers.Trainer", "sft_trainer": "trl.SFTTrainer"}[
            config.trainer
        ],
        "seed": config.seed,
        "model": {
            "name": config.model,
            "class": type(run.model).__name__,
            "parameters": sum(p.numel() for p in parameters),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
            "fingerprint": model_fingerprint(run.model),
        },
        "data": {
            "train": run.data.name,
            "rows": len(run.data.train),
            "heldout_rows": 0 if run.data.heldout is None else len(run.data.heldout),
            "fingerprint": run.data.fingerprint,
        },
        "config": to_dict(config),
    }


def _evaluate(run: _Run, stage: str, step: str) -> None:
    """Held-out loss and answers at a stage; kept, so that a run that goes on has them already."""
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.evaluation.answers import evaluate_answers
    from hf_glm_curriculum.evaluation.generation import generate_answers
    from hf_glm_curriculum.evaluation.heldout import held_out_loss

    if run.data.heldout is None:
        return
    say(f"Evaluating {stage} training on {len(run.data.heldout)} held-out samples …")
    key = _evaluation_key(run, step)
    folder, heldout = run.evaluation / "cache", run.data.heldout
    collate = SftCollator(run.tokenizer.pad_token_id)
    run.outcome.heldout[stage] = cached(
        folder / f"{stage}_loss.json",
        key,
        lambda: held_out_loss(run.model, heldout, collate, batch_size=run.config.batch_size),
    )
    prompts = [question["prompt"] for question in run.data.questions]
    answers = cached(
        folder / f"{stage}_answers.json",
        key,
        lambda: {
            "answers": generate_answers(
                run.model,
                run.tokenizer,
                prompts,
                max_new_tokens=run.config.max_new_tokens,
                description=f"Answering {stage} training",
            )
        },
    )["answers"]
    checks = [question["check"] for question in run.data.questions]
    categories = [question["category"] or "other" for question in run.data.questions]
    if answers:
        run.outcome.answers[stage] = evaluate_answers(answers, checks, categories)
    _write_evaluation(run, stage, answers, checks)


def _evaluation_key(run: _Run, step: str) -> str:
    """Changes with everything an evaluation depends on."""
    config = {k: v for k, v in to_dict(run.config).items() if k not in FREE_SETTINGS}
    parts = [step, run.data.fingerprint, config, run.data.questions]
    if run.data.heldout is not None:
        parts.append([len(run.data.heldout), run.data.heldout[0]["input_ids"]])
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


FREE_SETTINGS = ("output_dir", "resume", "overwrite", "debug_dir", "report_to", "save_total_limit")
"""Settings that change nothing in what is computed."""


def _write_evaluation(run: _Run, stage: str, answers: list[str], checks: list[Any]) -> None:
    """`generations.jsonl`, `answers.json` and `heldout.json` as far as the run has come."""
    from hf_glm_curriculum.evaluation.answers import judge_answers

    verdicts = judge_answers(answers, checks)
    for question, answer, verdict in zip(run.data.questions, answers, verdicts, strict=True):
        question |= {stage: answer, f"correct_{stage}": verdict}
    rows = ({k: v for k, v in q.items() if k != "check"} for q in run.data.questions)
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode("utf-8")
    atomic_write_text(run.evaluation / "generations.jsonl", text)
    atomic_write_json(run.evaluation / "answers.json", run.outcome.answers)
    atomic_write_json(run.evaluation / "heldout.json", run.outcome.heldout)


def _train(run: _Run, args: Any, plan: FolderPlan) -> dict[str, Any]:
    """Train to the end and save the model."""
    from hf_glm_curriculum.commands.sft_train import build_trainer
    from hf_glm_curriculum.commands.training_progress import TrainingProgress
    from hf_glm_curriculum.data.collator import SftCollator
    from hf_glm_curriculum.evaluation.heldout import HeldOutLossCallback
    from hf_glm_curriculum.lifespan.callback import SampleLifespanCallback
    from hf_glm_curriculum.lifespan.confirmed import Confirmed, confirmed_judge
    from hf_glm_curriculum.lifespan.judges import SignalJudge

    config = run.config
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
    callbacks = [lifespan, *([heldout] if heldout else []), shown]
    trainer = build_trainer(config, args, run.model, run.tokenizer, run.data.train, callbacks)
    if is_main_process():
        say(_announcement(run, plan))
    resume = None if plan.checkpoint is None else str(plan.checkpoint)
    try:
        trainer.train(resume_from_checkpoint=resume)
    finally:
        shown.close()
        lifespan.detach()
    trainer.save_model(str(plan.folder / "model"))
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
        run.evaluation,
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
