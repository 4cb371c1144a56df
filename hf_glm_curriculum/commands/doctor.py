"""`doctor`: what is installed, what works, and what to install."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hf_glm_curriculum.commands.doctor_checks import Finding

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "broken": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--json", action="store_true", help="write the findings as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="leave out the all-reduce over two processes"
    )


def run(args: argparse.Namespace) -> int:
    """Run every check; 1 if something needed is broken, else 0."""
    from hf_glm_curriculum.commands.doctor_checks import CHECKS, check_distributed
    from hf_glm_curriculum.progress import progress

    checks = [check for check in CHECKS if not (args.quick and check is check_distributed)]
    findings: list[Finding] = []
    with progress(len(checks), "Looking") as bar:
        for check in checks:
            findings += check()
            bar.advance()
    if args.json:
        _write_json(findings)
    else:
        _show(findings)
    return 1 if any(finding.status == "broken" for finding in findings) else 0


def _write_json(findings: Sequence[Finding]) -> None:
    import dataclasses
    import json
    import sys

    value = {
        "healthy": all(finding.status != "broken" for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _show(findings: Sequence[Finding]) -> None:
    from hf_glm_curriculum import __version__
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.commands.doctor_checks import source_folder

    say(f"hf_glm_curriculum {__version__} in {source_folder()}")
    rows = [(f"{_MARKS[f.status]} {f.name}", f.detail, f.fix) for f in findings]
    show_table("", ("", "found", "what to do"), rows)
    counts = {status: sum(f.status == status for f in findings) for status in _MARKS}
    if counts["broken"]:
        say(f"{counts['broken']} broken (✗): fix these first")
    elif counts["warning"]:
        say(f"usable; {counts['warning']} to look at (!), {counts['note']} optional and absent (·)")
    else:
        say(f"all well; {counts['note']} optional and absent (·)")
