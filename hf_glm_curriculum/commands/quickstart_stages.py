"""What `quickstart` does after fine-tuning: reward heads, then some PPO updates.

Each stage has a folder of its own below the run's and goes on where a kill left it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig, StructuredUseConfig
from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.run_state import FolderPlan, is_finished, plan_folder
from hf_glm_curriculum.evaluation.run_folder import RUN_FILE
from hf_glm_curriculum.rewards.training_config import RewardTrainingConfig
from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, read_json

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.quickstart import QuickstartConfig

REWARD, PPO = "stages/reward", "stages/ppo"
PREFERENCES, PROMPTS, HELDOUT = "preferences.jsonl", "prompts.jsonl", "heldout.jsonl"
DEMO = "demo_data"


def stages_left_out(settings: QuickstartConfig) -> dict[str, str]:
    """Stage → why it is not part of this quickstart; what is not named is."""
    from hf_glm_curriculum.commands.ppo_train import left_out

    if not settings.ppo:
        return dict.fromkeys((REWARD, PPO), "--no-ppo")
    if settings.data and not settings.preferences:
        reason = (
            "reward heads for your own data need preferences of your own; pass --preferences FILE "
            "with prompt, chosen, rejected and dimension"
        )
        return dict.fromkeys((REWARD, PPO), reason)
    reason = left_out()
    return {} if reason is None else {PPO: reason}


def stages_finished(folder: Path, out: Mapping[str, str]) -> bool:
    """Whether every stage that is not left out is done."""
    return all(is_finished(folder / stage) for stage in (REWARD, PPO) if stage not in out)


def run_stages(
    settings: QuickstartConfig, folder: Path, argv: Sequence[str], out: Mapping[str, str]
) -> None:
    """Train reward heads and optimise the fine-tuned policy, or go on with either.

    Args:
        settings: of the quickstart.
        folder: of the run, in which fine-tuning is done.
        argv: the command's arguments, for `run.json`.
        out: from `stages_left_out`.

    Raises:
        HfGlmCurriculumError: Data, models or folders do not allow a stage.
    """
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.ppo_run import STATE, run_ppo
    from hf_glm_curriculum.commands.reward_run import run_reward

    if not settings.data and REWARD not in out:
        _write_demo(settings, folder)
    about: dict[str, Any] = {"argv": list(argv)}
    if REWARD not in out:
        say(f"Then: a reward model of {'your' if settings.preferences else 'demo'} preferences")
        plan = _plan(folder / REWARD, "lifespan")
        title = "Quickstart: reward heads"
        config = reward_settings(settings, folder)
        run_reward(config, plan, {**about, "command": "reward", "title": title})
    if PPO not in out:
        say("Then: PPO on the fine-tuned model")
        plan = _plan(folder / PPO, STATE)
        title = "Quickstart: optimised by its rewards"
        run_ppo(ppo_settings(settings, folder), plan, {**about, "command": "ppo", "title": title})
    done = {stage: _seconds(folder / stage) for stage in (REWARD, PPO) if stage not in out}
    _note_stages(folder, {**done, "left_out": dict(out)})


def total_seconds(folder: Path) -> float:
    """Wall time of all stages."""
    places = [folder, *(folder / name for name in (REWARD, PPO))]
    return sum(_seconds(place) or 0 for place in places if (place / RUN_FILE).is_file())


def _note_stages(folder: Path, about: Mapping[str, Any]) -> None:
    """Keep in the run's own `run.json` what the report says of the stages.

    Raises:
        StateError: The file cannot be read or written.
    """
    run = read_json(folder / RUN_FILE)
    atomic_write_json(folder / RUN_FILE, {**run, "stages": dict(about)})


def reward_settings(settings: QuickstartConfig, folder: Path) -> RewardCommandConfig:
    """Heads on the frozen model that fine-tuning began with, on few pairs."""
    own = settings.preferences or [str(folder / DEMO / PREFERENCES)]
    return RewardCommandConfig(
        preferences=own,
        model=settings.model,
        output_dir=str(folder / REWARD),
        max_length=256,
        shift_check=False,
        training=RewardTrainingConfig(
            epochs=12 if settings.fast else 30,
            folds=2 if settings.fast else 4,
            seed=settings.seed,
        ),
    )


def ppo_settings(settings: QuickstartConfig, folder: Path) -> PpoCommandConfig:
    """Some updates with adapters, from the fine-tuned model, measured to fit their time."""
    fast = settings.fast
    own = bool(settings.data)
    return PpoCommandConfig(
        model=str(folder),
        reward=[str(folder / REWARD)],
        prompts=settings.data if own else [str(folder / DEMO / PROMPTS)],
        eval_prompts=[] if own else [str(folder / DEMO / HELDOUT)],
        held_out=0.15,
        answers=8 if fast else 32,
        output_dir=str(folder / PPO),
        updates=2 if fast else 6,
        batch_size=8 if fast else 16,
        ppo_epochs=2,
        learning_rate=3e-4,
        kl_coef=0.05,
        max_new_tokens=12 if fast else 24,
        max_prompt_length=192,
        long_prompts="drop",
        dtype="float32",
        seed=settings.seed,
        save_steps=1 if fast else 2,
        use=StructuredUseConfig(),
    )


def show_stages(folder: Path, out: Mapping[str, str]) -> None:
    """Write what PPO came to, and what was left out."""
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.commands.ppo import summary_rows
    from hf_glm_curriculum.commands.ppo_run import outcome_of

    if PPO in out:
        what = "reward model and PPO" if REWARD in out else "PPO"
        say(f"{what} left out: {out[PPO]}")
        return
    outcome = outcome_of(folder / PPO)
    rows = summary_rows(outcome)
    if rows:
        columns = ("", "fine-tuned", "after PPO")
        show_table("Held-out answers, by the reward model", columns, rows, right=(1, 2))
    for alarm in outcome.alarms:
        say(f"alarm: {alarm.replace('_', ' ')}; look at the answers before trusting the reward")


def _plan(folder: Path, state: str) -> FolderPlan:
    """Go on with what is there, and begin where nothing is."""
    return plan_folder(folder, resume=(folder / RUN_FILE).exists(), overwrite=False, callback=state)


def _seconds(folder: Path) -> float | None:
    return read_json(folder / RUN_FILE).get("seconds")


def _write_demo(settings: QuickstartConfig, folder: Path) -> None:
    """Demo pairs and prompts, none of which fine-tuning has seen or is evaluated on."""
    from hf_glm_curriculum.commands.quickstart import MAX_WORDS
    from hf_glm_curriculum.data.demo import demo_instructions
    from hf_glm_curriculum.data.demo.catalog import CHECKABLE
    from hf_glm_curriculum.data.demo.preferences import demo_preferences
    from hf_glm_curriculum.evaluation.run_folder import read_json_lines

    data = folder / DEMO
    pairs = demo_preferences(90 if settings.fast else 240, settings.seed, languages=("en",))
    known = {
        row["prompt"] for name in ("train.jsonl", HELDOUT) for row in read_json_lines(data / name)
    }
    prompts = demo_instructions(
        32 if settings.fast else 160,
        settings.seed + 2,
        languages=("en",),
        categories=CHECKABLE,
        max_words=MAX_WORDS,
        exclude=known,
    )
    for name, rows in ((PREFERENCES, pairs), (PROMPTS, prompts)):
        # Checks differ in shape from row to row: as text they share a column.
        kept = ({k: _as_text(k, v) for k, v in row.items()} for row in rows)
        lines = (json.dumps(row, ensure_ascii=False) for row in kept)
        atomic_write_text(data / name, "".join(f"{line}\n" for line in lines))


def _as_text(name: str, value: Any) -> Any:
    nested = name in ("answer_check", "meta") and value is not None
    return json.dumps(value, ensure_ascii=False) if nested else value
