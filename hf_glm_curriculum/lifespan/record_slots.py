"""Prompts and responses inside records of every format, and how to put other responses there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.data.record_formats import canonical
from hf_glm_curriculum.data.records import dataset_of, raw_records
from hf_glm_curriculum.errors import DataError

if TYPE_CHECKING:
    import datasets

PROVENANCE, REVIEWED_ID = "sample_review", "sample_review_id"
"""Columns that corrected data have: what became of a row, and its id when it was reviewed."""
KEPT, FIXED, UNREVIEWED = "kept", "fixed", "unreviewed"

Fields = dict[str, Any]
PathLike = str | os.PathLike[str]
Texts = tuple[str, str]


def digest(texts: Texts) -> bytes:
    """128 bits that tell one (prompt, response) from another."""
    prompt, response = (text.encode("utf-8", "surrogatepass") for text in texts)
    return hashlib.blake2b(
        len(prompt).to_bytes(8, "little") + prompt + response, digest_size=16
    ).digest()


def text_digest(prompt: str, response: str) -> bytes:
    """128 bits that tell one sample's text from another's, surrounding white space aside."""
    return digest((prompt.strip(), response.strip()))


class Slot(NamedTuple):
    """A prompt with its response in a record, and how to put another response there.

    `parts` are the texts of the turns before the response, which a template may set apart.
    """

    texts: Texts
    parts: tuple[str, ...]
    replace: Callable[[str], Fields]
    fields: Fields


class RecordSource:
    """Records as the user has them, read as often as need be."""

    def __init__(self, data: datasets.Dataset | PathLike | Sequence[PathLike]) -> None:
        self.dataset: datasets.Dataset | None = None
        self.paths: list[PathLike] = []
        if isinstance(data, str | os.PathLike):
            self.paths = [data]
        elif hasattr(data, "column_names"):
            self.dataset = cast("datasets.Dataset", data)
        else:
            self.paths = list(cast("Sequence[PathLike]", data))

    def __str__(self) -> str:
        return ", ".join(os.fspath(p) for p in self.paths) or "the data set"

    def records(self) -> Iterator[RawRecord]:
        """Every record with the place it stands at."""
        if self.dataset is None:
            yield from raw_records(self.paths)
            return
        for number, fields in enumerate(self.dataset.with_format(None)):
            yield RawRecord(f"data set, row {number}", dict(fields))

    @property
    def tokenized(self) -> bool:
        """Whether the data hold tokens, which a corrected text would leave behind."""
        return self.dataset is not None and "input_ids" in self.dataset.column_names

    @property
    def has_provenance(self) -> bool:
        """Whether a data set has been through a review, as far as its columns tell."""
        names = self.dataset.column_names if self.dataset is not None else ()
        return PROVENANCE in names or "instances" in names

    def check_target(self, out: PathLike | None) -> None:
        """Refuse to write over the data themselves, or where reading them would find it.

        Raises:
            DataError: naming the path.
        """
        target = None if out is None else Path(out).expanduser().resolve()
        for path in self.paths:
            own = Path(path).expanduser()
            if target is None or not own.exists():
                continue
            own = own.resolve()
            if own == target or (own.is_dir() and own == target.parent):
                raise DataError(f"{out}: is part of the data itself; write it somewhere else")

    def dataset_of(self, rows: Iterable[Fields]) -> datasets.Dataset:
        """The rows as a data set, of the features the data had."""
        if self.dataset is None:
            return dataset_of(rows)
        import datasets

        text = datasets.Value("string")
        features = datasets.Features({**self.dataset.features, PROVENANCE: text, REVIEWED_ID: text})
        rows = list(rows)
        columns = {name: [row.get(name) for row in rows] for name in features}
        return datasets.Dataset.from_dict(columns, features=features)


def slots_of(record: RawRecord) -> list[Slot]:
    """The prompts and responses of a record, with access to the fields that hold them."""
    rows = list(canonical(record, "sft"))
    fields = record.fields
    if has_instances(fields):
        outer = {name: value for name, value in fields.items() if name != "instances"}
        inner = [slots_of(RawRecord(record.place, outer | one))[0] for one in fields["instances"]]
        return [
            slot._replace(replace=_restricted(slot.replace, one), fields=dict(one))
            for slot, one in zip(inner, fields["instances"], strict=True)
        ]
    texts = (rows[0]["prompt"], rows[0]["response"])
    turns = _turns(fields)
    parts = tuple(turn["content"] for turn in turns[:-1]) if turns else (texts[0],)
    return [Slot(texts, parts, lambda response: _with_response(fields, response), fields)]


def provenance(fields: Fields, place: str) -> tuple[str, str | None]:
    """What an earlier review said of a row: kept, fixed or unreviewed, and under which id.

    Raises:
        DataError: if the column holds something else.
    """
    value, sample_id = fields.get(PROVENANCE), fields.get(REVIEWED_ID)
    if value in (None, ""):
        return UNREVIEWED, None
    if value not in (KEPT, FIXED, UNREVIEWED):
        raise DataError(
            f"{place}, field {PROVENANCE!r}: must be {KEPT}, {FIXED} or {UNREVIEWED}, got "
            f"{repr(value)[:40]}; rename your column of that name"
        )
    return value, sample_id or None


def _turns(fields: Fields) -> list[Fields]:
    """The turns of a conversation, or nothing for a plain exchange."""
    if fields.get("messages") is not None:
        return fields["messages"]
    answer = "completion" if "completion" in fields else "response"
    if isinstance(fields.get("prompt"), list) and isinstance(fields.get(answer), list):
        return [*fields["prompt"], *fields[answer]]
    return []


def has_instances(fields: Fields) -> bool:
    """Whether `canonical` reads a record's ``instances``, as self-instruct has them."""
    if fields.get("messages") is not None:
        return False
    direct = "prompt" in fields and ("completion" in fields or "response" in fields)
    return not direct and "output" not in fields and "instances" in fields


def _restricted(replace: Callable[[str], Fields], own: Fields) -> Callable[[str], Fields]:
    """Replace in the whole record, and return an instance's own fields of it."""
    return lambda response: {name: replace(response)[name] for name in own}


def _with_response(fields: Fields, response: str) -> Fields:
    """A record with another response, in the field where `canonical` finds it."""
    turns = fields.get("messages")
    if turns is not None:
        changed = {**fields, "messages": _with_last_turn(turns, response)}
        if fields.get("response") == turns[-1]["content"]:
            changed["response"] = response
        return changed
    answers = ("completion", "response") if "prompt" in fields else ("output",)
    name = next(name for name in answers if name in fields)
    if isinstance(fields[name], list):
        return {**fields, name: _with_last_turn(fields[name], response)}
    return {**fields, name: response}


def _with_last_turn(turns: list[Fields], response: str) -> list[Fields]:
    return [*turns[:-1], {**turns[-1], "content": response}]
