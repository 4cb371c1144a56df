"""Prompts of every supported format, for training that makes its answers itself."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import datasets

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.data.record_formats import Fields, check_messages, flatten, text
from hf_glm_curriculum.data.records import Source, dataset_of, raw_records
from hf_glm_curriculum.errors import DataError

_TEXTS = ("prompt", "query", "question")
_ANSWERS = ("response", "completion", "output", "chosen", "answer")
_NEEDED = "prompt, query, question, instruction (with input) or messages"


def load_prompts(source: Source | Sequence[Source], *, split: str = "train") -> datasets.Dataset:
    """Load prompts out of records of any kind; what answers them is kept as a reference.

    Args:
        source: a JSONL, JSON, CSV or Parquet file, a folder of them, several of these, or the id
            of a data set on the hub.
        split: the split to read of a hub data set.

    Returns:
        Rows in file order with ``prompt`` (text), ``reference`` (text or null), ``messages`` (null
        where the prompt is one user turn) and all other fields.

    Raises:
        DataError: naming file, line and field, if a record has no prompt or there is none.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else list(source)
    dataset = dataset_of(
        row for record in raw_records(sources, split) for row in prompt_rows(record)
    )
    if not dataset.column_names:
        shown = ", ".join(map(str, sources))
        raise DataError(f"{shown}: holds no record; prompts need {_NEEDED}")
    return dataset


def prompt_rows(record: RawRecord) -> Iterator[Fields]:
    """Yield the prompts of one record (several for self-instruct's instances).

    Raises:
        DataError: naming file, line, field, rule and the value received.
    """
    fields = record.fields
    if fields.get("messages") is not None:
        yield _conversation(record, "messages")
    elif isinstance(fields.get("prompt"), list):
        yield _conversation(record, "prompt")
    elif isinstance(fields.get("instances"), list) and "instruction" in fields:
        rest = {k: v for k, v in fields.items() if k != "instances"}
        for number, instance in enumerate(fields["instances"]):
            if not isinstance(instance, dict):
                raise DataError(
                    f"{record.place}, field 'instances[{number}]': must be an object "
                    f"{{input, output}}, got {str(instance)[:60]!r}"
                )
            yield _instruction(RawRecord(record.place, rest | instance))
    elif "instruction" in fields:
        yield _instruction(record)
    else:
        yield _plain(record)


def _plain(record: RawRecord) -> Fields:
    name = next((name for name in _TEXTS if record.fields.get(name) is not None), None)
    if name is None:
        have = sorted(map(str, record.fields))
        raise DataError(f"{record.place}: prompts need {_NEEDED}, got {have}; rename its fields")
    return _row(record, text(record, name), None, (name,))


def _instruction(record: RawRecord) -> Fields:
    given = record.fields.get("input")
    context = "" if given is None else text(record, "input")
    prompt = text(record, "instruction")
    prompt = f"{prompt}\n\n{context}" if context.strip() else prompt
    return _row(record, prompt, None, ("instruction", "input"))


def _conversation(record: RawRecord, field: str) -> Fields:
    """The turns up to the last answer, which becomes the reference."""
    turns = check_messages(record, record.fields[field], field)
    answer = turns.pop()["content"] if turns[-1]["role"] == "assistant" else None
    if not turns or turns[-1]["role"] == "assistant":
        raise DataError(
            f"{record.place}, field {field!r}: must have a turn of the user's before the answer; "
            "drop the record"
        )
    row = _row(record, flatten(turns), answer, (field,))
    if [turn["role"] for turn in turns] != ["user"]:
        row["messages"] = turns
    return row


def _row(record: RawRecord, prompt: str, reference: str | None, used: tuple[str, ...]) -> Fields:
    """The canonical columns, and every field that is none of them."""
    if not prompt.strip():
        raise DataError(f"{record.place}, field {used[0]!r}: must hold text; drop the record")
    fields: dict[str, Any] = record.fields
    for name in _ANSWERS:
        if reference is None and isinstance(fields.get(name), str):
            reference = fields[name]
            used = (*used, name)
    rest = {k: v for k, v in fields.items() if k not in (*used, "prompt", "messages")}
    given = rest.pop("reference", None)
    return {"prompt": prompt, "reference": reference if reference is not None else given, **rest}
