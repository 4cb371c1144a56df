"""Writing a config back: plain values for JSON, commented YAML for people."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from hf_glm_curriculum.config_types import field_help, field_types
from hf_glm_curriculum.storage import atomic_write_text


def dump_config(config: Any, path: str | os.PathLike[str]) -> None:
    """Write a config as YAML that `load_config` reads back, each field under its help text.

    Raises:
        StateError: The file cannot be written.
    """
    atomic_write_text(path, "\n".join(_yaml_lines(config)) + "\n")


def to_dict(config: Any) -> dict[str, Any]:
    """A config as plain YAML and JSON values: nested mappings, lists, strings and numbers."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config) if f.init}


def _plain(value: Any) -> Any:
    """Turn a config value into what YAML and JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(v) for v in value]
    return value


def _yaml_lines(config: Any, indent: str = "") -> Iterator[str]:
    """YAML lines of a config, each field's help in a comment above it."""
    for name in field_types(type(config)):
        value, help_text = getattr(config, name), field_help(type(config)).get(name)
        if help_text:
            yield f"{indent}# {help_text}"
        if dataclasses.is_dataclass(value):
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, indent + "  ")
        else:
            text = yaml.safe_dump({name: _plain(value)}, allow_unicode=True, sort_keys=False)
            yield from (indent + line for line in text.rstrip("\n").split("\n"))
