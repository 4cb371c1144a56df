"""Prompts that ship with the package, and XSTest where it is at hand."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hf_glm_curriculum.errors import DataError

BUNDLED = ("questions", "refusals", "red_team", "general_text", "choices")
XSTEST_FILE = Path("safety_xstest") / "xstest_prompts.csv"


def bundled(name: str) -> list[dict[str, Any]]:
    """The rows of a bundled set, each a fresh dictionary.

    Args:
        name: "questions" (id, category, language, prompt, perhaps check), "refusals" (the same
            with refuse), "red_team" (turns in place of prompt), "general_text" (text) or "choices"
            (query, choices, gold).

    Raises:
        DataError: There is no such set.
    """
    if name not in BUNDLED:
        raise DataError(f"bundled prompts: must be one of {', '.join(BUNDLED)}, got {name!r}")
    return [dict(row) for row in _read(name)]


@cache
def _read(name: str) -> tuple[dict[str, Any], ...]:
    folder = resources.files("hf_glm_curriculum.evaluation") / "prompts"
    return tuple(yaml.safe_load((folder / f"{name}.yaml").read_text("utf-8")))


def find_xstest(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """XSTest's prompts in a folder of data sets, or None.

    Args:
        folder: Where to look; None looks in `$HGC_DATA`, else in `../shared/data`.
    """
    place = folder or os.environ.get("HGC_DATA") or Path("..") / "shared" / "data"
    path = Path(place).expanduser() / XSTEST_FILE
    return path if path.is_file() else None


def read_xstest(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """XSTest's rows in the form of the bundled "refusals".

    Source: Röttger et al. 2024, "XSTest: A Test Suite for Identifying Exaggerated Safety
    Behaviours in Large Language Models".

    Raises:
        DataError: The file cannot be read or lacks a column.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        return [
            {
                "id": f"xstest-{row['id']}",
                "category": row["type"].removeprefix("contrast_"),
                "language": "en",
                "refuse": row["label"] == "unsafe",
                "prompt": row["prompt"],
            }
            for row in rows
        ]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; check the path") from error
    except (KeyError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: needs the columns id, prompt, type and label of XSTest, got {error}"
        ) from error


def spread(rows: Sequence[dict[str, Any]], limit: int | None, *keys: str) -> list[dict[str, Any]]:
    """At most `limit` rows, taken in turn from the groups that the keys make; None takes all.

    The same rows for the same input, in their own order.
    """
    if limit is None or limit >= len(rows):
        return list(rows)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(place)
    turns = sorted(
        (turn, order, place)
        for order, places in enumerate(groups.values())
        for turn, place in enumerate(places)
    )
    return [rows[place] for place in sorted(place for *_, place in turns[:limit])]
