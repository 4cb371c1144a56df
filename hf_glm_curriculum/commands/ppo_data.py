"""Prompts of a `ppo` run: read or made, split, in the form the trainer takes."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig
from hf_glm_curriculum.commands.sft_data import held_out_rows, read_check
from hf_glm_curriculum.errors import ConfigError

if TYPE_CHECKING:
    import datasets

    from hf_glm_curriculum.commands.ppo_reward import LoadedReward

logger = logging.getLogger(__name__)

_DEMO_WORDS = 40


@dataclass
class PpoData:
    """Prompts.

    Attributes:
        train: rows with `prompt` (text, or messages where the tokenizer has a chat template) and
            the columns that rules read.
        questions: held-out prompts: prompt (text or messages), reference, check, category, language
            and the columns that rules read.
        name: what the prompts are called in the report.
        fingerprint: sixteen hex digits of the training prompts and their order.
    """

    train: datasets.Dataset
    questions: list[dict[str, Any]]
    name: str
    fingerprint: str


def load_ppo_rows(config: PpoCommandConfig) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to train on and those held out, as the files have them.

    Raises:
        ConfigError: No prompts are named, or too few are left to train on.
        DataError: A file is missing or malformed.
    """
    if not config.prompts and not config.demo:
        raise ConfigError(
            "prompts: need at least one file, folder or hub id; pass --prompts FILE, or --demo 200 "
            "to try it out"
        )
    train: list[dict[str, Any]] = []
    heldout: list[dict[str, Any]] = []
    if config.prompts:
        rows = _read(config.prompts)
        rows, held = (rows, []) if config.eval_prompts else _split(rows, config)
        train, heldout = train + rows, heldout + held
    if config.eval_prompts:
        heldout = _read(config.eval_prompts)
    if config.demo:
        wanted = 0 if heldout else config.answers
        rows, held = _demo(config, wanted)
        train, heldout = train + rows, heldout + held
    _check_enough(train, config)
    return train, heldout


def with_opinion(
    rows: list[dict[str, Any]], reward: LoadedReward, config: PpoCommandConfig
) -> list[dict[str, Any]]:
    """The rows of which the reward can say anything, whatever the answer; a rule may be silent.

    Raises:
        ConfigError: Too few are left for an update.
    """
    if not isinstance(reward.model, dict):
        return rows
    prompts, columns = [row["prompt"] for row in rows], [_columns(row) for row in rows]
    scores, _ = reward.score(prompts, ["?"] * len(rows), columns)
    kept = [
        row
        for row, one in zip(rows, scores, strict=True)
        if any(value is not None for value in one.values())
    ]
    if len(kept) < len(rows):
        logger.warning(
            "%d of %d prompts are left out: %s can say nothing of them (they lack a check)",
            *(len(rows) - len(kept), len(rows), ", ".join(reward.dimensions)),
        )
        _check_enough(kept, config)
    return kept


def _check_enough(rows: list[dict[str, Any]], config: PpoCommandConfig) -> None:
    if len(rows) < config.batch_size:
        raise ConfigError(
            f"batch_size: {config.batch_size} prompts an update cannot be drawn from "
            f"{len(rows)}; give more prompts or a smaller batch_size"
        )


def prepare_ppo_data(
    rows: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    tokenizer: Any,
    config: PpoCommandConfig,
) -> PpoData:
    """Put rows into the form that trainer and evaluation take.

    Args:
        rows: from `load_ppo_rows`.
        tokenizer: the policy's.
        config: settings.
    """
    from hf_glm_curriculum.data.records import dataset_of

    train, heldout = rows
    questions = sorted((_question(row) for row in heldout), key=lambda q: q["check"] is None)
    table = [{**_columns(row), "prompt": trained_prompt(row, tokenizer)} for row in train]
    names = [*config.prompts, *(["demo prompts"] if config.demo else [])]
    text = json.dumps([row["prompt"] for row in table], ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return PpoData(dataset_of(table), questions[: config.answers], ", ".join(names), digest)


def trained_prompt(row: dict[str, Any], tokenizer: Any) -> Any:
    """A prompt as fine-tuning has the model read it: by chat template, or before a line break."""
    if not tokenizer.chat_template:
        return f"{row['prompt']}\n"
    return row.get("messages") or [{"role": "user", "content": row["prompt"]}]


def _read(sources: list[str]) -> list[dict[str, Any]]:
    from hf_glm_curriculum.data.record_prompts import load_prompts

    return load_prompts(sources).to_list()


def _split(
    rows: list[dict[str, Any]], config: PpoCommandConfig
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Hold a share out, as `sft` does."""
    if not config.held_out or not config.answers:
        return rows, []
    count = max(1, round(config.held_out * len(rows)))
    if count >= len(rows):
        raise ConfigError(
            f"held_out: {config.held_out} of {len(rows)} prompts leaves none to train on; give "
            "more prompts, a smaller share, or eval_prompts"
        )
    held = set(held_out_rows(len(rows), count, config.seed))
    kept = [row for place, row in enumerate(rows) if place not in held]
    return kept, [rows[place] for place in sorted(held)]


def _demo(
    config: PpoCommandConfig, wanted: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Demo prompts, and others whose answers can be checked."""
    from hf_glm_curriculum.data.demo import checkable_split

    train, heldout = checkable_split(config.demo, wanted, config.seed, max_words=_DEMO_WORDS)
    rows = [[{**row, "reference": row["response"]} for row in part] for part in (train, heldout)]
    return rows[0], rows[1]


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    """What rules may read: the check as JSON text, and plain values of other columns."""
    check = read_check(row.get("answer_check"))
    plain = {
        name: value
        for name, value in row.items()
        if name not in _OURS and isinstance(value, str | int | float | bool | None)
    }
    return {
        **plain,
        "answer_check": None if check is None else json.dumps(check, ensure_ascii=False),
        # Where refusing is right, shaping takes nothing off a refusal.
        "refusal_ok": bool(row.get("refusal_ok")) or _calls_for_refusal(check),
    }


_OURS = ("prompt", "messages", "answer_check", "response", "fault", "meta", "refusal_ok")


def _calls_for_refusal(check: dict[str, Any] | None) -> bool:
    return bool(check and check.get("kind") == "refusal" and check.get("value", True))


def _question(row: dict[str, Any]) -> dict[str, Any]:
    """A held-out row as the evaluation takes it."""
    return {
        "prompt": row["prompt"],
        "messages": row.get("messages"),
        "reference": row.get("reference"),
        "check": read_check(row.get("answer_check")),
        "category": _text(row.get("category")),
        "language": _text(row.get("language")),
        "columns": _columns(row),
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
