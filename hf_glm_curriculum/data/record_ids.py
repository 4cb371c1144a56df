"""Ids of records by the content of their text, and JSONL files that carry them as ``meta.id``."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from pathlib import Path
from typing import NamedTuple

from hf_glm_curriculum.data.record_files import RawRecord, jsonl_lines, parse_object
from hf_glm_curriculum.data.record_formats import canonical
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.progress import progress
from hf_glm_curriculum.storage import replacing

Path_ = str | os.PathLike[str]
_DIGITS = 32
_BLANK = " \t\r\n"


def record_id(record: RawRecord) -> str:
    """Id of a record's text: 32 hex digits, the first half of a SHA-256.

    Hashed is the JSON array of the [prompt, response] pairs that the record stands for, exactly as
    they are, in UTF-8 without blanks or escapes. So the id is the same in every format that spells
    the same text, and does not depend on other fields, on the file or on the row.

    Raises:
        DataError: naming file, line and field, if it is no record of the "sft" kind.
    """
    pairs = [[row["prompt"], row["response"]] for row in canonical(record, "sft")]
    text = json.dumps(pairs, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:_DIGITS]


def write_ids(sources: Path_ | Sequence[Path_], out: Path_, *, replace: bool = False) -> int:
    """Copy JSONL files with each record's id in ``meta.id``.

    Order, other fields and their spelling stay as they are, byte for byte; blank lines and a byte
    order mark go. ``meta`` is made where it is missing or null. The file is written whole or not at
    all, and may be the source itself.

    Args:
        sources: ``.jsonl`` files, written one after another.
        out: the file to write.
        replace: overwrite a ``meta.id`` that is another one.

    Returns:
        Number of records.

    Raises:
        DataError: naming file, line and field, if a source is no JSONL file, a record does not fit,
            ``meta`` is no object, or holds another id and ``replace`` is False.
        StateError: if the file cannot be written; what was there before is left.
    """
    paths = [Path(one).expanduser() for one in _listed(sources)]
    check_jsonl(paths)
    count = 0
    with (
        progress(sum(path.stat().st_size for path in paths), "writing ids (bytes)") as bar,
        replacing(Path(out).expanduser()) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for path in paths:
            for place, line in jsonl_lines(path):
                file.write(with_id(line, place, replace) + "\n")
                bar.advance(len(line.encode("utf-8")) + 1)
                count += 1
    return count


def check_jsonl(paths: Sequence[Path]) -> None:
    """Refuse files that ids cannot be written into.

    Raises:
        DataError: if a path is no ``.jsonl`` file.
    """
    for path in paths:
        if path.suffix.lower() != ".jsonl" or not path.is_file():
            raise DataError(f"{path}: ids are written into .jsonl files; convert it to JSON Lines")


def with_id(line: str, place: str, replace: bool = False) -> str:
    """One JSONL record with its id; see `write_ids`."""
    record = RawRecord(place, parse_object(line, place))
    own = record_id(record)
    meta = record.fields.get("meta")
    if meta is not None and not isinstance(meta, dict):
        raise DataError(
            f"{place}, field 'meta': must be an object or null to hold an id, got {meta!r:.60}; "
            "rename that field"
        )
    known = (meta or {}).get("id")
    if known == own:
        return line
    if known is not None and not replace:
        raise DataError(
            f"{place}, field 'meta.id': already holds {known!r:.60}, the text's id is {own!r}; "
            "allow replacing ids, or rename that field"
        )
    if meta is None:
        return _with_member(line, 0, "meta", json.dumps({"id": own}))
    return _with_member(line, _member(line, 0, "meta").start, "id", json.dumps(own))


class _Span(NamedTuple):
    """Where a member's value stands in a line."""

    start: int
    end: int


def _listed(sources: Path_ | Sequence[Path_]) -> Sequence[Path_]:
    return [sources] if isinstance(sources, str | os.PathLike) else list(sources)


def _with_member(line: str, opening: int, name: str, value: str) -> str:
    """The line with a member set in the object that opens at ``opening``."""
    spans = dict(_members(line, opening))
    if name in spans:
        start, end = spans[name]
        return line[:start] + value + line[end:]
    last = max((span.end for span in spans.values()), default=opening + 1)
    comma = ", " if spans else ""
    return f"{line[:last]}{comma}{json.dumps(name)}: {value}{line[last:]}"


def _member(line: str, opening: int, name: str) -> _Span:
    """Where the value of a member stands; of equal names the last counts, as in parsing."""
    return dict(_members(line, opening))[name]


def _members(line: str, opening: int) -> Iterator[tuple[str, _Span]]:
    """Names and places of the members of a valid object that opens at ``opening``."""
    decoder = JSONDecoder()
    at = _skip(line, opening + 1)
    while line[at] != "}":
        name, at = decoder.raw_decode(line, at)
        start = _skip(line, _skip(line, at) + 1)
        _, end = decoder.raw_decode(line, start)
        yield name, _Span(start, end)
        at = _skip(line, end)
        if line[at] == ",":
            at = _skip(line, at + 1)


def _skip(line: str, at: int) -> int:
    while line[at] in _BLANK:
        at += 1
    return at
