"""`control RUN set loss.NAME=WEIGHT …`: change a running training's losses; `show` tells them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError

_SHOWN_EDITS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", help="the run's folder (its trainer's output_dir)")
    parser.add_argument("action", choices=("show", "set"), help="tell the terms, or change them")
    parser.add_argument(
        "assignments",
        nargs="*",
        metavar="loss.NAME[.FIELD]=VALUE",
        help="fields: weight (may be left out), active, joined, schedule, force",
    )


def run(args: argparse.Namespace) -> int:
    """Show a run's loss terms, or write its control file.

    Raises:
        ConfigError: The folder, a name, a field or a value is wrong.
        StateError: The folder cannot be written.
    """
    folder = Path(args.run).expanduser()
    if args.action == "show":
        if args.assignments:
            raise ConfigError(f"show takes no assignments, got {' '.join(args.assignments)}")
        return _show(folder)
    if not args.assignments:
        raise ConfigError("set needs at least one loss.NAME=WEIGHT, got none")
    return _set(folder, args.assignments)


def _set(folder: Path, assignments: list[str]) -> int:
    from hf_glm_curriculum.commands.console import say
    from hf_glm_curriculum.commands.run_state import is_finished
    from hf_glm_curriculum.losses.control_files import set_terms

    path, section, checked = set_terms(folder, assignments)
    say(f"{path}: {section}")
    if is_finished(folder):
        say("the run has finished: only one that goes on (--resume) will read this")
    if not checked:
        say("no run has told its terms here yet: names are checked when one reads the file")
    return 0


def _show(folder: Path) -> int:
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.losses.control_files import read_status

    status = read_status(folder)
    if status is None:
        raise ConfigError(
            f"{folder} holds no control.status.json: no run with LossSwapCallback has begun there; "
            "check the folder"
        )
    rows = [(name, *_cells(name, term, status)) for name, term in status["terms"].items()]
    title = f"Loss terms at step {status['step']} of {status['max_steps']}"
    show_table(title, ("term", "weight now", "state", "schedule"), rows, right=(1,))
    for edit in status["edits"][-_SHOWN_EDITS:]:
        say(_told(edit))
    if status["refused"]:
        say(f"the file as it is now was refused: {status['refused']}", style="bold")
    say(f"control file: {status['control_file']}")
    return 0


def _cells(name: str, term: dict[str, Any], status: dict[str, Any]) -> tuple[Any, str, Any]:
    if name in status["preflight"]:
        state = "preflight"
    elif not term["joined"]:
        state = "registered"
    else:
        state = "active" if term["active"] else "inactive"
    now = None if term["now"] is None else f"{term['now']:g}"
    return now, state, term["schedule"]


def _told(edit: dict[str, Any]) -> str:
    """One line for an entry of the list of edits."""
    step = f"step {edit['step']}: "
    if "changes" in edit:
        return step + ", ".join(
            f"{name}.{field} = {value}"
            for name, change in edit["changes"].items()
            for field, value in change.items()
        )
    if "refused" in edit:
        return f"{step}refused: {edit['refused']}"
    joined = "joined" if edit["joined"] else f"was refused: {edit['reason']}"
    return f"{step}{edit['term']} {joined}"
