"""`audit PATHS…`: what is wrong with data files before anybody trains on them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.errors import ConfigError

if TYPE_CHECKING:
    from hf_glm_curriculum.data.audit_files import FileAudit
    from hf_glm_curriculum.data.audit_result import RecordAudit

_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("paths", nargs="+", help="JSONL, JSON, CSV or Parquet files, or folders")
    parser.add_argument("--out", help="folder for audit.json and audit.html")
    parser.add_argument(
        "--near-threshold", type=float, default=0.8, help="Jaccard similarity of near duplicates"
    )
    parser.add_argument(
        "--write-ids",
        metavar="OUT.jsonl",
        help="copy JSONL input with the hash of each record's text in meta.id",
    )
    parser.add_argument(
        "--replace-ids", action="store_true", help="let --write-ids overwrite other ids"
    )
    parser.add_argument(
        "--fail-on-faults", action="store_true", help="exit with 1 if a record is flagged"
    )


def run(args: argparse.Namespace) -> int:
    """Audit files and records, show the counts and write the findings.

    Raises:
        DataError: A file is missing or malformed, there is no record, or ids cannot be written
            into a file or record.
        ConfigError: The threshold is out of range.
        StateError: The output folder cannot be written.
    """
    from hf_glm_curriculum.data.audit import audit_files, audit_records
    from hf_glm_curriculum.data.record_ids import check_jsonl
    from hf_glm_curriculum.data.records import load_records

    if not 0 < args.near_threshold <= 1:
        raise ConfigError(f"--near-threshold must lie in (0, 1], got {args.near_threshold}")
    paths = _data_paths(args.paths)
    if args.write_ids:
        check_jsonl(paths)
    files = audit_files(paths)
    # One path a content: a copy would make every record a duplicate and hide the real ones.
    records = load_records(files.unique_paths)
    audit = audit_records(records, near_threshold=args.near_threshold)
    _show(files, audit)
    if args.out:
        _write(Path(args.out).expanduser(), files, audit)
    if args.write_ids:
        _write_ids(args, files)
    return 1 if args.fail_on_faults and audit.flagged() else 0


def _write_ids(args: argparse.Namespace, files: FileAudit) -> None:
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.data.record_ids import write_ids

    count = write_ids(files.unique_paths, args.write_ids, replace=args.replace_ids)
    say(f"{count:,} records with ids: {args.write_ids}")


def _data_paths(paths: list[str]) -> list[Path]:
    """The data files that paths name; a folder gives those directly in it."""
    from hf_glm_curriculum.data.record_files import data_files

    return [file for path in paths for file in data_files(Path(path).expanduser())]


def _show(files: FileAudit, audit: RecordAudit) -> None:
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.data.audit_result import KINDS, NOTES

    summary = audit.summary()
    say(
        f"{len(files.digests)} files with {len(files.unique_paths)} distinct contents, "
        f"{summary['rows']:,} records, {summary['flagged_rows']:,} of them flagged"
    )
    rows = [
        (kind, count, _examples(audit, kind), KINDS[kind] + (" (a note)" if kind in NOTES else ""))
        for kind, count in audit.counts.items()
    ]
    if rows:
        columns = ("finding", "records", "rows", "meaning")
        show_table("Findings", columns, rows, right=(1,))
    else:
        say("nothing found")


def _examples(audit: RecordAudit, kind: str) -> str:
    """The first rows with a finding."""
    rows = audit.flagged(kind)
    more = ", …" if len(rows) > _SHOWN else ""
    return ", ".join(map(str, rows[:_SHOWN])) + more


def _write(folder: Path, files: FileAudit, audit: RecordAudit) -> None:
    """Write both forms of the findings, and the files' digests."""
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.storage import atomic_write_json, ensure_folder

    ensure_folder(folder)
    audit.to_json(folder / "audit.json")
    audit.to_html(folder / "audit.html")
    summary: dict[str, Any] = files.summary()
    atomic_write_json(folder / "files.json", summary)
    say(f"findings: {folder / 'audit.json'}, {folder / 'audit.html'}, {folder / 'files.json'}")
