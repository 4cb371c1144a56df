"""What annotators answered about samples of the pool: keep, fix or drop."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_glm_curriculum.data.record_files import RawRecord, read_file
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.pool import (
    ObservationPool,
    PoolRow,
    from_csv_cell,
    id_text,
    parse_id,
)

KEEP, FIX, DROP = "keep", "fix", "drop"
DECISIONS = (KEEP, FIX, DROP)


@dataclass(frozen=True)
class Answer:
    """One decision about one sample.

    Attributes:
        id: the sample's id.
        decision: "keep", "fix" or "drop".
        response: the corrected response of a fix, else None.
        place: file and line, as error messages name it.
    """

    id: int
    decision: str
    response: str | None
    place: str


def read_answers(path: str | os.PathLike[str], pool: ObservationPool) -> list[Answer]:
    """Read annotators' answers from a file such as `ObservationPool.export` writes.

    Each record names its sample by ``row`` or ``id`` and gives a ``decision``; a fix needs
    ``corrected_response``. A record without a decision is undecided and passed over. Where
    ``prompt`` or ``response`` are there too they must be the pool's own, so that answers for
    another run or an edited text are found.

    Args:
        path: JSONL, JSON, CSV or Parquet.
        pool: the pool that was answered.

    Raises:
        DataError: naming file and line, if a sample is not in the pool, its text is another, it
            is answered twice, or an answer is malformed.
    """
    unescape = Path(path).suffix.lower() == ".csv"
    answers = []
    for record in read_file(Path(path)):
        fields = _cells(record.fields) if unescape else record.fields
        answer = _answer(RawRecord(record.place, fields), pool)
        if answer is not None:
            answers.append(answer)
    return check_once(answers)


def check_once(answers: Iterable[Answer]) -> list[Answer]:
    """Return the answers if no sample has two.

    Raises:
        DataError: naming both places, and whether the two agree.
    """
    seen: dict[int, Answer] = {}
    for answer in answers:
        first = seen.setdefault(answer.id, answer)
        if first is not answer:
            raise _twice(first, answer)
    return list(seen.values())


def check_answer(decision: str, response: str | None, row: PoolRow, place: str) -> Answer:
    """Check a decision about a sample and return it.

    Raises:
        DataError: if the decision is unknown, the sample's text is, or a correction is missing,
            empty, needless or equal to the response it should correct.
    """
    if row.prompt is None or row.response is None:
        raise DataError(
            f"{place}: the run could not read the text of row {row.row}, so no decision about it "
            "can be carried into the data; train on data with text or token columns to review"
        )
    if decision not in DECISIONS:
        raise DataError(
            f"{place}, field 'decision': must be one of {', '.join(DECISIONS)}, got "
            f"{decision[:40]!r}"
        )
    if decision != FIX:
        if response and response != row.response:
            raise DataError(
                f"{place}, field 'corrected_response': is given with decision {decision!r}; "
                "decide fix, or empty the field"
            )
        return Answer(row.id, decision, None, place)
    if not response or not response.strip():
        raise DataError(
            f"{place}, field 'corrected_response': a fix needs the corrected answer, got nothing; "
            "drop the sample, or write one"
        )
    if response == row.response:
        raise DataError(
            f"{place}, field 'corrected_response': is the answer as it was; keep the sample, or "
            "change the answer"
        )
    return Answer(row.id, FIX, response, place)


def _answer(record: RawRecord, pool: ObservationPool) -> Answer | None:
    """The answer of one record, or None if it is undecided."""
    if "decision" not in record.fields:
        raise DataError(
            f"{record.place}: an answer needs decision and row or id, got "
            f"{sorted(map(str, record.fields))}; rename its fields"
        )
    row = _row_of(record, pool)
    _check_text(record, row)
    decision = _text(record, "decision").strip().lower()
    response = _text(record, "corrected_response")
    if not decision:
        if response:
            raise DataError(
                f"{record.place}, field 'decision': is empty beside a corrected_response; decide "
                "fix, or empty both"
            )
        return None
    return check_answer(decision, response or None, row, record.place)


def _row_of(record: RawRecord, pool: ObservationPool) -> PoolRow:
    """The pool's row that a record is about; its row and id must mean the same one."""
    place = record.place
    number, name = record.fields.get("row"), record.fields.get("id")
    by_row = by_id = None
    if name not in (None, ""):
        sample_id = parse_id(name, place)
        by_id = pool.by_id.get(sample_id)
        if by_id is None:
            raise _unknown(place, "id", id_text(sample_id), pool)
    if number not in (None, ""):
        index = _whole_number(number, place)
        by_row = pool.by_row.get(index)
        if by_row is None and (by_id is None or by_id.row != index):
            if any(row.row == index for row in pool.rows):
                raise DataError(
                    f"{place}, field 'row': row {index} holds several samples of the pool; name "
                    "the one meant by its id"
                )
            raise _unknown(place, "row", index, pool)
    found = by_id or by_row
    if found is None:
        raise DataError(f"{place}: names no sample; give its row or id as the pool has it")
    if by_row is not None and by_id is not None and by_row is not by_id:
        raise DataError(
            f"{place}, field 'id': {id_text(by_id.id)} is row {by_id.row} of {pool.path}, not "
            f"row {by_row.row}: its content has changed; answer the pool of the same run"
        )
    return found


def _check_text(record: RawRecord, row: PoolRow) -> None:
    """Refuse an answer that was given about another text."""
    for name, own in (("prompt", row.prompt), ("response", row.response)):
        value = record.fields.get(name)
        if value in (None, "") and not own:
            continue
        if name in record.fields and value is not None and _lines(str(value)) != _lines(own or ""):
            raise DataError(
                f"{record.place}, field {name!r}: differs from the pool's at row {row.row}, "
                f"{id_text(row.id)}; answer the pool of the same run, and write corrections to "
                "corrected_response"
            )


def _whole_number(value: Any, place: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        return int(str(value).strip())
    except ValueError as error:
        raise DataError(
            f"{place}, field 'row': must be a whole number, got {str(value)[:40]!r}"
        ) from error


def _text(record: RawRecord, name: str) -> str:
    value = record.fields.get(name)
    if value is None or value != value:  # NaN is how a table says null
        return ""
    if not isinstance(value, str):
        raise DataError(f"{record.place}, field {name!r}: must be text, got {repr(value)[:60]}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        bad = value[error.start : error.end]
        raise DataError(
            f"{record.place}, field {name!r}: must be valid Unicode, got {bad!r}"
        ) from error
    return value


def _cells(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: from_csv_cell(v) if isinstance(v, str) else v for k, v in fields.items()}


def _lines(text: str) -> str:
    """Text with the line ends that every editor agrees on."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _unknown(place: str, field: str, value: Any, pool: ObservationPool) -> DataError:
    return DataError(
        f"{place}, field {field!r}: {value} is not in {pool.path}; answer the pool of the same run"
    )


def _twice(first: Answer, second: Answer) -> DataError:
    same = (first.decision, first.response) == (second.decision, second.response)
    verb = "repeats" if same else "contradicts"
    return DataError(
        f"{second.place}: {verb} the answer about {id_text(second.id)} of {first.place} "
        f"({first.decision}, then {second.decision}); leave one of the two"
    )
