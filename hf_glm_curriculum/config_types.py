"""Reading one config value: its type, its text form, and what to say when it does not fit."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import math
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_glm_curriculum.errors import ConfigError


class Mismatch(Exception):
    """A value does not fit an annotation; turned into a ConfigError where the field is known."""


@cache
def field_types(cls: type) -> dict[str, Any]:
    """The fields of a dataclass that a caller may set: name → resolved annotation."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}


@cache
def field_help(cls: type) -> dict[str, str]:
    """The string literal under each field of a dataclass: name → help text on one line.

    A field without one falls back to its `metadata["help"]`, as in Hugging Face's own arguments.
    """
    texts = {
        f.name: str(f.metadata["help"]) for f in dataclasses.fields(cls) if "help" in f.metadata
    }
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts.update(_literals_under_fields(base))
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _literals_under_fields(cls: type) -> dict[str, str]:
    """Read the strings that follow annotated names in a class body (none without source)."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = typing.cast(ast.ClassDef, tree.body[0]).body
    found = {}
    for field, text in itertools.pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = str(text.value.value)
    return found


def config_class(annotation: Any) -> type | None:
    """The dataclass an annotation asks for (`X` or `X | None`), or None."""
    for member in _members(annotation):
        if isinstance(member, type) and dataclasses.is_dataclass(member):
            return member
    return None


def element_type(annotation: Any) -> Any | None:
    """The element type if the annotation is a list, tuple or set (or that or None)."""
    for member in _members(annotation):
        if typing.get_origin(member) in (list, tuple, set) or member in (list, tuple, set):
            return (typing.get_args(member) or (Any,))[0]
    return None


def is_bool(annotation: Any) -> bool:
    """Whether the annotation is `bool` or `bool | None`."""
    members = [m for m in _members(annotation) if m is not type(None)]
    return members == [bool]


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which valid name is closest: a clause for the end of an error message."""
    names = sorted(map(str, valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"valid: {', '.join(names)}"


def coerce(value: Any, annotation: Any, name: str) -> Any:
    """Check a value against an annotation and convert what YAML cannot say.

    Converted: lists to tuples or sets, strings to paths, integers to floats, and numbers that
    YAML 1.1 reads as strings because they lack a dot, such as `1e-4`.

    Raises:
        ConfigError: The value does not fit; the message names `name`, the rule and the value.
    """
    try:
        return _coerce(value, annotation)
    except Mismatch as error:
        hint = f"; {error}" if str(error) else "; correct the value"
        raise ConfigError(
            f"{name} must be {describe(annotation)}, got {value!r} ({type(value).__name__}){hint}"
        ) from None


def coerce_text(text: str, annotation: Any, name: str) -> Any:
    """Read a value from the command line: text as it is for strings, else as YAML.

    Raises:
        ConfigError: The text does not read as a value of the annotation.
    """
    members = _members(annotation)
    if type(None) in members and text.lower() in ("none", "null"):
        return None
    if any(m in (str, Path) or typing.get_origin(m) is Literal for m in members):
        with_text = [m for m in members if m in (int, float)]
        if not with_text:
            return coerce(text, annotation, name)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    return coerce(value, annotation, name)


def describe(annotation: Any) -> str:
    """Words for an annotation: `float or null`, `one of 'a', 'b'`, `a list of str`."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return "any value"
    if annotation is type(None):
        return "null"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(member) for member in args)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (list, tuple, set):
        return f"a list of {describe(args[0])}" if args else "a list"
    if origin in (dict, Mapping):
        return f"a mapping of {describe(args[0])} to {describe(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(repr(member.value) for member in annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return f"a mapping with the settings of {annotation.__name__}"
    return getattr(annotation, "__name__", str(annotation))


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; the annotation itself otherwise."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _coerce(value: Any, annotation: Any) -> Any:
    """Convert or raise Mismatch."""
    origin = typing.get_origin(annotation) or annotation
    if origin is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _coerce_union(value, typing.get_args(annotation))
    if origin is Literal:
        return _coerce_literal(value, typing.get_args(annotation))
    if origin in (list, tuple, set):
        return _coerce_list(value, origin, typing.get_args(annotation))
    if origin in (dict, Mapping):
        return _coerce_mapping(value, typing.get_args(annotation))
    if origin in _SCALARS:
        return _SCALARS[origin](value)
    return _coerce_class(value, origin)


def _coerce_union(value: Any, members: tuple[Any, ...]) -> Any:
    """The first member that takes the value; one of exactly its type goes first."""
    ordered = sorted(members, key=lambda member: member is not type(value))
    for member in ordered:
        try:
            return _coerce(value, member)
        except Mismatch:
            continue
    raise Mismatch


def _coerce_literal(value: Any, choices: tuple[Any, ...]) -> Any:
    """The choice equal to the value and of its type (True is not 1)."""
    for choice in choices:
        if choice == value and type(choice) is type(value):
            return choice
    close = difflib.get_close_matches(str(value), [str(c) for c in choices], n=1)
    raise Mismatch(f"did you mean {close[0]}?" if close else "")


def _coerce_list(value: Any, kind: Any, args: tuple[Any, ...]) -> Any:
    """A list, tuple or set, element by element."""
    if isinstance(value, str) and args[:1] == (str,) and kind is list:
        return [value]
    if not isinstance(value, (list, tuple, set)):
        raise Mismatch("write it as [a, b]")
    items = list(value)
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise Mismatch(f"it needs exactly {len(args)} values")
        return tuple(_coerce(item, arg) for item, arg in zip(items, args, strict=True))
    element = args[0] if args else Any
    return kind(_coerce(item, element) for item in items)


def _coerce_mapping(value: Any, args: tuple[Any, ...]) -> dict[Any, Any]:
    """A mapping, key by key."""
    if not isinstance(value, Mapping):
        raise Mismatch("write it as {a: b}")
    key_type, value_type = args or (Any, Any)
    return {_coerce(k, key_type): _coerce(v, value_type) for k, v in value.items()}


def _coerce_class(value: Any, cls: Any) -> Any:
    """An instance of a class, or the value of an enumeration's member."""
    if isinstance(cls, type) and issubclass(cls, Enum):
        for member in cls:
            if value in (member, member.value):
                return member
        raise Mismatch
    if isinstance(cls, type) and not isinstance(value, cls):
        raise Mismatch
    return value


def _to_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Mismatch("write true or false")
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        number = _number_in(value)
        if number is None or not number.is_integer():
            raise Mismatch
        return int(number)
    return value


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise Mismatch
    if isinstance(value, (int, float)):
        return float(value)
    number = _number_in(value)
    if number is None:
        raise Mismatch
    return number


def _number_in(value: Any) -> float | None:
    """A float, or a string with an exponent (`1e-4`), which YAML 1.1 does not read as a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str) and "e" in value.lower():
        try:
            number = float(value)
        except ValueError:
            return None
        return number if math.isfinite(number) else None
    return None


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch("put it in quotes if text is meant")
    return value


def _to_path(value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise Mismatch
    return Path(value).expanduser()


def _to_none(value: Any) -> None:
    if value is not None:
        raise Mismatch


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
    Path: _to_path,
    type(None): _to_none,
}
