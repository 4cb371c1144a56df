"""Settings: one dataclass read from YAML, overridden by flags, checked field by field.

Every field of a config class carries a string literal under it, which becomes its help text.
A field may itself be a config class: in YAML it is a mapping, and its settings may as well stand
at the top level (or be a plain flag) wherever their names belong to one class only.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from hf_glm_curriculum.config_dump import dump_config, to_dict
from hf_glm_curriculum.config_types import (
    coerce,
    coerce_text,
    config_class,
    describe,
    element_type,
    field_help,
    field_types,
    is_bool,
    nearest,
)
from hf_glm_curriculum.errors import ConfigError

__all__ = [
    "add_config_flags",
    "config_from_args",
    "dump_config",
    "flat_names",
    "load_config",
    "read_yaml",
    "setting_path",
    "settings_in",
    "to_dict",
]

T = TypeVar("T")
_Path = tuple[str, ...]


def load_config(
    cls: type[T],
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] | None = None,
) -> T:
    """Build a config from its defaults, a YAML file and overrides, the last one winning.

    Args:
        cls: The dataclass to build; its `__post_init__` checks the values.
        path: A YAML file holding a mapping; None for the defaults.
        overrides: Name → value, or `"name=value"` strings whose values are read as YAML. Names
            are fields, `outer.inner`, or an inner field's own name where it is unambiguous.

    A class may have a class method ``canonical_keys(tree, path)`` that brings other names for its
    settings, in the file at `path`, into its own.

    Raises:
        ConfigError: The file cannot be read, a key is unknown (the nearest valid one is named),
            or a value has the wrong type or breaks a rule of the class.
    """
    tree = {} if path is None else settings_in(cls, path)
    if overrides is not None and not isinstance(overrides, Mapping):
        overrides = _parse_assignments(cls, overrides)
    _merge(tree, _nest(cls, overrides or {}, ""))
    return _build(cls, tree, prefix="" if path is None else f"{os.fspath(path)}: ")


def settings_in(cls: type, path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a YAML file sets, under the names and in the nesting of the class; values unchecked.

    Raises:
        ConfigError: The file cannot be read, or a key is unknown or set twice.
    """
    return _nest(cls, _read_for(cls, path), f"{os.fspath(path)}: ")


def setting_path(cls: type, name: str) -> str:
    """The full dotted name of a setting that may go by its short one.

    Raises:
        ConfigError: There is no such setting; the nearest is named.
    """
    return ".".join(_resolve(cls, name.replace("-", "_"), name))


def read_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; an empty file is an empty mapping.

    Raises:
        ConfigError: The file cannot be read, is not YAML, or is not a mapping.
    """
    name = os.fspath(path)
    try:
        tree = yaml.safe_load(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}; check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} is not valid YAML ({reason}); correct the file") from error
    if tree is not None and not isinstance(tree, dict):
        raise ConfigError(
            f"{name} must hold a mapping of settings, got {type(tree).__name__}; "
            "write one `key: value` a line"
        )
    return tree or {}


def _read_for(cls: type, path: str | os.PathLike[str]) -> Mapping[Any, Any]:
    """A YAML file in the keys of the class."""
    tree, rename = read_yaml(path), getattr(cls, "canonical_keys", None)
    return tree if rename is None else rename(tree, path)


def add_config_flags(parser: argparse.ArgumentParser, cls: type) -> None:
    """Add one `--field-name` flag for each setting of `cls` and of the config classes inside it.

    Booleans become `--x/--no-x`, lists take several values, mappings take `key=value` pairs. No
    flag has a default of its own, so that `config_from_args` sees only what the user typed.
    """
    for name, path in flat_names(cls).items():
        owner, annotation = _locate(cls, path)
        help_text = field_help(owner).get(path[-1], "").replace("%", "%%")
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": help_text}
        if is_bool(annotation):
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = path[-1].upper()
            options["help"] = f"{help_text} ({describe(annotation)})".replace("% ", "%% ").strip()
            if _takes_several(annotation):
                options["nargs"] = "*"
        parser.add_argument("--" + name.replace("_", "-"), **options)


def config_from_args(
    cls: type[T], args: argparse.Namespace, path: str | os.PathLike[str] | None = None
) -> T:
    """Build a config from flags added by `add_config_flags`, over the YAML file `path`.

    Args:
        cls: The dataclass to build.
        args: The parsed command line.
        path: The YAML file; None takes `args.config` where the parser has such an argument.

    Raises:
        ConfigError: As in `load_config`.
    """
    given = {}
    for name, field_path in flat_names(cls).items():
        if hasattr(args, name):
            annotation = _locate(cls, field_path)[1]
            given[name] = _from_flag(getattr(args, name), annotation, name)
    return load_config(cls, path or getattr(args, "config", None), given)


@cache
def flat_names(cls: type) -> dict[str, _Path]:
    """Every setting's short name → its path of field names.

    A setting of an inner class is known by its own name where no other setting has it, and as
    `outer.inner` otherwise.
    """
    paths = list(_leaves(cls))
    counts = Counter(path[-1] for path in paths)
    return {
        path[-1] if len(path) == 1 or counts[path[-1]] == 1 else ".".join(path): path
        for path in paths
    }


def _leaves(cls: type, prefix: _Path = ()) -> Iterator[_Path]:
    """Paths of all settings that are not config classes themselves."""
    for name, annotation in field_types(cls).items():
        inner = config_class(annotation)
        if inner is None:
            yield (*prefix, name)
        else:
            yield from _leaves(inner, (*prefix, name))


def _locate(cls: type, path: _Path) -> tuple[type, Any]:
    """The class that owns the setting at `path`, and the setting's annotation."""
    for name in path[:-1]:
        cls = config_class(field_types(cls)[name]) or cls
    return cls, field_types(cls)[path[-1]]


