"""Blind comparisons by people: sheets out, ratings back in.

A sheet shows two answers to each prompt, sides drawn by lot; which model stands where lies in a key
file that raters do not get.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.evaluation.agreement import cohen_kappa, fleiss_kappa, wilson_interval
from hf_glm_curriculum.storage import read_json

CHOICES = ("A", "B", "tie")
KEY_FORMAT = "hf_glm_curriculum.sheet_key.1"
RATING_FORMAT = "hf_glm_curriculum.sheet_ratings.1"
COLUMNS: tuple[str, ...] = ("item", "prompt", "answer_a", "answer_b", "choice", "comment")


@dataclass(frozen=True)
class Sheet:
    """A sheet before it is written.

    Attributes:
        sheet: Its id, a digest of what it shows.
        items: item, prompt, answer_a, answer_b; in the order shown.
        key: Item → {"A": model, "B": model}.
    """

    sheet: str
    items: list[dict[str, Any]]
    key: dict[str, dict[str, str]]

    def key_file(self) -> dict[str, Any]:
        """What the key file holds."""
        return {"format": KEY_FORMAT, "sheet": self.sheet, "items": self.key}


def make_sheet(
    prompts: Sequence[str],
    answers: Mapping[str, Sequence[str]],
    seed: int = 0,
    limit: int | None = None,
) -> Sheet:
    """Shuffle prompts and sides.

    With more than two models every pair is compared on the prompts in turn, each pair as often.

    Args:
        prompts: What was asked.
        answers: Model → its answers, in the order of the prompts; two models at least.
        seed: Of order and sides.
        limit: Items at most; None takes every prompt once.

    Raises:
        DataError: Fewer than two models, no prompt, or lengths that differ. Prompts to which both
            models say the same are left out; where none is left, that is an error.
    """
    if len(answers) < 2:
        raise DataError(
            f"sheets: need the answers of two models, got {', '.join(answers) or 'none'}"
        )
    for model, texts in answers.items():
        if len(texts) != len(prompts):
            raise DataError(f"sheets: {model} has {len(texts)} answers to {len(prompts)} prompts")
    chance = Random(seed)
    pairs = list(combinations(answers, 2))
    order = list(range(len(prompts)))
    chance.shuffle(order)
    items, key = [], {}
    for place, row in enumerate(order):
        sides = list(pairs[place % len(pairs)])
        chance.shuffle(sides)
        first, second = (answers[model][row] for model in sides)
        if first.strip() == second.strip() or (limit is not None and len(items) >= limit):
            continue
        name = str(len(items) + 1)
        items.append({"item": name, "prompt": prompts[row], "answer_a": first, "answer_b": second})
        key[name] = dict(zip(("A", "B"), sides, strict=True))
    if not items:
        raise DataError("sheets: the models' answers are the same to every prompt")
    digest = hashlib.sha256(json.dumps(items, ensure_ascii=False).encode("utf-8", "replace"))
    return Sheet(digest.hexdigest()[:16], items, key)


def sheet_csv(sheet: Sheet) -> str:
    """The sheet for spreadsheets: `choice` (A, B or tie) and `comment` are to be filled in."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for item in sheet.items:
        writer.writerow({**{k: _harmless(v) for k, v in item.items()}, "choice": "", "comment": ""})
    return buffer.getvalue()


def _harmless(text: str) -> str:
    """No cell that a spreadsheet would run as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


@dataclass(frozen=True)
class Ratings:
    """One rater's choices: item → "A", "B" or "tie", and comments."""

    rater: str
    choices: dict[str, str]
    comments: dict[str, str]


def read_key(path: Path) -> tuple[str, dict[str, dict[str, str]]]:
    """The id and the key of a sheet.

    Raises:
        StateError: It is no key file.
    """
    tree = read_json(path)
    if not isinstance(tree, dict) or tree.get("format") != KEY_FORMAT:
        raise StateError(f"{path} is no key of a sheet; name the key.json that `sheets make` wrote")
    return str(tree["sheet"]), tree["items"]


def read_ratings(path: Path, sheet: str, key: Mapping[str, Any]) -> Ratings:
    """A rater's file, JSON from the page or the CSV form.

    Args:
        path: The file.
        sheet: Id of the sheet it must belong to.
        key: Items of the sheet.

    Raises:
        StateError: It belongs to another sheet, is unreadable, or is not finished.
    """
    read = _read_csv if path.suffix.lower() == ".csv" else _read_json
    found = read(path, sheet)
    unknown = [item for item in found.choices if item not in key]
    if unknown:
        raise StateError(f"{path}: rates items that the sheet does not have: {', '.join(unknown)}")
    for item, choice in found.choices.items():
        if choice not in CHOICES:
            raise StateError(f"{path}, item {item}: choice must be A, B or tie, got {choice!r}")
    missing = [item for item in key if item not in found.choices]
    if missing:
        shown = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        raise StateError(f"{path} is not finished: {len(missing)} items have no choice ({shown})")
    return found


