"""`reward --refresh RUN`: new heads for what the policy says now, and its good answers as data."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.console import library_bars, say, show_table
from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.reward_data import named_rows
from hf_glm_curriculum.commands.reward_history import History, history_of, run_config
from hf_glm_curriculum.commands.run_state import FolderPlan, is_main_process, run_record
from hf_glm_curriculum.config import dump_config, to_dict
from hf_glm_curriculum.embedded import cache_folder
from hf_glm_curriculum.errors import ConfigError, DataError
from hf_glm_curriculum.storage import atomic_write_json, read_json

FOLDER = "refresh"
PAIRS_FILE = "preferences.jsonl"
SFT_FILE = "sft.jsonl"
SHEET_FILE = "to_rate.jsonl"
_SHEET_ROWS = 200


@dataclass
class _Round:
    """What the steps of a refresh share."""

    config: RewardCommandConfig
    plan: FolderPlan
    model: Any
    policy: Any
    tokenizer: Any
    prompts: list[dict[str, Any]]
    history: History

    @property
    def output(self) -> Path:
        return self.plan.folder / FOLDER


def run_refresh(config: RewardCommandConfig, plan: FolderPlan, about: Mapping[str, Any]) -> None:
    """Sample, rank, retrain, compare, harvest and report.

    The refreshed run is left as it is. Everything that can be refused is refused before the new
    run's folder is touched; a killed run goes on with the answers and the epochs that it had.

    Args:
        config: settings.
        plan: what is to be done with the output folder.
        about: fields for `run.json`: command and argv.

    Raises:
        HfGlmCurriculumError: Data, models, settings or folder do not allow the run.
    """
    if not is_main_process():
        return
    if (plan.previous or {}).get("status") == "finished":
        say(f"{plan.folder} holds a finished run; nothing is left to do")
        return
    with library_bars():
        task = _opened(config, plan)
        title = f"Rewards of {config.refresh} refreshed on {config.sampler}"
        with run_record(plan, {**about, "title": title, **_about(task)}) as record:
            dump_config(config, plan.folder / "config.yaml")
            model, drift = _refreshed(task)
            harvested = _harvested(task, model)
            model.save_pretrained(plan.folder / "model")
            # The model to go on with lies in one place.
            shutil.rmtree(task.output / "model", ignore_errors=True)
            shutil.rmtree(task.output / "training", ignore_errors=True)
            record.update(accepted=drift["accepted"], harvest=harvested)
    _show(plan.folder, drift, harvested)


def _opened(config: RewardCommandConfig, plan: FolderPlan) -> _Round:
    """Load and check everything."""
    import torch

    from hf_glm_curriculum.commands.sft_train import check_trackers
    from hf_glm_curriculum.models import load_model
    from hf_glm_curriculum.rewards.model import StructuredRewardModel

    check_trackers(config.report_to)
    source = Path(str(config.refresh)).expanduser()
    old = run_config(source)
    if source.resolve() == plan.folder.resolve():
        raise ConfigError(f"output_dir: is the run to refresh, {source}; choose another")
    if sorted(old.dimensions) != sorted(config.dimensions):
        given = ", ".join(config.dimensions)
        raise ConfigError(
            f"dimensions: are {given}, and {source} scores {', '.join(old.dimensions)}; pass "
            f"--dimensions {' '.join(old.dimensions)}"
        )
    history = history_of(source, config.fixed, config.preference_dimension)
    for kept, given in zip((history.pairs, history.ratings), named_rows(config), strict=True):
        kept += given
    prompts = _prompts(config)
    model = StructuredRewardModel.from_pretrained(source / "model")
    policy, tokenizer = load_model(str(config.sampler), config.dtype)
    if torch.cuda.is_available() and not config.cpu:
        for each in (model, policy):
            torch.nn.Module.cuda(each)
    return _Round(config, plan, model, policy, tokenizer, prompts, history)


def _prompts(config: RewardCommandConfig) -> list[dict[str, Any]]:
    """Rows that the rules or the judge can rank answers to.

    Raises:
        DataError: There is none.
    """
    from hf_glm_curriculum.data.record_prompts import load_prompts
    from hf_glm_curriculum.rewards.construct import RULE_DIMENSIONS, own_check

    loaded: Any = load_prompts(config.prompts)
    rows: list[dict[str, Any]] = []
    for row in loaded:
        check = own_check(row)
        if check is None and config.judge is not None:
            rows.append({**row, "dimension": config.preference_dimension})
        elif check is not None:
            given = row.get("dimension")
            about = given if isinstance(given, str) else RULE_DIMENSIONS.get(str(check.get("kind")))
            if about in config.dimensions:
                rows.append({**row, "dimension": about})
    if not rows:
        raise DataError(
            f"{', '.join(config.prompts)}: no row has an answer_check that speaks of "
            f"{', '.join(config.dimensions)}; add checks, or pass --judge MODEL"
        )
    if len(rows) < len(loaded):
        say(f"{len(loaded) - len(rows):,} of {len(loaded):,} prompts cannot be ranked; left out")
    return rows


def _ranker(config: RewardCommandConfig) -> Any:
    """Rules where a prompt has some, else the judge."""
    from hf_glm_curriculum.rewards.construct import own_check, rule_ranker

    if config.judge is None:
        return rule_ranker
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from hf_glm_curriculum.rewards.scalar import ScalarReward

    model = AutoModelForSequenceClassification.from_pretrained(config.judge)
    judge = ScalarReward(
        model.eval(), "judge", AutoTokenizer.from_pretrained(config.judge), max_length=None
    )

    def rank(prompt: str, answers: Sequence[str], row: Mapping[str, Any]) -> list[float | None]:
        if own_check(row) is not None:
            return rule_ranker(prompt, answers, row)
        return judge.raw([prompt] * len(answers), answers, too_long="cut").tolist()

    return rank


def _refreshed(task: _Round) -> tuple[Any, dict[str, Any]]:
    """One round; returns the model to go on with and what `drift.json` holds."""
    from hf_glm_curriculum.commands.reward_metrics import EpochMetrics
    from hf_glm_curriculum.rewards.refresh import RefreshConfig, refresh_reward_model
    from hf_glm_curriculum.rewards.train import train_reward_model

    config = task.config
    settings = RefreshConfig(
        config.sampling, config.training, config.validation, config.tolerance, config.training.seed
    )
    metrics = EpochMetrics(task.plan.folder, config.report_to)
    cache = config.cache_dir or cache_folder() / "features"
    say(f"Asking {config.sampler} {len(task.prompts):,} prompts, and training new heads …")
    result = refresh_reward_model(
        task.model,
        task.policy,
        task.tokenizer,
        task.prompts,
        task.history.fixed,
        task.output,
        rankers=_ranker(config),
        replay=task.history.pairs,
        ratings=task.history.ratings,
        config=settings,
        trainer=partial(train_reward_model, cache_dir=cache, on_epoch=metrics.on_epoch),
    )
    drift = read_json(task.output / "drift.json")
    figures: dict[str, float | None] = {"refresh_accepted": float(result.accepted)}
    for name, one in drift["fixed"].items():
        kinds = ("accuracy_old", "accuracy_new", "shift", "distance")
        figures |= {f"refresh_{kind}_{name}": one[kind] for kind in kinds}
    metrics.finish(figures)
    return result.model, drift


def _harvested(task: _Round, model: Any) -> dict[str, Any]:
    """Write the policy's good answers as data, and those to ask people about; returns counts."""
    from hf_glm_curriculum.models import model_fingerprint
    from hf_glm_curriculum.rewards.construct import candidates_of
    from hf_glm_curriculum.rewards.flywheel import append_sft_rows, harvest
    from hf_glm_curriculum.rewards.gate import RewardGate
    from hf_glm_curriculum.rewards.pipeline import RewardPipeline
    from hf_glm_curriculum.rewards.refresh import rating_sheet

    config, by_prompt = task.config, {row["prompt"]: row for row in task.prompts}
    sampled = candidates_of(task.output / PAIRS_FILE, list(by_prompt))
    rows = [by_prompt[prompt] for prompt, answers in sampled for _ in answers]
    answers = [answer for _, found in sampled for answer in found]
    gate = RewardGate(config.training.gate_threshold, dimensions=model.config.dimensions)
    pipeline = RewardPipeline(model, gate, score_options={"too_long": "cut"})
    provenance = {
        "policy": config.sampler,
        "policy_fingerprint": model_fingerprint(task.policy),
        "reward_model": str(task.plan.folder / "model"),
        "sampling": asdict(config.sampling),
    }
    texts = [row["prompt"] for row in rows]
    rating_sheet(model, texts, answers, task.output / SHEET_FILE, limit=_SHEET_ROWS)
    found = harvest(rows, answers, pipeline, provenance, config=config.flywheel)
    append_sft_rows(task.output / SFT_FILE, found.rows)
    added = 0
    if config.harvest_into is not None:
        added = append_sft_rows(config.harvest_into, found.rows)
    counts = {
        "answers": len(answers),
        "kept": len(found.rows),
        "rejected": dict(found.rejected.most_common()),
        "into": config.harvest_into,
        "added": added,
    }
    atomic_write_json(task.output / "harvest.json", counts)
    return {name: counts[name] for name in ("answers", "kept", "into", "added")}


