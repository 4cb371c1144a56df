"""What the heads of a finished `reward` run were trained and tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.reward_data import SAMPLED_FILE, named_rows
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.storage import read_json

Rows = list[dict[str, Any]]


@dataclass
class History:
    """Rows of a run, and of those it refreshed.

    Attributes:
        pairs: preferences that heads were trained, stopped and calibrated on.
        ratings: rated responses of the same kind.
        fixed: preferences that models are compared on.
    """

    pairs: Rows
    ratings: Rows
    fixed: Rows


def run_config(folder: Path) -> RewardCommandConfig:
    """The settings of a finished run.

    Raises:
        StateError: The folder holds none.
    """
    record, settings = folder / "run.json", folder / "config.yaml"
    if not record.exists() or read_json(record).get("command") != "reward":
        raise StateError(f"refresh: {folder} holds no run of `reward`; name the folder of one")
    if read_json(record).get("status") != "finished" or not settings.exists():
        raise StateError(f"refresh: the run in {folder} is not finished; go on with it by --resume")
    return load_config(RewardCommandConfig, settings)


def history_of(folder: Path, fixed: Sequence[str] = (), dimension: str | None = None) -> History:
    """Read a run's rows again, as it split them.

    Args:
        folder: the run's.
        fixed: files of preferences in place of the run's own test pairs.
        dimension: what preferences there are about that do not say.

    Raises:
        StateError: The run's files have changed since, so that its test pairs are not known.
        ConfigError: There are no pairs to compare on.
        DataError: A file cannot be read.
    """
    config = run_config(folder)
    if config.refresh is None:
        found = _first(folder, config, own_split=not fixed)
    else:
        found = history_of(Path(config.refresh), config.fixed, config.preference_dimension)
        pairs, ratings = named_rows(config)
        known = {row["prompt"] for row in found.fixed}
        for kept, more in ((found.pairs, [*pairs, *_own_pairs(folder)]), (found.ratings, ratings)):
            kept += [row for row in more if row["prompt"] not in known]
    if fixed:
        read = RewardCommandConfig(
            preferences=list(fixed), dimensions=config.dimensions, preference_dimension=dimension
        )
        found = History(found.pairs, found.ratings, named_rows(read)[0])
    if not found.fixed:
        raise ConfigError(
            f"fixed: {folder} has no test pairs to compare old and new heads on; pass --fixed FILE"
        )
    return found


def _first(folder: Path, config: RewardCommandConfig, own_split: bool) -> History:
    """Rows of a run that refreshed no other."""
    from hf_glm_curriculum.rewards.reward_data import reward_data

    pairs, ratings = named_rows(config)
    if config.prompts:
        pairs += [r for r in _json_lines(folder / SAMPLED_FILE) if _known(r, config)]
    data = reward_data(pairs, ratings, config.dimensions, config.preference_dimension)
    split = data.split(config.validation, config.test, config.training.seed, config.unseen)
    saved = read_json(folder / "run.json").get("data", {}).get("fingerprint")
    if own_split and saved != split.fingerprint():
        raise StateError(
            f"refresh: the files that {folder} was trained on are not what they were, so its test "
            "pairs cannot be told; restore them, or pass --fixed FILE"
        )
    test = {split.prompts[item] for item in split.splits["test"].items().tolist()}
    apart = {split.prompts[i] for s in ("test", "unseen") for i in _items(split, s)}
    return History(
        [row for row in pairs if row["prompt"] not in apart],
        [row for row in ratings if row["prompt"] not in apart],
        [row for row in pairs if row["prompt"] in test],
    )


def _items(data: Any, split: str) -> list[int]:
    return data.splits[split].items().tolist() if split in data.splits else []


def _known(row: dict[str, Any], config: RewardCommandConfig) -> bool:
    return row["dimension"] in config.dimensions


def _own_pairs(folder: Path) -> Rows:
    """Pairs of the policy's answers in a refreshed run."""
    return _json_lines(folder / "refresh" / "preferences.jsonl")


def _json_lines(path: Path) -> Rows:
    from hf_glm_curriculum.data.record_files import read_file

    return [dict(record.fields) for record in read_file(path)]
