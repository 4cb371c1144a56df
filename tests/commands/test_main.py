"""The command line itself: help, errors in one line, exit codes, the log put back."""

import json
import logging
import subprocess
import sys
import time

import pytest

from hf_glm_curriculum.commands import main as main_module
from hf_glm_curriculum.commands import report as report_command
from hf_glm_curriculum.commands.main import COMMANDS, main


def test_help_lists_every_command_and_imports_none(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert main([command, "--help"]) == 0
    assert f"hf-glm-curriculum {command}" in capsys.readouterr().out


def test_every_setting_of_sft_has_a_help_text(capsys):
    main(["sft", "--help"])
    shown = capsys.readouterr().out
    assert "--learning-rate LEARNING_RATE" in shown and "Peak learning rate" in shown
    assert "--observe-only" in shown and "--no-observe-only" in shown


def test_no_command_shows_help_and_fails(capsys):
    assert main([]) == 2
    assert "quickstart" in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys):
    assert main(["quikstart"]) == 2
    assert "quickstart" in capsys.readouterr().err


def test_help_is_quick_and_loads_no_torch():
    code = (
        "import sys; from hf_glm_curriculum.commands.main import main;"
        "main(['--help']); main(['sft', '--help']);"
        "sys.exit(3 if {'torch', 'transformers', 'datasets'} & set(sys.modules) else 0)"
    )
    start = time.perf_counter()
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("where", ["before", "after"])
def test_debug_shows_the_traceback(cli, tmp_path, where):
    missing = tmp_path / "none"
    arguments = ["report", missing]
    status, _, errors = cli(
        *(["--debug", *arguments] if where == "before" else [*arguments, "--debug"])
    )
    assert status == 2
    assert "Traceback" in errors and "StateError" in errors
    assert errors.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("raised", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (OSError(28, "No space left on device", "/some/file"), 2, "No space left on device /some"),
        (ConnectionError("no\nroute"), 2, "error: no route; check"),
    ],
)
def test_interrupts_and_system_errors_are_one_line(
    cli, monkeypatch, tmp_path, raised, status, words
):
    def fail(args):
        raise raised

    monkeypatch.setattr(report_command, "run", fail)
    code, _, errors = cli("report", tmp_path)
    assert code == status
    assert words in errors and errors.count("\n") == 1


def test_a_bug_is_not_hidden(monkeypatch, tmp_path):
    def fail(args):
        raise ZeroDivisionError

    monkeypatch.setattr(report_command, "run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["report", str(tmp_path)])


def test_the_log_is_as_before_after_a_command(cli, tmp_path):
    log = logging.getLogger("hf_glm_curriculum")
    before = (log.level, log.propagate, list(log.handlers))
    cli("report", tmp_path)
    assert (log.level, log.propagate, list(log.handlers)) == before


def test_the_installed_script_exits_with_2_and_one_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n")
    command = [sys.executable, "-m", main_module.__name__, "audit", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert f"{path}, line 1" in result.stderr