def _about(task: _Round) -> dict[str, Any]:
    """The fields of `run.json` that say what the run is."""
    from hf_glm_curriculum.models import model_fingerprint

    history = task.history
    return {
        "trainer": "structured reward heads",
        "seed": task.config.training.seed,
        "model": {
            "name": str(task.config.refresh),
            "class": type(task.model.backbone).__name__,
            "fingerprint": model_fingerprint(task.model.backbone),
        },
        "policy": {
            "name": task.config.sampler,
            "fingerprint": model_fingerprint(task.policy),
        },
        "data": {
            "prompts": len(task.prompts),
            "replayed_pairs": len(history.pairs),
            "replayed_ratings": len(history.ratings),
            "fixed_pairs": len(history.fixed),
        },
        "config": to_dict(task.config),
    }


def _show(folder: Path, drift: Mapping[str, Any], harvested: Mapping[str, Any]) -> None:
    """Write picture and report, and say what came of it."""
    from hf_glm_curriculum.commands.reward_refresh_report import (
        DRIFT_COLUMNS,
        drift_rows,
        write_refresh_report,
    )

    report = write_refresh_report(folder)
    right = tuple(range(1, len(DRIFT_COLUMNS)))
    show_table("Fixed pairs", DRIFT_COLUMNS, drift_rows(drift["fixed"]), right=right)
    if drift["accepted"]:
        say("The new heads are taken: no dimension lost more than the tolerance.")
    else:
        say(f"warning: the old heads stay: the new ones lost on {', '.join(drift['lost'])}")
    into = f", {harvested['added']:,} added to {harvested['into']}" if harvested["into"] else ""
    say(f"kept {harvested['kept']:,} of {harvested['answers']:,} answers as SFT data{into}")
    say(f"model:  {folder / 'model'}")
    say(f"data:   {folder / FOLDER / SFT_FILE}")
    say(f"to ask people about, for --ratings: {folder / FOLDER / SHEET_FILE}")
    say(f"report: {report}")
