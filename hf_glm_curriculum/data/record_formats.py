"""What a record of each kind must hold, and its canonical form.

| kind | accepted fields | canonical columns |
| --- | --- | --- |
| sft | instruction, output and perhaps input; prompt and completion or response; messages; \
instruction and instances (self-instruct) | prompt, response (messages for conversations) |
| preference | prompt, chosen, rejected | the same |
| dimension_preference | prompt, chosen, rejected, dimension | the same |
| rating | prompt, response (or completion), one number or null a dimension | the same |

All other fields are kept as they are. Empty text passes: finding it is the audit's work.
"""

import difflib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from hf_glm_curriculum.data.record_files import RawRecord
from hf_glm_curriculum.errors import DataError

DIMENSIONS = ("factual", "logic", "compliance")
NEEDED = {
    "sft": "(instruction, output), (prompt, completion), (prompt, response) or messages",
    "preference": "(prompt, chosen, rejected)",
    "dimension_preference": "(prompt, chosen, rejected, dimension)",
    "rating": "(prompt, response) and a rating or null for each dimension",
}

OURS = ("prompt", "response", "messages")

Fields = dict[str, Any]


def canonical(
    record: RawRecord, kind: str, dimensions: Sequence[str] = DIMENSIONS
) -> Iterator[Fields]:
    """Yield the canonical rows of one raw record (several for self-instruct's instances).

    Args:
        record: the record and its place.
        kind: "sft", "preference", "dimension_preference" or "rating".
        dimensions: names a preference may be about, or that a rating must have.

    Raises:
        DataError: naming file, line, field, rule and the value received.
    """
    if kind == "sft":
        yield from _sft(record)
    elif kind == "rating":
        yield _rating(record, dimensions)
    else:
        yield _preference(record, dimensions if kind == "dimension_preference" else ())


def _sft(record: RawRecord) -> Iterator[Fields]:
    """Yield rows with prompt, response and, for conversations, messages."""
    fields = record.fields
    if fields.get("messages") is not None:
        yield _from_messages(record, fields["messages"], ("messages",))
    elif "prompt" in fields and ("completion" in fields or "response" in fields):
        answer = "completion" if "completion" in fields else "response"
        if isinstance(fields["prompt"], list) and isinstance(fields[answer], list):
            turns = [*fields["prompt"], *fields[answer]]
            yield _from_messages(record, turns, ("prompt", answer))
        else:
            row = {"prompt": text(record, "prompt"), "response": text(record, answer)}
            yield _with_rest(row, _rest(fields, "prompt", answer))
    elif "instruction" in fields and "output" in fields:
        yield _from_instruction(record)
    elif "instruction" in fields and "instances" in fields:
        yield from _instances(record)
    else:
        raise _missing(record, "sft", ("instruction", "output", "prompt", "completion", "messages"))


def _instances(record: RawRecord) -> Iterator[Fields]:
    """Yield a row for each of self-instruct's instances of one instruction."""
    instances = record.fields["instances"]
    if not isinstance(instances, list) or not instances:
        raise _wrong(record, "instances", "a non-empty list", instances)
    for number, instance in enumerate(instances):
        if not isinstance(instance, dict):
            raise _wrong(record, f"instances[{number}]", "an object {input, output}", instance)
        yield from _sft(RawRecord(record.place, _rest(record.fields, "instances") | instance))


def _from_instruction(record: RawRecord) -> Fields:
    """Join instruction and input into the prompt."""
    fields = record.fields
    context = "" if fields.get("input") is None else text(record, "input")
    instruction = text(record, "instruction")
    prompt = f"{instruction}\n\n{context}" if context.strip() else instruction
    row = {"prompt": prompt, "response": text(record, "output")}
    return _with_rest(row, _rest(fields, "instruction", "input", "output"))


def _from_messages(record: RawRecord, messages: Any, used: tuple[str, ...]) -> Fields:
    """Check a conversation; keep it in full unless prompt and response say it all."""
    turns = check_messages(record, messages, used[0])
    if turns[-1]["role"] != "assistant":
        raise DataError(
            f"{record.place}, field {used[0]!r}: the last turn must be the assistant's, got "
            f"{turns[-1]['role']!r}; drop the turns after the last answer"
        )
    row: Fields = {"prompt": flatten(turns[:-1]), "response": turns[-1]["content"]}
    if [turn["role"] for turn in turns] != ["user", "assistant"]:
        row["messages"] = turns
    return _with_rest(row, _rest(record.fields, *used))


