"""Data of a `reward` run: read, sampled, joined and split."""

from __future__ import annotations

import shutil
from typing import Any

from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.run_state import FolderPlan
from hf_glm_curriculum.errors import ConfigError, DataError

SAMPLED_FILE = "sampled/pairs.jsonl"


def data_of(config: RewardCommandConfig, plan: FolderPlan) -> Any:
    """Every example the config names, split.

    Raises:
        ConfigError: Nothing is named.
        DataError: A row does not fit, or a dimension has too few prompts.
    """
    from hf_glm_curriculum.rewards.reward_data import reward_data

    if not (config.preferences or config.ratings or config.prompts or config.demo):
        raise ConfigError(
            "preferences, ratings, prompts: need at least one file; pass --preferences FILE, or "
            "--demo 600 to try it out"
        )
    pairs, ratings = named_rows(config)
    if config.prompts:
        pairs += _sampled(config, plan)
    data = reward_data(pairs, ratings, config.dimensions, config.preference_dimension)
    training = config.training
    return data.split(config.validation, config.test, training.seed, config.unseen)


def named_rows(config: RewardCommandConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Pairs and ratings of the files that the config names, and its demo pairs.

    Raises:
        DataError: A row does not fit.
    """
    from hf_glm_curriculum.rewards.reward_data import read_rows

    pairs, ratings = read_rows(
        config.preferences,
        config.ratings,
        dimensions=config.dimensions,
        preference_dimension=config.preference_dimension,
        source_column=config.source_column,
    )
    return pairs + _demo(config), ratings


def _demo(config: RewardCommandConfig) -> list[dict[str, Any]]:
    if not config.demo:
        return []
    from hf_glm_curriculum.data.demo.preferences import DIMENSIONS, demo_preferences

    wanted = [name for name in DIMENSIONS if name in config.dimensions]
    rows = demo_preferences(config.demo, config.training.seed, dimensions=wanted)
    return [{**row, "source": f"demo-{row['language']}"} for row in rows]


def _sampled(config: RewardCommandConfig, plan: FolderPlan) -> list[dict[str, Any]]:
    """Pairs of sampled answers to prompts whose answers can be checked."""
    from hf_glm_curriculum.data.records import load_records
    from hf_glm_curriculum.models import load_model
    from hf_glm_curriculum.rewards.construct import build_preferences

    model, tokenizer = load_model(config.sampler or config.model, config.dtype)
    loaded: Any = load_records(config.prompts)
    rows = [row for row in loaded if row.get("answer_check")]
    if not rows:
        raise DataError(
            f"{', '.join(config.prompts)}: no row has an answer_check to rank answers by; add one, "
            "or rank them yourself and pass --preferences"
        )
    path = plan.folder / SAMPLED_FILE
    if plan.clear:
        shutil.rmtree(path.parent, ignore_errors=True)
    found = build_preferences(model, tokenizer, rows, path, config=config.sampling)
    return [row for row in found if row["dimension"] in config.dimensions]
