"""The report over whole, partial and damaged runs: nothing crashes, nothing of a sample escapes."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from hf_glm_curriculum.errors import StateError
from hf_glm_curriculum.evaluation.report import render_report, write_report
from hf_glm_curriculum.evaluation.run_folder import read_json_lines, read_run, read_samples

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)></script>\u2028\'"&\ud800\0'
SECTIONS = ("detection", "answers", "suspicious", "data-map", "lives", "curves", "configuration")


class Page(HTMLParser):
    """Collects elements, and complains about tags that are not closed in order."""

    VOID = frozenset({"meta", "input", "br", "img", "link"})

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.sections = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "section":
            self.sections[dict(attrs).get("id")] = dict(attrs).get("class")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


def shown(text):
    """The sections that have content."""
    return {key for key, kind in Page(text).sections.items() if key and kind != "absent"}


def test_a_whole_run_shows_every_section(run_folder):
    path = write_report(run_folder)
    assert path == run_folder / "report.html"
    text = path.read_text("utf-8")
    assert shown(text) == set(SECTIONS)
    assert "2.90" in text and "1.10" in text
    found = json.loads((run_folder / "evaluation" / "detection.json").read_text())
    assert f"{found['flagged']['hits']} of the {found['n_faulty']} planted faults" in text
    assert not list(run_folder.glob(".*tmp"))


def test_the_page_loads_nothing_from_outside(run_folder):
    page = Page(write_report(run_folder).read_text("utf-8"))
    for tag, attrs in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]", (run_folder / "report.html").read_text())
    policies = [a["content"] for t, a in page.elements if t == "meta" and "http-equiv" in a]
    assert policies and policies[0].startswith("default-src 'none'")


def rewrite(path, change):
    """Change every string of a JSON or JSONL file."""

    def walk(value):
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return change(value) if isinstance(value, str) else value

    if path.suffix == ".json":
        path.write_text(json.dumps(walk(json.loads(path.read_text()))))
    else:
        rows = [walk(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_hostile_text_everywhere_stays_text(run_folder):
    clean = Page(write_report(run_folder).read_text("utf-8"))
    files = [p for p in run_folder.rglob("*.json*") if p.is_file()]
    assert len(files) >= 7
    for path in files:
        rewrite(path, lambda text: text + HOSTILE)
    text = write_report(run_folder).read_text("utf-8")
    page = Page(text)
    assert page.count("script") == clean.count("script")
    assert page.count("img") == 0
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert "alert(&quot;x&quot;)" in text


def test_hostile_states_and_folder_names_stay_text(run_folder):
    path = run_folder / "lifespan" / "samples.csv"
    path.write_text(path.read_text().replace("RELABEL", 'x"><script>alert(1)</script>'))
    shutil.copytree(run_folder / "lifespan", run_folder / "<marquee>")
    (run_folder / "run.json").unlink()
    target = run_folder.with_name("a<blink>b")
    run_folder.rename(target)
    page = Page(write_report(target).read_text("utf-8"))
    assert page.count("script") == 2
    assert page.count("marquee") == page.count("blink") == 0


ARTEFACTS = [
    "run.json",
    "metrics.jsonl",
    "lifespan",
    "lifespan/observation_pool.jsonl",
    "lifespan/state_flow.csv",
    "evaluation",
    "evaluation/generations.jsonl",
    "evaluation/detection.json",
    "evaluation/suspicious.jsonl",
    "evaluation/heldout.json",
    "evaluation/answers.json",
]


@pytest.mark.parametrize("name", ARTEFACTS)
def test_a_missing_artefact_is_noted_and_nothing_else_changes(run_folder, name):
    path = run_folder / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    page = Page(write_report(run_folder).read_text("utf-8"))
    assert set(SECTIONS) <= set(page.sections)
    assert "Files that could not be read" not in render_report(read_run(run_folder))


@pytest.mark.parametrize("name", [a for a in ARTEFACTS if "." in a] + ["lifespan/samples.csv"])
@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00\x01\xff", '{"a": 1}\n{"b": 2}\n'])
def test_a_damaged_artefact_never_stops_the_report(run_folder, name, content):
    (run_folder / name).write_bytes(content.encode("latin-1"))
    page = Page(write_report(run_folder).read_text("utf-8"))
    assert set(SECTIONS) <= set(page.sections)


@pytest.mark.parametrize("keep", ["metrics.jsonl", "run.json", "lifespan"])
def test_one_artefact_alone_is_a_run(run_folder, keep):
    for path in run_folder.iterdir():
        if path.name != keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = shown(write_report(run_folder).read_text("utf-8"))
    expected = {
        "metrics.jsonl": {"curves", "lives"},
        "run.json": {"configuration"},
        "lifespan": {"data-map", "suspicious", "lives"},
    }
    assert found == expected[keep]


def test_a_run_killed_in_the_middle_of_a_line(run_folder):
    whole = (run_folder / "metrics.jsonl").read_text()
    (run_folder / "metrics.jsonl").write_text(whole[: len(whole) // 2])
    shutil.rmtree(run_folder / "evaluation")
    shutil.rmtree(run_folder / "lifespan")
    assert {"curves", "lives", "configuration"} == shown(
        write_report(run_folder).read_text("utf-8")
    )


def test_a_torn_middle_line_is_said(run_folder):
    path = run_folder / "evaluation" / "generations.jsonl"
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:10]
    path.write_text("\n".join(lines))
    text = write_report(run_folder).read_text("utf-8")
    assert "Files that could not be read" in text and "line 4 is not JSON" in text
    assert "answers" not in shown(text)


def test_no_run_at_all_is_named(tmp_path):
    with pytest.raises(StateError, match="no such folder"):
        write_report(tmp_path / "nothing")
    with pytest.raises(StateError, match=r"not the folder of a run: it holds no run\.json"):
        write_report(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(StateError, match="it is a file"):
        write_report(file)
    assert not list(tmp_path.glob("*.html"))


def test_two_callbacks_are_both_drawn(run_folder):
    shutil.copytree(run_folder / "lifespan", run_folder / "second")
    text = write_report(run_folder).read_text("utf-8")
    assert "<h3>lifespan</h3>" in text and "<h3>second</h3>" in text
    assert text.count('id="detail"') == 1 and text.count('id="texts"') == 1


def test_the_callers_own_run_without_our_commands(run_folder):
    """A plain `Trainer(callbacks=[SampleLifespanCallback()])` leaves no run.json or evaluation."""
    (run_folder / "run.json").unlink()
    shutil.rmtree(run_folder / "evaluation")
    found = shown(write_report(run_folder).read_text("utf-8"))
    assert found == {"suspicious", "data-map", "lives", "curves"}


def test_readers_name_what_is_wrong(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": 1}\n[]\n')
    with pytest.raises(StateError, match="line 2 must be an object"):
        read_json_lines(rows)
    rows.write_text('{"a": 1}\n{"b": ')
    assert read_json_lines(rows) == [{"a": 1}]
    table = tmp_path / "samples.csv"
    table.write_text("row,loss\n1,2\n")
    with pytest.raises(StateError, match="lacks the columns loss_mean, state"):
        read_samples(table)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_the_script_runs_under_the_pages_own_policy(run_folder):
    path = write_report(run_folder)
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    result = subprocess.run(
        [*command, path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    outputs = re.findall(r"<output>(\d+ of \d+)</output>", result.stdout)
    assert outputs == ["24 of 24", "80 of 80"]


def test_what_moved_between_states_is_drawn_with_its_numbers(run_folder):
    frame = read_samples(run_folder / "lifespan" / "samples.csv")
    counts = frame["state"].value_counts()
    page = Page(write_report(run_folder).read_text("utf-8"))
    text = (run_folder / "report.html").read_text("utf-8")
    assert "What moved between states" in text
    assert page.count("rect") >= 1 + 1 + 2 + len(counts)
    for state in ("RELABEL", "MASTERED", "RESAMPLE"):
        assert f"<title>{counts[state]} observed → {state.lower()}</title>" in text
        assert f"<title>judged: {counts[state]} {state.lower()}</title>" in text
    assert f"<title>{counts['TRAINING']} training stayed</title>" in text
    assert f"<title>start: {len(frame)} not seen yet</title>" in text
    assert "step 24" in text and "epoch 2" in text


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("UNSEEN,TRAINING,120", "UNSEEN,TRAINING,-4", "where none were|do not hold the same"),
        ("OBSERVED,RELABEL", "<blink>,RELABEL", "do not hold|where none were|cannot have"),
        ("TRAINING,OBSERVED", "MASTERED,OBSERVED", "come from MASTERED, where none were"),
        (",1.0,", ",x,", "cannot read .*state_flow.csv"),
    ],
)
def test_a_damaged_flow_is_named_and_stops_nothing(run_folder, old, new, words):
    path = run_folder / "lifespan" / "state_flow.csv"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    text = write_report(run_folder).read_text("utf-8")
    assert re.search(words, text) and "<blink>" not in text
    assert shown(text) == set(SECTIONS)


def test_the_sentence_counts_everything_that_left_training(run_folder):
    samples = read_samples(run_folder / "lifespan" / "samples.csv")
    samples["state"] = ["OBSERVED", "RESAMPLE", *["TRAINING"] * (len(samples) - 2)]
    samples.to_csv(run_folder / "lifespan" / "samples.csv", index=False)
    text = render_report(read_run(run_folder))
    assert "1 are under observation, 1 are drawn again" in text
    assert "all stayed in training" not in text


def test_what_is_not_there_comes_last(run_folder):
    (run_folder / "evaluation" / "detection.json").unlink()
    page = render_report(read_run(run_folder))
    assert page.index('<section id="detection" class="absent"') > page.rindex(
        '<section id="configuration"'
    )


def test_a_chart_of_one_moment_shows_it():
    from hf_glm_curriculum.evaluation.svg_charts import band_chart, stacked_chart

    band = band_chart([10], [0.5], [1.0], [1.5], "step", "weight")
    stack = stacked_chart([10], [("training", "red", [4.0])], "step", "samples")
    for drawn, kind in ((band, 'class="curve"'), (stack, "opacity")):
        path = re.search(r'd="([^"]+)"', drawn[drawn.index(kind) - 200 :])
        assert len(set(re.findall(r"[ML]\s*([\d.]+)", path[1]))) >= 2, "as wide as the chart"
