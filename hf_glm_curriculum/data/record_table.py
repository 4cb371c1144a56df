"""Rows with any fields as one Arrow table, built a batch at a time.

What outgrows memory goes into temporary files (``TMPDIR``), which are memory-mapped and unlinked
at once: they are gone when nobody holds the table any more, also after a kill.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from hf_glm_curriculum.progress import ProgressBar
from hf_glm_curriculum.storage import writing

logger = logging.getLogger(__name__)

ROWS_PER_BATCH = 5_000
MEMORY_BYTES = 16 << 20
"""Arrow data that is kept in memory before it goes into a file."""


def table_of(rows: Iterable[dict[str, Any]], bar: ProgressBar | None = None) -> pa.Table:
    """Make a table; a field that a row lacks is null there.

    A field whose values fit no one Arrow type becomes JSON text.

    Args:
        rows: read once.
        bar: moved on by the number of rows.

    Raises:
        StateError: if a temporary file cannot be written.
    """
    parts: list[_Part] = []
    recent: list[_Part] = []
    source = iter(rows)
    while batch := list(islice(source, ROWS_PER_BATCH)):
        recent.append(_Part.of(batch))
        if sum(part.table.nbytes for part in recent) >= MEMORY_BYTES:
            parts += _on_disk(recent)
            recent = []
        if bar is not None:
            bar.advance(len(batch))
    return _joined([*parts, *recent])


def fingerprint(table: pa.Table) -> str:
    """16 hex digits that depend on a table's names, types and content, and on nothing else.

    `datasets` would pickle the whole table for it.
    """
    digest = hashlib.blake2b(str(table.schema).encode(), digest_size=8)
    for column in table.columns:
        for chunk in column.chunks:
            digest.update(f"{len(chunk)} {chunk.offset};".encode())
            for buffer in filter(None, chunk.buffers()):
                digest.update(memoryview(buffer))
    return digest.hexdigest()


class _Part:
    """A piece of the table, and which of its columns are JSON text because they fit no type."""

    def __init__(self, table: pa.Table, as_json: frozenset[str] = frozenset()) -> None:
        self.table = table
        self.as_json = as_json

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> "_Part":
        """Turn rows into columns."""
        names = dict.fromkeys(name for row in rows for name in row)
        arrays, as_json = {}, set()
        for name in names:
            values = [row.get(name) for row in rows]
            try:
                arrays[name] = pa.array(values)
            except (pa.ArrowException, OverflowError, UnicodeEncodeError):
                arrays[name] = _json_text(values)
                as_json.add(name)
        return cls(pa.table(arrays), frozenset(as_json))

    def with_json(self, names: set[str]) -> pa.Table:
        """The table with some more columns as JSON text."""
        table = self.table
        for name in (names - self.as_json) & set(table.column_names):
            column = _json_text(table[name].to_pylist())
            table = table.set_column(table.column_names.index(name), name, column)
        return table


def _json_text(values: list[Any]) -> pa.Array:
    return pa.array([json.dumps(value, default=str) for value in values])


def _joined(parts: list[_Part]) -> pa.Table:
    """One table of all parts, by the columns' common types."""
    names = dict.fromkeys(name for part in parts for name in part.table.column_names)
    as_json = {name for part in parts for name in part.as_json}
    for name in names.keys() - as_json:
        with_it = (part.table for part in parts if name in part.table.column_names)
        schemas = [pa.schema([table.schema.field(name)]) for table in with_it]
        try:
            pa.unify_schemas(schemas, promote_options="permissive")
        except pa.ArrowException:
            as_json.add(name)
    for name in sorted(as_json):
        logger.warning("field %r does not fit one Arrow type; it is kept as JSON text", name)
    tables = [part.with_json(as_json) for part in parts]
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables, promote_options="permissive").select(list(names))


def _on_disk(parts: list[_Part]) -> Iterator[_Part]:
    """The same parts, joined by equal columns, in a file each that is already unlinked."""
    for group in _alike(parts):
        # One chunk a file: combined later, they would be copied back into memory.
        table = pa.concat_tables([part.table for part in group]).combine_chunks()
        handle, path = tempfile.mkstemp(prefix="hf_glm_curriculum-", suffix=".arrow")
        os.close(handle)
        try:
            with (
                writing(path),
                pa.OSFile(path, "wb") as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)
            mapped = pa.ipc.open_file(pa.memory_map(path)).read_all()
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)
        yield _Part(mapped, group[0].as_json)


def _alike(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Runs of parts with the same columns and types."""
    group: list[_Part] = []
    for part in parts:
        if group and (part.table.schema, part.as_json) != (group[0].table.schema, group[0].as_json):
            yield group
            group = []
        group.append(part)
    if group:
        yield group
