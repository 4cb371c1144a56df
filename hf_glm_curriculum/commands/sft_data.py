"""Data of a fine-tuning run: loaded, split, tokenised, with what is needed to judge answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.sft_config import SftCommandConfig
from hf_glm_curriculum.commands.training_settings import TrainingSettings
from hf_glm_curriculum.errors import ConfigError, DataError

if TYPE_CHECKING:
    import datasets


@dataclass
class SftRecords:
    """Records before tokenisation.

    Attributes:
        train: Rows with prompt and response (or messages), and any other columns.
        heldout: The same, or None.
        name: What the data are called in the report.
    """

    train: datasets.Dataset
    heldout: datasets.Dataset | None
    name: str


@dataclass
class SftData:
    """Tokenised data.

    Attributes:
        train: Rows with input_ids and labels beside the records' own columns.
        heldout: The same, or None.
        questions: Held-out rows to be answered: prompt, reference, check, category, language.
        name: What the data are called in the report.
        fingerprint: Sixteen hex digits of the training rows' tokens and order.
    """

    train: datasets.Dataset
    heldout: datasets.Dataset | None
    questions: list[dict[str, Any]]
    name: str
    fingerprint: str


def load_sft_records(config: SftCommandConfig) -> SftRecords:
    """Load the data a config names and hold a share out where no held-out data are given.

    Raises:
        ConfigError: No data are named, or too few rows are left to train on.
        DataError: A file is missing or malformed.
    """
    from hf_glm_curriculum.data.records import load_records

    if not config.data:
        raise ConfigError("data: needs at least one file, folder or hub id; pass --data FILE")
    records = load_records(config.data)
    name = ", ".join(config.data)
    if config.eval_data:
        return SftRecords(records, load_records(config.eval_data), name)
    return split_records(records, name, config)


def split_records(records: datasets.Dataset, name: str, config: TrainingSettings) -> SftRecords:
    """Hold the configured share of records out.

    Raises:
        ConfigError: Too few rows are left to train on.
    """
    if not config.held_out:
        return SftRecords(records, None, name)
    count = max(1, round(config.held_out * len(records)))
    if count >= len(records):
        raise ConfigError(
            f"held_out: {config.held_out} of {len(records)} rows leaves none to train on; give "
            "more data, a smaller share, or held-out data of their own"
        )
    held = set(held_out_rows(len(records), count, config.seed))
    kept = [row for row in range(len(records)) if row not in held]
    return SftRecords(records.select(kept), records.select(sorted(held)), name)


def held_out_rows(rows: int, count: int, seed: int) -> list[int]:
    """Which rows are held out: the same for the same sizes and seed."""
    import numpy as np

    return np.random.default_rng(seed).choice(rows, count, replace=False).tolist()


def prepare_data(records: SftRecords, tokenizer: Any, config: TrainingSettings) -> SftData:
    """Tokenise records and pick the held-out prompts to be answered.

    Raises:
        DataError: There is no row, or none that keeps an answer token.
    """
    train = _tokenized(records.train, tokenizer, config)
    heldout = None
    if records.heldout is not None and len(records.heldout):
        heldout = _tokenized(records.heldout, tokenizer, config)
    questions = [] if heldout is None else questions_of(heldout, config.answers)
    return SftData(train, heldout, questions, records.name, fingerprint(train))


def _tokenized(
    records: datasets.Dataset, tokenizer: Any, config: TrainingSettings
) -> datasets.Dataset:
    from hf_glm_curriculum.data.tokenization import tokenize_sft

    return tokenize_sft(
        records,
        tokenizer,
        config.max_length,
        config.chat_template,
        without_labels=config.without_labels,
    )


def questions_of(records: Any, limit: int) -> list[dict[str, Any]]:
    """The first rows of one exchange each, as questions; those with a check go first.

    Args:
        records: Rows with prompt and response.
        limit: How many at most.
    """
    found = []
    for row in records.with_format(None).remove_columns(["input_ids", "labels"]):
        if _turns(row.get("messages")) > 2 or not isinstance(row.get("prompt"), str):
            continue
        found.append(
            {
                "prompt": row["prompt"],
                "reference": row.get("response"),
                "check": read_check(row.get("answer_check")),
                "category": _text(row.get("category")),
                "language": _text(row.get("language")),
            }
        )
    found.sort(key=lambda question: question["check"] is None)
    return found[:limit]


def read_check(value: Any) -> dict[str, Any] | None:
    """An `answer_check` as it was written: from JSON text, or without Arrow's filled-in nulls.

    Raises:
        DataError: It is text and not a JSON object.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"answer_check: must be a JSON object, got {value[:80]!r}") from error
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value.get("kind"):
        raise DataError(f"answer_check: must be an object with a kind, got {value!r}")
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    """Take out the keys that are null only because another row of the column has them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _turns(messages: Sequence[Any] | None) -> int:
    """User and assistant turns of a conversation."""
    return sum(turn.get("role") != "system" for turn in messages or ())


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def fingerprint(dataset: Any) -> str:
    """Sixteen hex digits that tell one sequence of tokenised rows from another."""
    from hf_glm_curriculum.data.content_column import content_ids_column

    ids = content_ids_column(dataset.select_columns(["input_ids"]))
    return hashlib.sha256(ids.tobytes()).hexdigest()[:16]
