"""Data of a migration: documents and instructions, loaded, tokenised, mixed, a share held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.migrate_config import MigrateCommandConfig
from hf_glm_curriculum.commands.sft_data import (
    SftData,
    SftRecords,
    fingerprint,
    prepare_data,
    split_records,
)
from hf_glm_curriculum.errors import ConfigError

if TYPE_CHECKING:
    import datasets

    from hf_glm_curriculum.data.mixture import CurriculumMixture

PRETRAIN, INSTRUCTION = "documents", "instructions"
"""Names of the mixture's sources."""

COLUMNS = ["input_ids", "labels"]


@dataclass
class MigrateRecords:
    """What is loaded before there is a tokenizer.

    Attributes:
        documents: Rows with text, in the order they are trained on.
        instructions: Rows with prompt and response.
        names: What documents and instructions are called in the report.
    """

    documents: datasets.Dataset
    instructions: SftRecords
    names: tuple[str, str]

    def texts(self) -> Iterator[str]:
        """All text that is trained on, for a tokenizer of one's own."""
        yield from self.documents["text"]
        for row in self.instructions.train:
            for name in ("prompt", "response"):
                if isinstance(row.get(name), str):  # type: ignore[union-attr]
                    yield row[name]  # type: ignore[index]


@dataclass
class MigrateData:
    """Tokenised data.

    Attributes:
        train: The mixture.
        documents: Rows of documents that are trained on.
        heldout_documents: Rows of documents that are not; None if none are held out.
        instructions: Tokenised instructions, held-out ones, questions.
    """

    train: CurriculumMixture
    documents: datasets.Dataset
    heldout_documents: datasets.Dataset | None
    instructions: SftData

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits of everything that is trained on."""
        parts = fingerprint(self.documents) + self.instructions.fingerprint
        return hashlib.sha256(parts.encode()).hexdigest()[:16]


def load_migrate_records(config: MigrateCommandConfig) -> MigrateRecords:
    """Load what a config names.

    Raises:
        ConfigError: No documents or instructions are named, or too few rows are left.
        DataError: A file is missing or malformed.
    """
    from hf_glm_curriculum.data.documents import load_documents
    from hf_glm_curriculum.data.records import load_records

    for name, kind in ((PRETRAIN, "text"), (INSTRUCTION, "file of instructions")):
        if not getattr(config, name):
            raise ConfigError(
                f"{name}: needs at least one {kind}, folder or hub id; pass --{name} FILE"
            )
    documents = load_documents(config.documents).shuffle(seed=config.seed)
    names = ", ".join(config.documents), ", ".join(config.instructions)
    records = split_records(load_records(config.instructions), names[1], config)
    return MigrateRecords(documents, records, names)


def prepare_migration(
    records: MigrateRecords, tokenizer: Any, config: MigrateCommandConfig, rows_per_step: int
) -> MigrateData:
    """Tokenise, hold a share of the documents' rows out, and mix.

    Documents follow one another in rows of `max_length` tokens; the last rows are held out, so
    that no more than one document is on both sides.

    Args:
        records: From `load_migrate_records`.
        tokenizer: The model's.
        config: Settings.
        rows_per_step: Rows of an optimizer step over all ranks.

    Raises:
        ConfigError: Too few rows are left to train on.
        DataError: There is no row with a label.
    """
    from hf_glm_curriculum.data.chunks import chunk_documents
    from hf_glm_curriculum.data.mixture import CurriculumMixture

    rows = chunk_documents(records.documents, tokenizer, config.max_length or 0)
    held = max(1, round(config.held_out * len(rows))) if config.held_out else 0
    if held >= len(rows):
        raise ConfigError(
            f"held_out: {config.held_out} of {len(rows)} rows of {config.max_length} tokens leaves "
            "none to train on; give more documents, shorter rows or a smaller share"
        )
    kept = rows.select(range(len(rows) - held))
    instructions = prepare_data(records.instructions, tokenizer, config)
    mixture = CurriculumMixture(
        {PRETRAIN: kept, INSTRUCTION: instructions.train.select_columns(COLUMNS)},
        {PRETRAIN: 1.0},
        config.seed,
        stratify=rows_per_step if config.stratify else None,
    )
    heldout = rows.select(range(len(rows) - held, len(rows))) if held else None
    return MigrateData(mixture, kept, heldout, instructions)