def check_messages(record: RawRecord, messages: Any, field: str) -> list[dict[str, str]]:
    """Return the turns as {role, content} of text.

    Raises:
        DataError: if they are not a non-empty list of such turns.
    """
    if not isinstance(messages, list) or not messages:
        raise _wrong(record, field, "a non-empty list of {role, content}", messages)
    turns = []
    for number, turn in enumerate(messages):
        if not isinstance(turn, dict):
            raise _wrong(record, f"{field}[{number}]", "an object {role, content}", turn)
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                raise _wrong(record, f"{field}[{number}].{key}", "text", turn.get(key))
            _checked(record, f"{field}[{number}].{key}", turn[key])
        turns.append({"role": turn["role"], "content": turn["content"]})
    return turns


def flatten(turns: Sequence[dict[str, str]]) -> str:
    """Return turns as one text; a single user turn as it is."""
    if len(turns) == 1 and turns[0]["role"] == "user":
        return turns[0]["content"]
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)


def _preference(record: RawRecord, dimensions: Sequence[str]) -> Fields:
    """Return prompt, chosen, rejected and, where dimensions are given, dimension."""
    fields = record.fields
    names = ["prompt", "chosen", "rejected"] + (["dimension"] if dimensions else [])
    kind = "dimension_preference" if dimensions else "preference"
    if any(name not in fields for name in names):
        raise _missing(record, kind, names)
    row = {name: _text_or_turns(record, name) for name in names}
    if dimensions and row["dimension"] not in dimensions:
        raise DataError(
            f"{record.place}, field 'dimension': must be one of {list(dimensions)}, got "
            f"{row['dimension']!r}{_nearest(row['dimension'], dimensions)}"
        )
    return {**row, **_rest(fields, *names)}


def _text_or_turns(record: RawRecord, name: str) -> str:
    """Return a text field, or the text of a list of turns (TRL's conversational form)."""
    value = record.fields[name]
    if not isinstance(value, list):
        return text(record, name)
    turns = check_messages(record, value, name)
    return turns[0]["content"] if len(turns) == 1 else flatten(turns)


def _rating(record: RawRecord, dimensions: Sequence[str]) -> Fields:
    """Return prompt, response and a float in [0, 1] or None for each dimension."""
    fields = record.fields
    answer = "response" if "response" in fields else "completion"
    names = ("prompt", answer, *dimensions)
    if any(name not in fields for name in names):
        raise _missing(record, "rating", names)
    row: Fields = {"prompt": text(record, "prompt"), "response": text(record, answer)}
    row |= {name: _unit_number(record, name) for name in dimensions}
    return _with_rest(row, _rest(fields, *names))


def _unit_number(record: RawRecord, name: str) -> float | None:
    """Return the number in [0, 1]; None for null, an empty CSV field, or NaN (a table's null)."""
    value = record.fields[name]
    if isinstance(value, str):
        value = value.strip()
        try:
            value = float(value) if value else None
        except ValueError:
            value = record.fields[name]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _wrong(record, name, "a number in [0, 1] or null", value)
    return float(value)


def text(record: RawRecord, name: str) -> str:
    """Return a field that must be text.

    Raises:
        DataError: if it is anything else, or holds half a surrogate pair.
    """
    value = record.fields[name]
    if not isinstance(value, str):
        raise _wrong(record, name, "text", value)
    return _checked(record, name, value)


def _checked(record: RawRecord, name: str, value: str) -> str:
    """Return text that UTF-8 can hold; JSON escapes can spell text that it cannot."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _wrong(record, name, "valid Unicode", value[error.start : error.end]) from error
    return value


def _rest(fields: Fields, *used: str) -> Fields:
    """Return the fields that the format does not use."""
    return {name: value for name, value in fields.items() if name not in used}


def _with_rest(row: Fields, rest: Fields) -> Fields:
    """Add the other fields; one that bears the name of a column of ours is renamed."""
    for name, value in rest.items():
        if name not in OURS:
            row[name] = value
        elif value is not None and value != row.get(name):
            row[f"original_{name}"] = value
    return row


def _wrong(record: RawRecord, field: str, rule: str, value: Any) -> DataError:
    """Build the error for a field of the wrong kind."""
    shown = "null" if value is None else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return DataError(f"{record.place}, field {field!r}: must be {rule}, got {shown}")


def _missing(record: RawRecord, kind: str, names: Sequence[str]) -> DataError:
    """Build the error for a record without the fields of its kind."""
    have = sorted(str(name) for name in record.fields)
    hints = [
        f"{name!r} for {close[0]!r}"
        for name in names
        if name not in have
        and (close := difflib.get_close_matches(name, have, n=1, cutoff=0.75))
        and close[0] not in names
    ]
    hint = f"; did you mean {', '.join(hints)}?" if hints else "; rename its fields"
    return DataError(f"{record.place}: {kind} records need {NEEDED[kind]}, got {have}{hint}")


def _nearest(value: str, choices: Sequence[str]) -> str:
    """Return a hint at the nearest valid value."""
    close = difflib.get_close_matches(value, choices, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
