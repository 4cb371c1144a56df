"""Annotators' answers brought back into the training data."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.answers import DROP, FIX, KEEP, Answer, check_once, read_answers
from hf_glm_curriculum.lifespan.decoded import DecodedTexts
from hf_glm_curriculum.lifespan.pool import (
    ObservationPool,
    PoolRow,
    id_text,
    read_pool,
    save_dataset,
)
from hf_glm_curriculum.lifespan.record_slots import (
    FIXED,
    KEPT,
    PROVENANCE,
    REVIEWED_ID,
    Fields,
    RecordSource,
    Slot,
    digest,
    has_instances,
    provenance,
    slots_of,
)
from hf_glm_curriculum.storage import replacing

if TYPE_CHECKING:
    import datasets

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Correction:
    """What an import did, in samples of the data.

    Attributes:
        kept: confirmed as they are.
        fixed: given another response.
        dropped: taken out.
        unreviewed: left alone, for want of an answer.
        path: what was written, or None.
        dataset: the corrected data if nothing was written, else None.
    """

    kept: int
    fixed: int
    dropped: int
    unreviewed: int
    path: Path | None
    dataset: datasets.Dataset | None


def import_annotations(
    pool: ObservationPool | PathLike,
    answers: Sequence[Answer] | PathLike,
    data: datasets.Dataset | PathLike | Sequence[PathLike],
    out: PathLike | None = None,
) -> Correction:
    """Correct the training data by annotators' answers.

    Rows answered "drop" are left out, "fix" gives them the corrected response, "keep" and no
    answer leave them as they are; fields, their names and the order of rows stay. An answer is
    about a content: it holds for every row with the same prompt and response. The column
    ``sample_review`` says of each row whether it was kept, fixed or unreviewed (what it said
    after an earlier review stays where there is no new answer), ``sample_review_id`` holds the
    id under which a kept row was reviewed. `ConfirmedJudge.from_data` reads both.

    Args:
        pool: the pool, its file or the run's folder.
        answers: a file as `read_answers` takes it, or `ReviewStore.answers()`.
        data: what the run was trained on: files, folders or a hub id as `load_records` takes
            them, or a data set.
        out: ``.jsonl``, ``.csv``, ``.parquet``, or a folder name; written whole or not at all.
            None returns the data set instead.

    Raises:
        DataError: naming the answer's line, if its sample is not in the data or has another text
            there, if two answers contradict each other, or if the data are malformed.
        StateError: if the result cannot be written.
    """
    if not isinstance(pool, ObservationPool):
        pool = read_pool(pool)
    if isinstance(answers, str | os.PathLike):
        answers = read_answers(answers, pool)
    source = RecordSource(data)
    source.check_target(out)
    plan = _Plan(pool, check_once(answers), source)
    corrected = (row for record in source.records() if (row := plan.apply(record)) is not None)
    dataset = None
    if out is None:
        dataset = source.dataset_of(corrected)
    else:
        _write(corrected, Path(out).expanduser(), source)
    n = plan.counts
    return Correction(
        n[KEEP], n[FIX], n[DROP], n[None], None if out is None else Path(out), dataset
    )


class _Plan:
    """Which content gets which answer; applies it record by record and counts."""

    def __init__(self, pool: ObservationPool, answers: list[Answer], source: RecordSource) -> None:
        self.counts: dict[str | None, int] = dict.fromkeys((KEEP, FIX, DROP, None), 0)
        self._rows = {a.id: pool.by_id[a.id] for a in answers}
        self._by_digest: dict[bytes, Answer] = {}
        if source.tokenized and (fix := next((a for a in answers if a.decision == FIX), None)):
            raise DataError(
                f"{fix.place}: corrects a response, and {source} is tokenised already; give the "
                "records it was made from and tokenise the corrected ones"
            )
        self._resolve(answers, source)

    def apply(self, record: RawRecord) -> Fields | None:
        """The record as corrected, or None if it is dropped."""
        slots = slots_of(record)
        corrected = [row for slot in slots if (row := self._apply(slot, record.place)) is not None]
        if has_instances(record.fields):
            return {**record.fields, "instances": corrected} if corrected else None
        return corrected[0] if corrected else None

    def _apply(self, slot: Slot, place: str) -> Fields | None:
        answer = self._by_digest.get(digest(slot.texts))
        self.counts[answer.decision if answer else None] += 1
        before = provenance(slot.fields, place)
        if answer is None:
            return {**slot.fields, PROVENANCE: before[0], REVIEWED_ID: before[1]}
        if answer.decision == DROP:
            return None
        if answer.decision == KEEP:
            return {**slot.fields, PROVENANCE: KEPT, REVIEWED_ID: id_text(answer.id)}
        return {**slot.replace(answer.response or ""), PROVENANCE: FIXED, REVIEWED_ID: None}

    def _resolve(self, answers: list[Answer], source: RecordSource) -> None:
        """Find every answer's sample in the data."""
        wanted: dict[bytes, Answer] = {}
        decoded = DecodedTexts()
        for answer in answers:
            row = self._rows[answer.id]
            _put(wanted, _own_digest(row), answer)
            if row.decoded:
                decoded.add(row)
        slots = (slot for record in source.records() for slot in slots_of(record))
        for number, slot in enumerate(slots):
            key = digest(slot.texts)
            if (answer := wanted.get(key)) is not None:
                _put(self._by_digest, key, answer)
            decoded.compare(number, key, slot)
        for answer in answers:
            row = self._rows[answer.id]
            key = _own_digest(row)
            if key not in self._by_digest:
                key = decoded.found(row, answer) if row.decoded else None
            if key is None:
                raise DataError(
                    f"{answer.place}: no row of {source} has the text that row {row.row} "
                    f"({id_text(row.id)}) had in the run; it was changed or is other data: give "
                    "the data of the run, or review anew"
                )
            _put(self._by_digest, key, answer)


def _own_digest(row: PoolRow) -> bytes:
    return digest((row.prompt or "", row.response or ""))


def _put(table: dict[bytes, Answer], key: bytes, answer: Answer) -> None:
    """Enter an answer unless another one about the same text contradicts it."""
    first = table.setdefault(key, answer)
    if (first.decision, first.response) != (answer.decision, answer.response):
        raise DataError(
            f"{answer.place}: contradicts the answer of {first.place} about the same text "
            f"({first.decision}, then {answer.decision}); leave one of the two"
        )


# -- writing ---------------------------------------------------------------------------------


def _write(rows: Iterator[Fields], target: Path, source: RecordSource) -> None:
    suffix = target.suffix.lower()
    if suffix == ".jsonl":
        with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(_line(row) + "\n")
    elif suffix == ".csv":
        _write_csv(list(rows), target)
    else:
        save_dataset(source.dataset_of(rows), target)


def _line(row: Fields) -> str:
    """A row as JSON; text that UTF-8 cannot hold is spelled in escapes, as it came."""
    line = json.dumps(row, ensure_ascii=False, default=str)
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(row, default=str)
    return line


def _write_csv(rows: list[Fields], target: Path) -> None:
    """CSV as the records' readers take it: text as it is, anything nested as JSON."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (
        replacing(target) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, names)  # CRLF: a lone CR is quoted
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(row.get(name)) for name in names})


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