def _read_json(path: Path, sheet: str) -> Ratings:
    tree = read_json(path)
    if not isinstance(tree, dict) or tree.get("format") != RATING_FORMAT:
        raise StateError(f"{path} is no file of ratings; save it from the sheet's page")
    if tree.get("sheet") != sheet:
        raise StateError(f"{path} rates another sheet ({tree.get('sheet')}); this one is {sheet}")
    choices = {str(k): str(v) for k, v in (tree.get("choices") or {}).items() if v}
    comments = {str(k): str(v) for k, v in (tree.get("comments") or {}).items() if v}
    return Ratings(str(tree.get("rater") or path.stem), choices, comments)


def _read_csv(path: Path, sheet: str) -> Ratings:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StateError(f"cannot read {path}: {error}; save the CSV form as UTF-8") from error
    if not rows or not {"item", "choice"} <= rows[0].keys():
        raise StateError(f"{path}: needs the columns item and choice of the CSV form")
    words = {"a": "A", "b": "B", "tie": "tie", "=": "tie", "both": "tie", "neither": "tie"}
    given = {r["item"]: (r["choice"] or "").strip() for r in rows}
    choices = {item: words.get(c.lower(), c) for item, c in given.items() if c}
    comments = {r["item"]: r["comment"] for r in rows if (r.get("comment") or "").strip()}
    return Ratings(path.stem, choices, comments)


def summarise(key: Mapping[str, Mapping[str, str]], raters: Sequence[Ratings]) -> dict[str, Any]:
    """Win rates with intervals, and how far raters agree.

    Args:
        key: Item → side → model.
        raters: Their ratings, all of the whole sheet.

    Returns:
        ``items``, ``raters``; ``pairs``: for each pair of models ``first``, ``second``, ``wins``,
        ``losses``, ``ties``, ``win_rate`` of the first (ties count half; items by the majority of
        their raters, so that raters do not multiply items) with ``low`` and ``high`` (Wilson);
        ``left``: share of choices for the left side; ``cohen``: by pair of raters; ``fleiss``.

    Raises:
        DataError: No rater, or two of one name.
    """
    names = [rater.rater for rater in raters]
    if not raters or len(set(names)) < len(names):
        raise DataError(
            f"ratings: need raters with different names, got {', '.join(names) or 'none'}"
        )
    chosen = [choice for rater in raters for choice in rater.choices.values()]
    sides = [choice for choice in chosen if choice != "tie"]
    items = list(key)
    table = [[sum(r.choices[i] == c for r in raters) for c in CHOICES] for i in items]
    return {
        "items": len(items),
        "raters": names,
        "pairs": _pairs(key, raters),
        "left": sides.count("A") / len(sides) if sides else None,
        "cohen": {
            f"{a.rater} / {b.rater}": cohen_kappa(
                [a.choices[i] for i in items], [b.choices[i] for i in items]
            )
            for a, b in combinations(raters, 2)
        },
        "fleiss": fleiss_kappa(table) if len(raters) > 1 else None,
    }


def _pairs(key: Mapping[str, Mapping[str, str]], raters: Sequence[Ratings]) -> list[dict[str, Any]]:
    outcomes: dict[tuple[str, str], Counter[str]] = {}
    for item, sides in key.items():
        pair = tuple(sorted(sides.values()))
        votes = Counter(sides.get(r.choices[item], "tie") for r in raters)
        (best, count), *rest = votes.most_common()
        winner = "tie" if rest and rest[0][1] == count else best
        outcomes.setdefault((pair[0], pair[1]), Counter())[winner] += 1
    found = []
    for (first, second), counts in sorted(outcomes.items()):
        n, wins, losses = counts.total(), counts[first], counts[second]
        hits = wins + counts["tie"] / 2
        low, high = wilson_interval(hits, n)
        found.append(
            {
                "first": first,
                "second": second,
                "wins": wins,
                "losses": losses,
                "ties": counts["tie"],
                "win_rate": hits / n,
                "low": low,
                "high": high,
            }
        )
    return found
