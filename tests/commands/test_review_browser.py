"""The review page, clicked through in a headless browser."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
from hf_glm_curriculum.optional import available
from tests.browsers import headless_chromium
from tests.conftest import REPOSITORY
from tests.lifespan.pools import pairs, pool_line, read_jsonl, write_jsonl, write_pool
from tests.processes import run_python, start_python

pytestmark = pytest.mark.slow

EVIL = "<script>window.bad=1</script><img src=x onerror='window.bad=1'> ${window.bad=1} {{7*7}}"
COMMAND = "import sys; from hf_glm_curriculum.commands.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Headless Chromium, where gradio serves the page."""
    if not available("gradio"):
        pytest.skip("gradio is not installed; it comes with the extra [review]")
    with headless_chromium() as started:
        yield started


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A browser whose pages close with the test: open ones go on asking a server that is gone."""
    yield chromium
    for context in list(chromium.contexts):
        context.close()


class Server:
    """`hf-glm-curriculum review` in a process of its own."""

    def __init__(self, run: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.run, self.flags = run, flags
        self.url = f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        """Start, and wait until the page is served."""
        words = ("review", self.run, "--port", self.port, "--no-browser", *self.flags)
        self.process = start_python(self.run / "server.log", COMMAND, *words)
        for _ in range(240):
            assert self.process.exitcode is None, "the server ended at once"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(self.url, timeout=5).close()
                return
            time.sleep(0.25)
        raise AssertionError("the page was not served within a minute")

    def stop(self, how: int = signal.SIGINT) -> int | None:
        """End the process and return its exit status."""
        os.kill(self.process.pid, how)
        self.process.join(timeout=60)
        return self.process.exitcode


class Page:
    """One tab: what a reviewer sees and presses."""

    def __init__(self, browser: Any, server: Server) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.tab = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        self.tab.set_default_timeout(15_000)
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.goto(server.url)
        self.tab.wait_for_selector("#hgc-sample")

    def row(self, expected: int) -> None:
        """Wait until the sample of a row is shown."""
        self.tab.wait_for_selector(f'#hgc-sample[data-row="{expected}"]')

    def press(self, name: str) -> None:
        self.tab.click(f"button#hgc-{name}")

    def key(self, name: str) -> None:
        self.tab.keyboard.press(name)

    def note(self, words: str) -> None:
        """Wait until the line above the sample says this."""
        self.tab.wait_for_selector(f"#hgc-note .hgc-message:has-text({words!r})")

    def text(self, selector: str) -> str:
        return self.tab.inner_text(selector)

    def answer(self, text: str) -> None:
        """Write into the correction field."""
        self.tab.fill("#hgc-editor textarea", text)

    def choose(self, group: str, label: str) -> None:
        """Choose a filter by the start of its label."""
        self.tab.click(f'#{group} label:has-text("{label}")')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    texts = pairs(6)
    texts[1] = (f"Evil {EVIL}", f"</textarea>{EVIL}")
    lines = [pool_line(k, *pair) for k, pair in enumerate(texts)]
    write_jsonl(tmp_path / "data.jsonl", [{"prompt": p, "response": r} for p, r in texts])
    return write_pool(tmp_path / "run", lines)


@pytest.fixture
def server(run: Path, browser: Any) -> Iterator[Server]:
    started = Server(run, "--reviewer", "ann")
    yield started
    if started.process.exitcode is None:
        started.stop(signal.SIGKILL)


def decisions(run: Path) -> dict[int, tuple[str | None, str | None]]:
    store = ReviewStore(read_pool(run))
    return {d.row: (d.decision, d.response) for d in store.decisions().values()}


def test_a_review_from_the_first_sample_to_the_corrected_data(run, server, browser, tmp_path):
    page = Page(browser, server)
    page.row(0)
    assert page.text("#hgc-prompt") == "Question number 0?"
    assert page.text("#hgc-answer") == "Answer number 0."
    assert page.text("#hgc-decided") == "0" and "Suspicion" in page.text("#hgc-side")
    page.press("keep")
    page.row(1)
    page.note("Kept row 0.")
    page.press("drop")
    page.row(2)
    page.press("fix")
    page.note("Nothing was changed")
    page.answer("The right answer,\nin 两 lines.")
    page.press("keep")
    page.note("The answer was edited")
    page.press("fix")
    page.row(3)
    assert page.text("#hgc-decided") == "3"
    page.press("skip")
    page.row(4)
    page.press("back")
    page.row(3)
    page.press("back")
    page.row(2)
    assert page.tab.input_value("#hgc-editor textarea") == "The right answer,\nin 两 lines."
    assert decisions(run) == {
        0: ("keep", None),
        1: ("drop", None),
        2: ("fix", "The right answer,\nin 两 lines."),
    }
    page.press("undo")
    page.note("undecided again")
    page.answer("The right answer.")
    page.press("fix")
    page.row(3)
    assert server.stop() == 0
    out = tmp_path / "corrected.jsonl"
    command = [sys.executable, "-m", "hf_glm_curriculum.commands.main", "review", str(run)]
    command += ["--export", str(out), "--data", str(tmp_path / "data.jsonl")]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=120)
    rows = read_jsonl(out)
    assert len(rows) == 5 and rows[1]["response"] == "The right answer."
    assert page.errors == []


def test_no_text_runs_as_a_script_and_nothing_is_fetched_from_elsewhere(server, browser):
    page = Page(browser, server)
    page.press("skip")
    page.row(1)
    assert page.text("#hgc-prompt") == f"Evil {EVIL}"
    assert page.text("#hgc-answer") == f"</textarea>{EVIL}"
    page.answer(f"{EVIL} corrected")
    page.press("fix")
    page.row(2)
    page.press("back")
    page.row(1)
    page.tab.wait_for_timeout(500)
    assert page.tab.evaluate("window.bad") is None
    assert page.tab.locator("#hgc-view script, #hgc-view img, #hgc-side script").count() == 0
    assert [u for u in page.requests if not u.startswith((server.url, "data:", "blob:"))] == []
    assert page.errors == []


def test_the_keyboard_does_what_the_buttons_do_but_not_while_typing(run, server, browser):
    page = Page(browser, server)
    page.row(0)
    page.key("k")
    page.row(1)
    page.key("d")
    page.row(2)
    page.key("e")
    page.tab.keyboard.type(" kdsfbu")
    page.key("Escape")
    assert "kdsfbu" in page.tab.input_value("#hgc-editor textarea")
    page.key("r")
    page.tab.wait_for_function(
        "document.querySelector('#hgc-editor textarea').value === 'Answer number 2.'"
    )
    page.key("e")
    page.key("End")
    page.tab.keyboard.type(" More.")
    page.key("Control+Enter")
    page.row(3)
    page.key("s")
    page.row(4)
    page.key("b")
    page.row(3)
    assert decisions(run) == {
        0: ("keep", None),
        1: ("drop", None),
        2: ("fix", "Answer number 2. More."),
    }


def test_keys_held_or_hammered_decide_only_what_was_seen(run, server, browser):
    page = Page(browser, server)
    page.row(0)
    page.tab.evaluate(
        """() => { for (const key of ["k", "d", "d", "k"]) document.body.dispatchEvent(
            new KeyboardEvent("keydown", {key, bubbles: true})) }"""
    )
    page.row(1)
    page.tab.wait_for_timeout(800)
    assert decisions(run) == {0: ("keep", None)}


def test_two_tabs_a_stale_one_is_shown_the_conflict(run, server, browser):
    first, second = Page(browser, server), Page(browser, server)
    first.row(0)
    second.row(0)
    first.press("drop")
    first.row(1)
    second.answer("My correction")
    second.press("fix")
    second.note("Not saved: ann dropped it")
    assert second.tab.input_value("#hgc-editor textarea") == "My correction"
    assert "dropped" in second.text("#hgc-sample")
    assert decisions(run) == {0: ("drop", None)}
    second.press("fix")
    second.row(1)
    assert decisions(run) == {0: ("fix", "My correction")}


def test_another_process_counts_as_another_tab(run, server, browser):
    page = Page(browser, server)
    page.row(0)
    store = ReviewStore(read_pool(run))
    store.decide(store.pool.by_row[0].id, "keep", expected_version=0, reviewer="ben")
    page.press("drop")
    page.note("Not saved: ben kept it")
    assert decisions(run) == {0: ("keep", None)}
    page.press("skip")
    page.row(1)


def test_filters_show_what_they_say(run, server, browser):
    page = Page(browser, server)
    page.row(0)
    page.press("keep")
    page.row(1)
    page.choose("hgc-verdict", "MASTERED")
    page.row(3)
    page.choose("hgc-verdict", "All")
    page.choose("hgc-decision", "Kept")
    page.row(0)
    page.choose("hgc-decision", "Dropped")
    page.tab.wait_for_selector(".hgc-empty:has-text('No sample passes')")
    page.choose("hgc-decision", "Undecided")
    page.row(1)


def test_after_a_crash_every_acknowledged_decision_is_there(run, server, browser):
    page = Page(browser, server)
    page.row(0)
    page.press("keep")
    page.row(1)
    page.press("drop")
    page.row(2)
    server.stop(signal.SIGKILL)
    store = ReviewStore(read_pool(run))
    with store.path.open("ab") as file:
        file.write(b'{"id": 87912')  # the line that the crash cut short
    server.start()
    page = Page(browser, server)
    page.row(2)
    assert page.text("#hgc-decided") == "2"
    page.press("keep")
    page.row(3)
    assert decisions(run) == {0: ("keep", None), 1: ("drop", None), 2: ("keep", None)}


def test_a_port_that_is_taken_is_one_line(run, server):
    log = run / "second.log"
    assert run_python(log, COMMAND, "review", run, "--port", server.port, "--no-browser") == 2
    said = log.read_text("utf-8")
    assert "choose another port" in said and "Traceback" not in said
