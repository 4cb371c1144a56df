"""The text or the messages that a graph is built from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError, DataError

_ROLES = {"usr": "user", "customer": "user", "human": "user", "sys": "assistant",
          "agent": "assistant", "gpt": "assistant", "bot": "assistant"}  # fmt: skip


def read_input(path: Path, row: int) -> str | list[dict[str, Any]]:
    """A text file's text, or one record of a JSONL file.

    Args:
        path: The file; one that ends in ``.jsonl`` holds records.
        row: The record, from 0.

    Returns:
        Text, or messages with ``role`` and ``content``.

    Raises:
        DataError: The file is unreadable, or the record has neither messages nor text.
        ConfigError: There is no such record.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: must be UTF-8 text: {error}.") from error
    if path.suffix != ".jsonl":
        return text
    lines = [line for line in text.split("\n") if line.strip()]
    if not 0 <= row < len(lines):
        raise ConfigError(f"--row: must be at least 0 and below {len(lines)} records, got {row}.")
    try:
        record = json.loads(lines[row])
    except ValueError as error:
        raise DataError(f"{path}, record {row}: is not JSON: {error}.") from error
    return _content(record, f"{path}, record {row}")


def _content(record: Any, place: str) -> str | list[dict[str, Any]]:
    if isinstance(record, dict):
        if isinstance(record.get("messages"), list):
            return [_message(message, place) for message in record["messages"]]
        if "prompt" in record:
            answer = record.get("response", record.get("completion", ""))
            return [
                {"role": "user", "content": str(record["prompt"])},
                {"role": "assistant", "content": str(answer)},
            ]
        if isinstance(record.get("text"), str):
            return record["text"]
    raise DataError(f"{place}: must have messages, prompt and response, or text.")


def _message(message: Any, place: str) -> dict[str, Any]:
    if not isinstance(message, dict) or "content" not in message:
        raise DataError(f"{place}: each message must have a role and content, got {message!r}.")
    role = str(message.get("role", "user"))
    return {"role": _ROLES.get(role, role), "content": str(message["content"])}
