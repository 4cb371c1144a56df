"""`hf-glm-curriculum`: reads the command line, runs one command, turns errors into one line."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from hf_glm_curriculum.errors import HfGlmCurriculumError
from hf_glm_curriculum.storage import told_by_writer

COMMANDS = {
    "quickstart": "noisy demo data → fine-tuning, reward model, PPO on a small model, and a report",
    "sft": "supervised fine-tuning on your data, every sample followed and weighted",
    "migrate": "pre-training that becomes instruction tuning in one run, layer by layer",
    "reward": "train a structured reward model: a score and a confidence for every dimension",
    "ppo": "train a policy on rewards by rules or by reward models, and watch for gaming",
    "scaling": "laws from training runs, and what a budget buys: fit, plan, sweep, plot",
    "analyze": "entropy, coverage and templates of instructions; draw a set to chosen entropies",
    "audit": "look for duplicate, empty, truncated and contradictory records in data files",
    "graph": "build, draw and question the position graph of a document or dialogue",
    "evaluate": "compare models on your prompts and bundled ones: loss, answers, safety, rewards",
    "sheets": "blind comparisons of answers by people: sheets out, ratings back in",
    "review": "keep, fix or drop the samples a run found suspicious; write the corrected data",
    "control": "change the loss terms of a training under way, or show them",
    "report": "write a run's report.html anew",
    "search": "search the hyper-parameters of another command's config",
    "reproduce": "run a finished run again and compare what it comes to",
    "doctor": "check this installation and say what is missing",
}
"""Name → one line of help; each lives in the module of its name."""

ERROR, INTERRUPTED = 2, 130
_RESUMED = ("sft", "migrate", "reward", "ppo", "scaling")  # the others go on by themselves


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments after the program's name; None takes the process's own.

    Returns:
        The exit status: 0, 2 for an error that was told in one line, 130 when interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        args = build_parser(arguments).parse_args(arguments)
    except SystemExit as stop:  # argparse has written its message
        return stop.code if isinstance(stop.code, int) else ERROR
    if args.command is None:
        build_parser([]).print_help()
        return ERROR
    args.argv = arguments
    with _log_shown(args.debug):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    """Run the command; whatever a user can put right ends in one line."""
    try:
        return import_module(f"{__package__}.{args.command}").run(args)
    except HfGlmCurriculumError as error:
        return _told(str(error), args.debug)
    except OSError as error:
        return _told(_describe(error), args.debug)
    except KeyboardInterrupt:
        more = "; pass --resume to go on" if args.command in _RESUMED else ""
        _told(f"interrupted; what was saved is kept{more}", args.debug)
        return INTERRUPTED
    except Exception as error:
        reason = told_by_writer(error)
        if reason is None:
            raise
        return _told(f"{reason}; free some space; what was saved before is kept", args.debug)


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the command named in `arguments` is imported and given its flags."""
    from hf_glm_curriculum import __version__

    parser = argparse.ArgumentParser(
        prog="hf-glm-curriculum",
        description="Per-sample signals, sample life cycles and curricula for post-training.",
        epilog="hf-glm-curriculum COMMAND --help lists a command's settings.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    debug = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    words = "show tracebacks and more of the log"
    debug.add_argument("--debug", action="store_true", help=words)
    parser.add_argument("--debug", action="store_true", help=words)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, help_text in COMMANDS.items():
        sub = commands.add_parser(name, help=help_text, description=help_text, parents=[debug])
        if name == chosen:
            import_module(f"{__package__}.{name}").add_arguments(sub)
    return parser


def _told(message: str, debug: bool) -> int:
    """Write an error as one line (and its traceback with --debug) to standard error."""
    if debug:
        traceback.print_exc()
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return ERROR


def _describe(error: OSError) -> str:
    """What an operating system error says, with the file it is about."""
    reason = error.strerror or str(error) or type(error).__name__
    place = f" {error.filename}" if error.filename else ""
    return f"{reason}{place}; check the path, its permissions and the space on the disk"


@contextmanager
def _log_shown(debug: bool) -> Iterator[None]:
    """This package's log on standard error, other libraries' chatter off, while a command runs."""
    log, lines = logging.getLogger("hf_glm_curriculum"), _Lines()
    if any(isinstance(handler, _Lines) for handler in log.handlers):
        yield  # a command that runs another one
        return
    level, propagate = log.level, log.propagate
    log.setLevel(logging.DEBUG if debug else logging.INFO)
    log.propagate = False
    log.addHandler(lines)
    try:
        with warnings.catch_warnings():
            if not debug:
                _quiet_libraries()
            yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
        log.propagate = propagate


def _quiet_libraries() -> None:
    """Keep back notices that no user of a command can act on; --debug shows them."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    for category in (FutureWarning, DeprecationWarning):
        warnings.filterwarnings("ignore", category=category, module="(transformers|trl|peft)")


class _Lines(logging.Handler):
    """Plain lines; standard error is looked up at each line, since it may be replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        sys.stderr.write(f"{level}{record.getMessage()}\n")


if __name__ == "__main__":
    sys.exit(main())
