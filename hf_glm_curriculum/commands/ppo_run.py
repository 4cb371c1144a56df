"""One PPO run, from prompts to report: what `ppo` and `quickstart` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say
from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.commands.ppo_data import PpoData
from hf_glm_curriculum.commands.ppo_evaluation import PpoEvaluation
from hf_glm_curriculum.commands.ppo_reward import LoadedReward
from hf_glm_curriculum.commands.run_state import FolderPlan, is_main_process, run_record
from hf_glm_curriculum.config import dump_config, to_dict

STATE = "ppo"
"""The state without which a checkpoint is not whole."""


@dataclass
class PpoOutcome:
    """What a run came to.

    Attributes:
        folder: The run's folder.
        report: The report's path.
        answers: Stage ("before", "after") → `evaluate_answers` figures.
        scores: Stage → dimension → mean score, confidence and openness of the held-out answers.
        metrics: The last update's figures.
        alarms: Kinds of alarm that the monitor raised.
        seconds: Wall time, over all resumptions.
    """

    folder: Path
    report: Path
    answers: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class _Run:
    """What the steps of a run share."""

    config: PpoCommandConfig
    args: Any
    model: Any
    tokenizer: Any
    reward: LoadedReward
    data: PpoData
    trainer: Any
    fingerprint: str
    about_model: dict[str, Any]


def run_ppo(
    config: PpoCommandConfig, plan: FolderPlan, about: Mapping[str, Any]
) -> PpoOutcome | None:
    """Train, evaluate before and after, and write the report.

    Everything that can be refused is refused before the run's folder is touched.

    Args:
        config: Settings.
        plan: What is to be done with the output folder.
        about: Fields for `run.json` and the report's heading: command, argv, title.

    Returns:
        The outcome; None on other processes than the first.

    Raises:
        HfGlmCurriculumError: Data, model, reward, settings or folder do not allow the run.
    """
    if (plan.previous or {}).get("status") == "finished":
        say(f"{plan.folder} holds a finished run; nothing is left to do")
        return outcome_of(plan.folder) if is_main_process() else None
    with library_bars():
        run = _prepared(config)
        if not is_main_process():
            _train(run, plan)
            return None
        return _recorded(run, plan, about)


def _prepared(config: PpoCommandConfig) -> _Run:
    """Load everything; nothing is written. What is cheap to refuse comes first."""
    from hf_glm_curriculum.commands.ppo_data import (
        load_ppo_rows,
        prepare_ppo_data,
        with_opinion,
    )
    from hf_glm_curriculum.commands.ppo_reward import (
        check_reward_names,
        is_structured,
        load_reward,
        reward_parts,
    )
    from hf_glm_curriculum.commands.ppo_train import (
        build_ppo_trainer,
        load_policy,
        ppo_arguments,
    )
    from hf_glm_curriculum.commands.precision import check_precision
    from hf_glm_curriculum.commands.sft_train import model_facts, refuse_foreign_launcher

    refuse_foreign_launcher()
    check_reward_names(config)
    check_precision(config)
    ppo_arguments(config, structured=False)
    train, heldout = load_ppo_rows(config)
    reward = load_reward(config)
    train = with_opinion(train, reward, config)
    reward_parts(config, reward)
    args = ppo_arguments(config, is_structured(config, reward))
    model, tokenizer = load_policy(config)
    data = prepare_ppo_data((train, heldout), tokenizer, config)
    facts = model_facts(model, config.model)
    fingerprint = f"{facts['fingerprint']}{data.fingerprint}"
    trainer = build_ppo_trainer(config, args, model, tokenizer, reward, data.train)
    return _Run(config, args, model, tokenizer, reward, data, trainer, fingerprint, facts)


def _recorded(run: _Run, plan: FolderPlan, about: Mapping[str, Any]) -> PpoOutcome:
    """Train and evaluate while `run.json` is kept."""
    from hf_glm_curriculum.evaluation.report import write_report

    folder = plan.folder
    evaluation = PpoEvaluation(
        run.config,
        run.tokenizer,
        run.reward,
        run.data.questions,
        run.fingerprint,
        folder / "evaluation",
    )
    with run_record(plan, {**about, **_about(run)}) as record:
        dump_config(run.config, folder / "config.yaml")
        run.model.to(run.args.device)
        _place_reward(run)
        evaluation.measure("before", _whole(run, run.config.model), 0)
        steps, alarms = _train(run, plan)
        record.update(global_step=steps, alarms=alarms)
        evaluation.measure("after", _whole(run, str(folder)), steps)
    write_report(folder)
    return outcome_of(folder)


def _place_reward(run: _Run) -> None:
    """Have a reward model where the policy is, so that both score and answer on one device."""
    import torch

    model = run.reward.model
    members = getattr(model, "members", None) or getattr(model, "scorers", None) or [model]
    for member in members:
        inner = getattr(member, "reward", member)
        if isinstance(inner, torch.nn.Module):
            inner.to(run.args.device)


def _whole(run: _Run, source: str) -> Any:
    """The policy under training; where the launcher has split it, read from a model or run."""
    from hf_glm_curriculum.commands.ppo_train import sharded
    from hf_glm_curriculum.commands.run_models import model_of
    from hf_glm_curriculum.models import load_model

    if not sharded():
        return run.model
    return load_model(model_of(source), run.config.dtype)[0].to(run.args.device)  # type: ignore[arg-type]


def _about(run: _Run) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.commands.ppo_train import alarm_window

    config = run.config
    return {
        "alarm_window": alarm_window(config),
        "trainer": "hf_glm_curriculum.ppo.StructuredPPOTrainer",
        "seed": config.seed,
        "model": run.about_model,
        "reward": {
            "name": run.reward.name,
            "dimensions": list(run.reward.dimensions),
            "structured": run.reward.structured,
        },
        "data": {
            "train": run.data.name,
            "rows": len(run.data.train),
            "heldout_rows": len(run.data.questions),
            "fingerprint": run.data.fingerprint,
        },
        "config": to_dict(config),
    }


def _train(run: _Run, plan: FolderPlan) -> tuple[int, list[str]]:
    """Train to the end and save the policy; the updates done, and the alarms raised."""
    from hf_glm_curriculum.commands.ppo_train import complete_policy

    trainer = run.trainer
    if is_main_process():
        say(_announcement(run, plan))
    resume = None if plan.checkpoint is None else str(plan.checkpoint)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(plan.folder / "model"))
    if is_main_process():
        run.tokenizer.save_pretrained(plan.folder / "model")
        complete_policy(run.config, plan.folder / "model")
    return trainer.state.global_step, alarms_in(plan.folder)


def alarms_in(folder: Path) -> list[str]:
    """Kinds of alarm that a run's metrics tell of, in the order in which they began."""
    from hf_glm_curriculum.evaluation.report_ppo import alarm_spans
    from hf_glm_curriculum.evaluation.run_folder import read_json_lines
    from hf_glm_curriculum.reporting import METRICS_FILE

    path = folder / METRICS_FILE
    return list(alarm_spans(read_json_lines(path))) if path.exists() else []


def _announcement(run: _Run, plan: FolderPlan) -> str:
    """What is about to be trained."""
    config = run.config
    how = f"LoRA r={config.lora_rank}" if config.lora else "all weights"
    how += ", 4 bits" if config.load_in_4bit else ""
    where = f", going on from {plan.checkpoint.name}" if plan.checkpoint else ""
    return (
        f"PPO on {config.model} ({how}): {config.updates:,} updates of {config.batch_size} answers "
        f"to {len(run.data.train):,} prompts; reward {run.reward.name} "
        f"({', '.join(run.reward.dimensions)}){where} …"
    )


def outcome_of(folder: Path) -> PpoOutcome:
    """The outcome of a finished run, read back from its folder.

    Raises:
        StateError: The folder is not a run's.
    """
    from hf_glm_curriculum.evaluation.run_folder import read_run

    run = read_run(folder)
    logged = [line for line in run.metrics if "objective/kl" in line]
    return PpoOutcome(
        folder,
        folder / "report.html",
        run.evaluation.get("answers") or {},
        run.evaluation.get("scores") or {},
        logged[-1] if logged else {},
        list(run.run.get("alarms") or []),
        float(run.run.get("seconds") or 0.0),
    )
