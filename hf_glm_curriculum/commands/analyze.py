"""`analyze FILES…`: entropy, heaps, coverage and templates of instructions; drawing a set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.errors import ConfigError

if TYPE_CHECKING:
    from hf_glm_curriculum.curriculum.analysis import InstructionAnalysis
    from hf_glm_curriculum.curriculum.entropy import InstructionEntropyEstimator

JSON_FILE, PNG_FILE, PAGE_FILE = "analysis.json", "entropy.png", "analysis.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "paths", nargs="+", help="JSONL, JSON, CSV or Parquet files, folders, or hub ids"
    )
    parser.add_argument("--split", default="train", help="split of a hub data set")
    parser.add_argument(
        "--out", default="runs/analyze", help="folder for the findings (default: %(default)s)"
    )
    parser.add_argument("--column", help="column with the instructions (found by default)")
    parser.add_argument(
        "--background", help="counts that --save-background wrote, in place of the bundled tables"
    )
    parser.add_argument(
        "--fit", action="store_true", help="count the rarity of words in these data themselves"
    )
    parser.add_argument("--save-background", metavar="FILE", help="keep what --fit counted")
    parser.add_argument("--jobs", type=int, help="processes (default: all for large sets)")
    parser.add_argument(
        "--resample",
        nargs="+",
        metavar="LOW:HIGH=SHARE",
        help="draw a set with instruction entropies in these bands, such as 8:14=0.7 14:24=0.3",
    )
    parser.add_argument("--size", type=int, help="rows to draw (default: as many as there are)")
    parser.add_argument("--repeat", action="store_true", help="let drawn rows come several times")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")


def run(args: argparse.Namespace) -> int:
    """Analyse, show the figures and write the findings; draw a new set where asked.

    Raises:
        DataError: A file is missing or malformed, a row has no instruction, or a band no row.
        ConfigError: A band, size or column makes no sense.
        StateError: A file cannot be read or written.
    """
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.curriculum.analysis import analyse
    from hf_glm_curriculum.curriculum.entropy_bands import parse_bands
    from hf_glm_curriculum.curriculum.lane_scores import instruction_texts
    from hf_glm_curriculum.curriculum.readings import read_instructions
    from hf_glm_curriculum.data.record_prompts import load_prompts

    _check(args)
    bands = parse_bands(args.resample) if args.resample else []
    data = load_prompts(_sources(args.paths), split=args.split)
    texts = instruction_texts(data, args.column)
    estimator = _estimator(args, texts)
    readings = read_instructions(texts, estimator, args.jobs)
    analysis = analyse(texts, readings, _labels(data))
    _show(analysis)
    folder = _write(Path(args.out).expanduser(), analysis, estimator, args)
    if bands:
        _draw(args, folder, data, readings.score, bands)
    say(f"findings: {folder / JSON_FILE}, {folder / PNG_FILE}, {folder / PAGE_FILE}")
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.jobs is not None and args.jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {args.jobs}")
    if args.save_background and not args.fit:
        raise ConfigError("--save-background keeps what --fit counts; add --fit")
    if not args.resample and (args.size is not None or args.repeat):
        raise ConfigError("--size and --repeat belong to --resample; add LOW:HIGH=SHARE bands")


def _sources(paths: list[str]) -> list[Any]:
    """Files of folders; what is no path stands for a hub id."""
    from hf_glm_curriculum.data.record_files import data_files, looks_like_file

    found: list[Any] = []
    for name in paths:
        path = Path(name).expanduser()
        found += data_files(path) if path.exists() or looks_like_file(name) else [name]
    return found


def _estimator(args: argparse.Namespace, texts: list[str]) -> InstructionEntropyEstimator:
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.curriculum.entropy import InstructionEntropyEstimator

    estimator = InstructionEntropyEstimator()
    if args.background:
        estimator = InstructionEntropyEstimator.load(Path(args.background).expanduser())
    if args.fit:
        estimator.fit(texts, total=len(texts))
    if args.save_background:
        path = Path(args.save_background).expanduser()
        estimator.save(path)
        say(f"counts of {estimator.documents:,} instructions: {path}")
    return estimator


def _labels(data: Any) -> dict[str, list[Any]]:
    """Columns that say what a row is about."""
    from hf_glm_curriculum.data.audit_diversity import LABEL_COLUMNS

    return {name: data[name] for name in LABEL_COLUMNS if name in data.column_names}


def _show(analysis: InstructionAnalysis) -> None:
    from hf_glm_curriculum.commands.console import say, show_table

    rows = []
    for name, found in analysis.distributions.items():
        about = found.summary()
        heaps = "two or more" if about["two_heaps"] else "one"
        figures = [f"{about[key]:.2f}" for key in ("p5", "p50", "p95")]
        coefficient = about["bimodality_coefficient"]
        shown = "–" if coefficient is None else f"{coefficient:.2f}"
        rows.append((name, *figures, shown, heaps))
    columns = ("entropy, bits", "5 %", "median", "95 %", "bimodality", "heaps")
    show_table(f"{analysis.rows:,} instructions", columns, rows, right=(1, 2, 3, 4))
    bands = ", ".join(f"{name} bits {share:.0%}" for name, share in analysis.bands.items())
    say(f"character entropy in the articles' bands: {bands} (script and length, not difficulty)")
    say(f"rows whose template another row fills too: {analysis.templated:.0%}")


def _write(
    folder: Path,
    analysis: InstructionAnalysis,
    estimator: InstructionEntropyEstimator,
    args: argparse.Namespace,
) -> Path:
    from hf_glm_curriculum.commands.analyze_page import render_analysis
    from hf_glm_curriculum.curriculum.analysis_picture import entropy_png
    from hf_glm_curriculum.storage import atomic_write_json, atomic_write_text, ensure_folder

    ensure_folder(folder)
    background = "bundled tables"
    if estimator.documents:
        background = f"counted on {estimator.documents:,} documents"
    about = {"sources": list(map(str, args.paths)), "background": background}
    atomic_write_json(folder / JSON_FILE, {**about, **analysis.to_dict()})
    entropy_png(analysis, folder / PNG_FILE)
    atomic_write_text(folder / PAGE_FILE, render_analysis(analysis, about))
    return folder


def _draw(args: argparse.Namespace, folder: Path, data: Any, scores: Any, bands: list[Any]) -> None:
    """Write the drawn rows as JSONL, and say what was repeated and left out."""
    import json

    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.curriculum.entropy_bands import draw_bands
    from hf_glm_curriculum.storage import atomic_write_text

    drawn = draw_bands(scores, bands, args.size, args.repeat, args.seed)
    rows = [
        (f"{band.low:g} – {band.high:g}", f"{band.share:.0%}", there, count)
        for band, there, count in zip(bands, drawn.there, drawn.drawn, strict=True)
    ]
    columns = ("instruction entropy", "share", "rows there", "rows drawn")
    show_table("Drawn", columns, rows, right=(1, 2, 3))
    path = folder / "resampled.jsonl"
    chosen = data.select(drawn.rows.tolist())
    lines = (json.dumps(_without_nulls(row), ensure_ascii=False) + "\n" for row in chosen)
    atomic_write_text(path, "".join(lines))
    say(
        f"{len(drawn.rows):,} rows in {path}: {drawn.repeated:,} are repeats, "
        f"{drawn.left_out:,} of {len(scores):,} rows are left out"
    )


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the file had it: what only other rows have is left out; the answer is `response`."""
    found = {key: value for key, value in row.items() if value is not None}
    reference = found.pop("reference", None)
    return found if reference is None else {**found, "response": reference}
