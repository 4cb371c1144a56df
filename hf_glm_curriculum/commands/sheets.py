"""`sheets make|read`: blind comparisons by people."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError, DataError

PAGE, FORM, KEY, SUMMARY = "sheet.html", "sheet.csv", "key.json", "summary.json"
QUESTION = "Which answer is better?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two forms of the command."""
    forms = parser.add_subparsers(dest="form", required=True, metavar="make|read")
    make = forms.add_parser("make", help="write a blind sheet of two or more models' answers")
    make.add_argument(
        "answers",
        nargs="+",
        metavar="NAME=FILE.jsonl",
        help="records with prompt and response of each model; or one generations.jsonl of a run "
        "(before and after)",
    )
    make.add_argument("--out", default="runs/sheets", help="folder (default: %(default)s)")
    make.add_argument("--limit", type=int, help="comparisons at most")
    make.add_argument("--seed", type=int, default=0, help="of order and sides")
    make.add_argument("--question", default=QUESTION, help="what raters are asked")
    read = forms.add_parser("read", help="read ratings back: win rates and agreement")
    read.add_argument("key", help="the key.json that `make` wrote")
    read.add_argument("ratings", nargs="+", help="raters' files: JSON of the page, or the CSV form")


def run(args: argparse.Namespace) -> int:
    """Make a sheet, or read ratings.

    Raises:
        DataError: Answers are missing, or not to the same prompts.
        ConfigError: A name is missing or twice.
        StateError: A file cannot be read or written, or ratings are not of this sheet.
    """
    return _make(args) if args.form == "make" else _read(args)


def _make(args: argparse.Namespace) -> int:
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.evaluation.sheet_page import render_sheet
    from hf_glm_curriculum.evaluation.sheets import make_sheet, sheet_csv
    from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, ensure_folder

    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {args.limit}")
    prompts, answers = _answers(args.answers)
    sheet = make_sheet(prompts, answers, args.seed, args.limit)
    folder = ensure_folder(Path(args.out).expanduser())
    atomic_write_text(folder / PAGE, render_sheet(sheet, args.question))
    atomic_write_text(folder / FORM, sheet_csv(sheet))
    atomic_write_json(folder / KEY, sheet.key_file())
    same = len(prompts) - len(sheet.items)
    say(f"{len(sheet.items)} comparisons, {same} prompts left out (same answers, or the limit)")
    say(f"for raters: {folder / PAGE} or {folder / FORM}; keep to yourself: {folder / KEY}")
    return 0


def _answers(given: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Prompts, and each model's answers to them."""
    from hf_glm_curriculum.evaluation.run_folder import read_json_lines

    if len(given) == 1 and "=" not in given[0]:
        rows = read_json_lines(Path(given[0]).expanduser())
        if not rows or not {"prompt", "before", "after"} <= rows[0].keys():
            raise DataError(f"{given[0]}: needs prompt, before and after, as a run's generations")
        both = {name: [str(row[name]) for row in rows] for name in ("before", "after")}
        return [_text(row["prompt"]) for row in rows], both
    parts = [entry.partition("=") for entry in given]
    if not all(name and mark for name, mark, _ in parts) or len({p[0] for p in parts}) < len(parts):
        told = " ".join(given)
        raise ConfigError(f"answers: must be NAME=FILE.jsonl with different names, got {told}")
    found = {name: _by_prompt(Path(file).expanduser()) for name, _, file in parts}
    shared = [p for p in next(iter(found.values())) if all(p in rows for rows in found.values())]
    if not shared:
        raise DataError(f"answers: the files have no prompt in common ({', '.join(given)})")
    return shared, {name: [rows[p] for p in shared] for name, rows in found.items()}


def _by_prompt(path: Path) -> dict[str, str]:
    from hf_glm_curriculum.data.records import load_records

    rows = load_records(path)
    return dict(zip(rows["prompt"], rows["response"], strict=True))


def _text(prompt: Any) -> str:
    from hf_glm_curriculum.data.record_formats import flatten

    return prompt if isinstance(prompt, str) else flatten(prompt)


def _read(args: argparse.Namespace) -> int:
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.evaluation.sheets import read_key, read_ratings, summarise
    from hf_glm_curriculum.storage import atomic_write_json

    path = Path(args.key).expanduser()
    sheet, key = read_key(path)
    raters = [read_ratings(Path(file).expanduser(), sheet, key) for file in args.ratings]
    found = summarise(key, raters)
    rows = [
        (
            f"{pair['first']} against {pair['second']}",
            pair["wins"],
            pair["losses"],
            pair["ties"],
            f"{pair['win_rate']:.2f} ({pair['low']:.2f} – {pair['high']:.2f})",
        )
        for pair in found["pairs"]
    ]
    columns = ("models", "won", "lost", "ties", "win rate of the first, 95 %")
    title = f"{found['items']} items, {len(raters)} raters"
    show_table(title, columns, rows, right=(1, 2, 3))
    agreement = [(names, _kappa(value)) for names, value in found["cohen"].items()]
    if len(raters) > 2:
        agreement.append(("all (Fleiss)", _kappa(found["fleiss"])))
    if agreement:
        show_table("Agreement", ("raters", "κ"), agreement, right=(1,))
    if found["left"] is not None:
        say(f"the left answer was chosen in {found['left']:.0%} of the decided cases")
    comments = {rater.rater: rater.comments for rater in raters if rater.comments}
    atomic_write_json(path.with_name(SUMMARY), {**found, "comments": comments})
    say(f"summary: {path.with_name(SUMMARY)}")
    return 0


def _kappa(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
