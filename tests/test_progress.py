"""Where no bar can be shown, a log hears of long work once a minute."""

import sys

from hf_glm_curriculum import progress as module
from hf_glm_curriculum.progress import progress


def test_long_work_writes_lines_where_there_is_no_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with progress(12, "Answering") as bar:
        for _ in range(12):
            now[0] += 20
            bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"  Answering: {n} of 12" for n in (2, 5, 8, 11)]


def test_short_or_silenced_work_writes_nothing(capsys):
    for force in (None, False):
        with progress(3, "Answering", force) as bar:
            bar.advance(3)
    assert capsys.readouterr().err == ""
