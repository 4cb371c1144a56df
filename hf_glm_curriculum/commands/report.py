"""`report RUN…`: write a run's report.html anew, or one page over several runs."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", help="output folder of a run, finished or not")
    parser.add_argument("others", nargs="*", metavar="run", help="further runs to compare it with")
    parser.add_argument(
        "--out",
        help="page to write (default: report.html in the run's folder; comparison.html here for "
        "several runs)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        StateError: A folder is not a run's, or the page cannot be written.
        ConfigError: A run is to be compared with itself.
    """
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.reward_refresh_report import DRIFT, write_refresh_report
    from hf_glm_curriculum.commands.reward_report import FIGURES, write_reward_report
    from hf_glm_curriculum.evaluation.report import write_report

    if args.others:
        from hf_glm_curriculum.evaluation.report_runs import COMPARE_FILE, write_comparison

        path = write_comparison([args.run, *args.others], args.out or COMPARE_FILE)
        say(f"comparison: {path}")
        return 0
    folder = Path(args.run).expanduser()
    write = write_report
    for mark, writer in ((FIGURES, write_reward_report), (DRIFT, write_refresh_report)):
        write = writer if (folder / mark).is_file() else write
    path = write(args.run, args.out)
    say(f"report: {path}")
    return 0
