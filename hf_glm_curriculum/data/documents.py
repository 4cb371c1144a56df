"""Plain documents for pre-training: text files, folders of them, or records with a text field."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets

from hf_glm_curriculum.data.record_files import RawRecord, reading
from hf_glm_curriculum.data.records import raw_records
from hf_glm_curriculum.errors import DataError

Source = str | os.PathLike[str]

SUFFIXES = (".txt", ".md", ".markdown", ".rst")
"""Files that are one document each; others are files of records."""

TEXT_FIELDS = ("text", "content", "document")


def load_documents(source: Source | Sequence[Source], *, split: str = "train") -> datasets.Dataset:
    """Load documents.

    Args:
        source: a text file (one document), a file of records (JSONL, JSON, CSV, Parquet) with a
            ``text`` field, a folder, which is searched for text files through all its levels and
            for files of records if it has none, the id of a data set on the hub, or several of
            these.
        split: the split to read of a hub data set.

    Returns:
        One row a document, column ``text``, in order of sources and paths.

    Raises:
        DataError: naming file and line, if a source is missing, not UTF-8, or has no text.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    texts = [text for one in sources for text in _texts(one, split) if text.strip()]
    if not texts:
        shown = ", ".join(os.fspath(one) for one in sources)
        raise DataError(f"{shown}: holds no text; give text files or records with a text field")
    return datasets.Dataset.from_dict({"text": texts})


def _texts(source: Source, split: str) -> Iterator[str]:
    """Yield the texts of one source."""
    path = Path(source).expanduser()
    files = _text_files(path)
    if files:
        yield from map(_read, files)
        return
    for record in raw_records(source, split):
        yield _text_of(record)


def _text_files(path: Path) -> list[Path]:
    """The text files that a path names, sorted; none if it holds records."""
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if path.suffix.lower() not in SUFFIXES:
        return []
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    return [path]


def _read(path: Path) -> str:
    with reading(path):
        return path.read_text(encoding="utf-8-sig")


def _text_of(record: RawRecord) -> str:
    fields: dict[str, Any] = record.fields
    for name in TEXT_FIELDS:
        if isinstance(fields.get(name), str):
            return fields[name]
    raise DataError(
        f"{record.place}: a document needs a text field (one of {', '.join(TEXT_FIELDS)}), got "
        f"{sorted(fields)}; rename the field"
    )
