"""One run of `reward`, from data to report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.run_state import FolderPlan, is_main_process, run_record
from hf_glm_curriculum.config import dump_config, to_dict
from hf_glm_curriculum.embedded import cache_folder
from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, read_json, replacing

FIGURES_FILE = "figures.json"
SCORES_FILE = "scores.jsonl"
FOLDER = "rewards"


@dataclass
class RewardOutcome:
    """What a run came to.

    Attributes:
        folder: the run's folder.
        report: the report's path.
        figures: what `rewards/figures.json` holds.
        share: parameters added, over the backbone's.
        seconds: wall time, over all resumptions.
    """

    folder: Path
    report: Path
    figures: dict[str, Any] = field(default_factory=dict)
    share: float = 0.0
    seconds: float = 0.0


@dataclass
class _Run:
    """What the steps of a run share."""

    config: RewardCommandConfig
    plan: FolderPlan
    model: Any
    data: Any

    @property
    def folder(self) -> Path:
        return self.plan.folder

    @property
    def output(self) -> Path:
        return self.folder / FOLDER


def run_reward(
    config: RewardCommandConfig, plan: FolderPlan, about: Mapping[str, Any]
) -> RewardOutcome | None:
    """Train, calibrate, measure, and write model, pictures and report.

    Everything that can be refused is refused before the run's folder is touched.

    Args:
        config: settings.
        plan: what is to be done with the output folder.
        about: fields for `run.json` and the report's heading: command, argv, title.

    Returns:
        The outcome; None on other processes than the first.

    Raises:
        HfGlmCurriculumError: Data, model, settings or folder do not allow the run.
    """
    if (plan.previous or {}).get("status") == "finished":
        say(f"{plan.folder} holds a finished run; nothing is left to do")
        return outcome_of(plan.folder)
    with library_bars():
        return _train_and_report(config, plan, about)


def outcome_of(folder: Path) -> RewardOutcome:
    """The outcome of a finished run, read back from its folder.

    Raises:
        StateError: The folder is not a run's.
    """
    figures, run = read_json(folder / FOLDER / FIGURES_FILE), read_json(folder / "run.json")
    share = run.get("model", {}).get("share", 0.0)
    return RewardOutcome(
        folder, folder / "report.html", figures, share, float(run.get("seconds") or 0)
    )


def _train_and_report(
    config: RewardCommandConfig, plan: FolderPlan, about: Mapping[str, Any]
) -> RewardOutcome | None:
    """Do what `run_reward` says."""
    from hf_glm_curriculum.commands.reward_data import data_of
    from hf_glm_curriculum.commands.reward_report import write_reward_report
    from hf_glm_curriculum.commands.sft_train import check_trackers

    check_trackers(config.report_to)
    model = load_reward_backbone(config, plan)
    data = data_of(config, plan)
    run = _Run(config, plan, model, data)
    if not is_main_process():
        if config.training.tuning.backbone != "frozen":
            _tune(run)
        return None
    with run_record(plan, {**about, **_about(run)}) as record:
        dump_config(config, plan.folder / "config.yaml")
        say(_announcement(run))
        result = _train(run)
        _write(run, result)
        model.save_pretrained(plan.folder / "model")
        for leftover in (plan.folder / "tuned", run.output / "state"):
            shutil.rmtree(leftover, ignore_errors=True)
        record.update(figures={k: v for k, v in _headline(result).items() if v is not None})
    outcome = outcome_of(plan.folder)
    write_reward_report(plan.folder)
    if config.push_to_hub:
        say(f"uploaded: {model.push_to_hub(config.push_to_hub)}")
    return outcome


def load_reward_backbone(config: RewardCommandConfig, plan: FolderPlan) -> Any:
    """Fresh heads on the backbone, or the model that an interrupted run had tuned already.

    Raises:
        ModelError: The backbone cannot be loaded.
        MissingDependencyError: Adapters without peft, or an embedded model without its wheel.
    """
    import torch

    from hf_glm_curriculum.optional import require
    from hf_glm_curriculum.rewards.model import StructuredRewardModel

    if config.training.tuning.backbone == "lora":
        require("peft", "peft")
    tuned = plan.folder / "tuned"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        if plan.previous is not None and tuned.is_dir():
            model = StructuredRewardModel.from_pretrained(tuned)
        else:
            model = StructuredRewardModel.from_backbone(
                config.model,
                dimensions=config.dimensions,
                pooling=config.pooling,
                dtype=config.dtype,
                head_hidden_size=config.head_hidden_size,
                confidence_hidden_size=config.confidence_hidden_size,
                head_dropout=config.head_dropout,
                max_tokens=config.max_length,
            )
    if torch.cuda.is_available() and not config.cpu:
        torch.nn.Module.cuda(model)
    return model


def _train(run: _Run) -> Any:
    """Train heads on a frozen backbone, or backbone and heads together; returns the result."""
    from hf_glm_curriculum.commands.reward_metrics import EpochMetrics
    from hf_glm_curriculum.rewards.train import (
        RewardTrainingResult,
        features_of,
        finish,
        train_reward_model,
    )

    config = run.config
    cache = config.cache_dir or cache_folder() / "features"
    metrics = EpochMetrics(run.folder, config.report_to)
    if config.training.tuning.backbone == "frozen":
        result = train_reward_model(
            run.model,
            run.data,
            config.training,
            state_dir=run.output / "state",
            cache_dir=cache,
            on_epoch=metrics.on_epoch,
            shift_check=config.shift_check,
        )
    else:
        metrics.step = _tune(run)
        result = RewardTrainingResult()
        # A tuned backbone's features serve this run alone, so they are not kept.
        features = features_of(run.model, run.data, config.training, None)
        finish(run.model, features, run.data, config.training, result, None)
    metrics.finish(_headline(result))
    return result


def _tune(run: _Run) -> int:
    """Train the backbone unless that is done; returns the optimizer steps taken."""
    from hf_glm_curriculum.commands.reward_metrics import StepBar
    from hf_glm_curriculum.rewards.finetune import finetune_backbone, last_checkpoint

    tuned = run.folder / "tuned"
    if run.plan.previous is not None and tuned.is_dir():
        return int(read_json(tuned / "steps.json")["steps"])
    resume = last_checkpoint(run.folder) if run.plan.previous is not None else None
    bar = StepBar()
    try:
        trainer = finetune_backbone(
            run.model,
            run.data,
            run.config.training,
            run.folder,
            report_to=run.config.report_to,
            resume=resume,
            cpu=run.config.cpu,
            callbacks=[bar],
        )
    finally:
        bar.close()
    steps = trainer.state.global_step
    if is_main_process():
        if tuned.exists():
            raise StateError(f"{tuned} is in the way; pass --overwrite or choose another folder")
        with replacing(tuned) as temporary:
            run.model.save_pretrained(temporary)
            (temporary / "steps.json").write_text(json.dumps({"steps": steps}), "utf-8")
    return steps


def _about(run: _Run) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.models import model_fingerprint

    counts = run.model.added_parameters()
    examples = run.data.splits
    return {
        "trainer": "structured reward heads"
        if run.config.training.tuning.backbone == "frozen"
        else "transformers.Trainer",
        "seed": run.config.training.seed,
        "model": {
            "name": run.config.model,
            "class": type(run.model.backbone).__name__,
            "parameters": counts["backbone"] + counts["added"],
            "trainable_parameters": counts["added"],
            "share": counts["share"],
            "fingerprint": model_fingerprint(run.model.backbone),
        },
        "data": {
            "train": ", ".join(run.data.sources),
            "rows": len(examples["train"]),
            "heldout_rows": len(examples["validation"]) + len(examples["test"]),
            "fingerprint": run.data.fingerprint(),
        },
        "config": to_dict(run.config),
    }


def _announcement(run: _Run) -> str:
    train = run.data.splits["train"]
    how = run.config.training.tuning.backbone
    what = "heads on a frozen backbone" if how == "frozen" else f"heads and backbone ({how})"
    return (
        f"Training {what}, {run.config.model}: {len(train.pairs):,} pairs and "
        f"{len(train.rated):,} ratings in {', '.join(run.config.dimensions)} …"
    )


def _headline(result: Any) -> dict[str, float | None]:
    """The figures worth a line of metrics, on the test split (or else validation)."""
    split = "test" if "test" in result.figures else "validation"
    wanted = ("pairwise_accuracy", "level_accuracy", "ece", "auroc", "open_share")
    return {
        f"{split}_{key}_{name}": one.get(key)
        for name, one in result.figures.get(split, {}).items()
        for key in wanted
    }


def _write(run: _Run, result: Any) -> None:
    """Figures, scores of held-out responses and pictures."""
    from hf_glm_curriculum.rewards import plots

    folder, data, names = run.output, run.data, run.data.dimensions
    split = "test" if result.figures.get("test") else "validation"
    atomic_write_json(folder / FIGURES_FILE, {**result.to_json(), "split": split})
    rows = (json.dumps(row, ensure_ascii=False) for row in _score_rows(run, result, split))
    text = "".join(f"{row}\n" for row in rows)
    atomic_write_text(folder / SCORES_FILE, text.encode("utf-8", "replace").decode("utf-8"))
    figures = result.figures[split]
    threshold = run.config.training.gate_threshold
    plots.reliability_png(figures, threshold, folder / "reliability.png")
    plots.scores_png(result.output.scores, data.splits[split], names, folder / "scores.png", split)
    plots.risk_coverage_png(figures, folder / "risk_coverage.png")
    if result.history:
        plots.training_png(result.history, names, folder / "training.png")


def _score_rows(run: _Run, result: Any, split: str) -> Any:
    """One row a statement about a held-out response."""
    data, out = run.data, result.output
    levels = data.splits[split].levels()
    correct = levels.correct(out.scores).tolist()
    for place, (item, column, target) in enumerate(
        zip(levels.item.tolist(), levels.dimension.tolist(), levels.target.tolist(), strict=True)
    ):
        yield {
            "prompt": data.prompts[item],
            "response": data.responses[item],
            "dimension": data.dimensions[column],
            "target": target,
            "score": round(float(out.scores[item, column]), 4),
            "confidence": round(float(out.confidence[item, column]), 4),
            "correct": correct[place],
        }
