"""`reproduce RUN`: the same run again from what it left, and whether it comes to the same."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from hf_glm_curriculum.errors import ConfigError, DataError, StateError

COMMANDS = ("sft", "migrate", "reward", "ppo", "quickstart")
RESULT, SETTINGS = "reproduction.json", "reproduction.yaml"
# Where the run goes, and what it would leave outside its folder: a second run must not.
_LEFT = ("output_dir", "resume", "overwrite", "debug_dir", "push_to_hub", "harvest_into")
_SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", help="output folder of a finished run")
    parser.add_argument(
        "--output-dir", help="folder of the new run (default: the old one's with -reproduced)"
    )
    parser.add_argument(
        "--force", action="store_true", help="run although data are absent or have changed"
    )
    parser.add_argument(
        "--check", action="store_true", help="say what differs here and run nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Compare the circumstances, run again and compare the figures.

    Returns:
        0 where every figure is equal or close (or with ``--check``), 1 where one is not.

    Raises:
        StateError: The folder holds no finished run, or the new one cannot be written.
        ConfigError: The run's command cannot be repeated.
        DataError: Its data are absent or have changed.
    """
    from hf_glm_curriculum.commands.console import say

    folder = Path(args.run).expanduser()
    about = _about(folder)
    differ = _circumstances(about)
    if args.check:
        return 0
    _refuse_changed(differ["inputs"], args.force)
    new = Path(args.output_dir or f"{folder.resolve()}-reproduced").expanduser()
    status = _again(about, new)
    if status != 0:
        raise StateError(
            f"the run did not come to its end again; its error stands above, see {new}"
        )
    return _compared(folder, new, differ, say)


def _about(folder: Path) -> dict[str, Any]:
    """The `run.json` of a finished run that a command can repeat."""
    from hf_glm_curriculum.evaluation.run_folder import RUN_FILE
    from hf_glm_curriculum.storage import read_json

    path = folder / RUN_FILE
    if not path.is_file():
        raise StateError(f"{folder} holds no {RUN_FILE}; name the output_dir of a command's run")
    about = read_json(path)
    command = about.get("command")
    if command not in COMMANDS:
        raise ConfigError(
            f"{path}: the run's command is {command!r}; what can be repeated: {', '.join(COMMANDS)}"
        )
    if about.get("status") != "finished" or not isinstance(about.get("config"), dict):
        raise StateError(
            f"{path}: the run is {about.get('status')!r}, there is nothing to compare with; finish "
            "it with --resume first"
        )
    return about


def _circumstances(about: dict[str, Any]) -> dict[str, Any]:
    """Show what is not as it was: versions, code, data."""
    from hf_glm_curriculum.commands.console import say, show_table
    from hf_glm_curriculum.commands.environment import device_name, git_state, versions
    from hf_glm_curriculum.commands.reproduction import changed_inputs, differences

    before = {**about.get("versions", {}), "device": about.get("device"), "git": _code(about)}
    now = {**versions(), "device": device_name(), "git": _code(git_state())}
    found = differences(before, now)
    inputs = changed_inputs(about.get("inputs") or {})
    rows = [(name, was or "–", here or "–") for name, (was, here) in found.items()]
    rows += [(name, "as it was then", state) for name, state in inputs.items()]
    if rows:
        show_table("What is different here", ("", "then", "now"), rows)
    else:
        say("versions, code and data are as they were")
    return {"versions": found, "inputs": inputs}


def _code(about: dict[str, Any]) -> str | None:
    """The commit, and what was changed on top of it."""
    commit, changes = about.get("git"), about.get("git_changes")
    return None if commit is None else f"{commit[:12]}{f' + {changes[:8]}' if changes else ''}"


def _refuse_changed(inputs: dict[str, str], force: bool) -> None:
    if inputs and not force:
        told = ", ".join(f"{name} ({state})" for name, state in inputs.items())
        raise DataError(f"inputs: {told}; restore them, or pass --force to run on what is there")


def _again(about: dict[str, Any], new: Path) -> int:
    """Run the same command on the same resolved settings, or go on where that was cut off."""
    import yaml

    from hf_glm_curriculum.commands.main import main
    from hf_glm_curriculum.commands.run_state import check_writable, is_finished
    from hf_glm_curriculum.storage import atomic_write_text, ensure_folder

    check_writable(new)
    # A quickstart keeps its own few settings beside those of the fine-tuning that they lead to.
    resolved = about.get("settings") or about["config"]
    settings = {k: v for k, v in resolved.items() if k not in _LEFT}
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    path = new.with_name(f"{new.name}.settings") / SETTINGS
    words = [about["command"], "--config", str(path), "--output-dir", str(new)]
    if new.is_dir() and any(new.iterdir()):
        if not path.is_file() or path.read_text("utf-8") != text:
            raise StateError(f"output_dir {new} is not empty; choose another with --output-dir")
        if is_finished(new):
            return 0
        # A quickstart goes on by itself.
        return main(words + (["--resume"] if about["command"] != "quickstart" else []))
    ensure_folder(path.parent)
    atomic_write_text(path, text)
    return main(words)


def _compared(folder: Path, new: Path, differ: dict[str, Any], say: Any) -> int:
    """Show and write how the figures compare."""
    from hf_glm_curriculum.commands.console import show_table
    from hf_glm_curriculum.commands.reproduction import (
        compare,
        compare_exactly,
        figures_of,
        fingerprints_of,
    )
    from hf_glm_curriculum.storage import atomic_write_json

    found = compare(figures_of(folder), figures_of(new))
    counts = Counter(entry["verdict"] for entry in found.values())
    made_of = compare_exactly(fingerprints_of(folder), fingerprints_of(new))
    others = [name for name, entry in made_of.items() if entry["verdict"] != "equal"]
    if others:
        say(f"not the same model or data as then: {', '.join(others)}")
    order = ("different", "missing", "close")
    worth = sorted(
        ((n, e) for n, e in found.items() if e["verdict"] in order),
        key=lambda pair: order.index(pair[1]["verdict"]),
    )
    rows = [(n, _shown(e["before"]), _shown(e["after"]), e["verdict"]) for n, e in worth[:_SHOWN]]
    if rows:
        show_table("Figures that are not equal", ("figure", "then", "now", ""), rows, right=(1, 2))
    say(", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no figures")
    result = {"of": str(folder), "counts": dict(counts), "figures": found}
    result |= {"fingerprints": made_of, **differ}
    atomic_write_json(new / RESULT, result)
    say(f"reproduction: {new / RESULT}")
    return 1 if counts["different"] or counts["missing"] or others or not found else 0


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"