def _nest(cls: type, tree: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """Bring flat, dotted and nested keys into the shape of the class, refusing unknown ones."""
    nested: dict[str, Any] = {}
    for key, value in tree.items():
        path = _resolve(cls, str(key).replace("-", "_"), f"{prefix}{key}")
        inner = config_class(_locate(cls, path)[1])
        if inner is not None and (value is None or isinstance(value, Mapping)):
            value = _nest(inner, value or {}, f"{prefix}{'.'.join(path)}.")
        branch: Any = value
        for name in reversed(path):
            branch = {name: branch}
        _merge(nested, branch, refuse=prefix)
    return nested


def _resolve(cls: type, key: str, shown: str) -> _Path:
    """The path of field names that a key stands for."""
    types, head, *rest = field_types(cls), *key.split(".")
    if head in types and not rest:
        return (head,)
    inner = config_class(types.get(head))
    if inner is not None and rest:
        return (head, *_resolve(inner, ".".join(rest), shown))
    if key in flat_names(cls):
        return flat_names(cls)[key]
    valid = {*types, *flat_names(cls), *(".".join(path) for path in _leaves(cls))}
    raise ConfigError(f"{shown} is not a setting; {nearest(key, valid)}")


def _merge(base: dict[str, Any], extra: Mapping[str, Any], refuse: str | None = None) -> None:
    """Lay `extra` over `base`, branch by branch; with `refuse` a leaf must not be there twice."""
    for key, value in extra.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value, None if refuse is None else f"{refuse}{key}.")
        elif refuse is not None and key in base:
            raise ConfigError(f"{refuse}{key} is set twice; keep one of the two")
        else:
            base[key] = dict(value) if isinstance(value, Mapping) else value


def _build(cls: type[T], tree: Mapping[str, Any], prefix: str, base: Any = None) -> T:
    """Make an instance of `cls` from a nested tree, over the values of `base` if there is one."""
    values = {} if base is None else {name: getattr(base, name) for name in field_types(cls)}
    for field in dataclasses.fields(cls):  # pyright: ignore[reportArgumentType]
        annotation = field_types(cls).get(field.name)
        inner = config_class(annotation)
        if field.name in tree and inner is not None and isinstance(tree[field.name], dict):
            default = values.get(field.name, _default(field))
            values[field.name] = _build(inner, tree[field.name], f"{prefix}{field.name}.", default)
        elif field.name in tree:
            values[field.name] = coerce(tree[field.name], annotation, f"{prefix}{field.name}")
        elif field.init and field.name not in values and _default(field) is dataclasses.MISSING:
            raise ConfigError(
                f"{prefix}{field.name} is required and missing; set it to {describe(annotation)}"
            )
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{prefix}{cls.__name__}: {reason}; correct the setting") from error


def _default(field: dataclasses.Field[Any]) -> Any:
    """A field's default value, or MISSING."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _parse_assignments(cls: type, assignments: Iterable[str]) -> dict[str, Any]:
    """Read `name=value` strings into name → value."""
    values = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"{assignment!r} is not an assignment; write name=value")
        name = name.strip().replace("-", "_")
        path = _resolve(cls, name, name)
        values[name] = coerce_text(text.strip(), _locate(cls, path)[1], name)
    return values


def _takes_several(annotation: Any) -> bool:
    """Whether a flag of this type takes several values: a list or a mapping."""
    return element_type(annotation) is not None or describe(annotation).startswith("a mapping")


def _from_flag(value: Any, annotation: Any, name: str) -> Any:
    """Turn what argparse collected into a value of the annotation."""
    shown = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return coerce_text(value, annotation, shown)
    element = element_type(annotation)
    if element is not None:
        return coerce([coerce_text(text, element, shown) for text in value], annotation, shown)
    pairs = dict(_pair(text, shown) for text in value)
    return coerce(pairs, annotation, shown)


def _pair(text: str, shown: str) -> tuple[str, Any]:
    """Split `key=value`, the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{shown} takes key=value pairs, got {text!r}; write for example a=1")
    return key, coerce_text(value, Any, shown)
