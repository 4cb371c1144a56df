"""Lanes, switches, pictures and the comparison of runs on a page."""

import json
import re

import pytest

from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.errors import ConfigError, StateError
from hf_glm_curriculum.evaluation.report import render_report
from hf_glm_curriculum.evaluation.report_runs import flat, run_names, write_comparison
from hf_glm_curriculum.evaluation.run_folder import read_run

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360"
    "f8cf500f0003860180d7a5a0d50000000049454e44ae426082"
)
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def run(tmp_path):
    """A run with lanes, a monitor that stepped in once, and a picture."""
    return make_run(tmp_path / "one", learning_rate=1e-3)


def make_run(folder, learning_rate, reason="variance 0.2 above 0.1"):
    (folder / "monitor").mkdir(parents=True)
    (folder / "graph").mkdir()
    lines = [
        {
            "step": step,
            "loss": 3.0 - step / 10,
            "lanes/loss_fast": 2.0,
            "lanes/loss_refine": 3.0 + step,
            "lanes/label_tokens_per_second_fast": 100.0,
            "monitor/variance_smoothed": 0.1 * step,
            "monitor/threshold": 0.25,
            "monitor/ratio_base": step / 10,
            "position_graph/kept_share": 0.25,
            "position_graph/keys": 512.0,
        }
        for step in range(1, 6)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, "utf-8")
    about = {"command": "sft", "config": {"learning_rate": learning_rate, "lanes": {"fast": 2}}}
    (folder / "run.json").write_text(json.dumps(about), "utf-8")
    event = {"step": 3, "event": "to_base", "reason": reason}
    (folder / "monitor" / "events.jsonl").write_text(json.dumps(event) + "\n", "utf-8")
    (folder / "graph" / "picture.png").write_bytes(PIXEL)
    return folder


def part(page, key):
    """One section of a page."""
    found = re.search(rf'<section id="{key}".*?</section>', page, re.DOTALL)
    assert found is not None, key
    return found[0]


def test_lanes_and_switches_are_drawn_with_their_numbers(run):
    shown = part(render_report(read_run(run)), "curriculum")
    assert "Training loss of each lane" in shown and "fast" in shown and "refine" in shown
    assert "to_base" in shown and "variance 0.2 above 0.1" in shown and "<td>3</td>" in shown
    assert "threshold" in shown and "base" in shown


def test_what_queries_saw_and_pictures_are_inside_the_page(run):
    page = render_report(read_run(run))
    assert "512" in part(page, "attention")
    assert 'src="data:image/png;base64,' in part(page, "pictures")
    assert "graph/picture.png" in part(page, "pictures")
    assert not re.search(r'(src|href)="(?!data:|#)', page)


def test_a_picture_too_large_for_the_page_is_named(run):
    (run / "graph" / "huge.png").write_bytes(PIXEL + bytes(2_000_000))
    shown = part(render_report(read_run(run)), "pictures")
    assert "Too large for this page: huge.png" in shown and shown.count("<img") == 1


def test_a_run_without_them_does_not_mention_them(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"command": "sft"}), "utf-8")
    page = render_report(read_run(tmp_path))
    assert "Lanes and switches" not in page and "What queries saw" not in page


def test_hostile_reasons_and_names_stay_text(tmp_path):
    page = render_report(read_run(make_run(tmp_path / "run", 1.0, reason=HOSTILE)))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_damaged_events_become_a_note(run):
    (run / "monitor" / "events.jsonl").write_text("{]\n{}\n", "utf-8")
    page = render_report(read_run(run))
    assert "events.jsonl line 1 is not JSON" in page and "Training curves" in page


def test_several_runs_share_their_axes_and_show_what_differs(run, tmp_path, capsys):
    other = make_run(tmp_path / "two", learning_rate=2e-3)
    out = tmp_path / "both.html"
    assert main(["report", str(run), str(other), "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    settings = part(page, "settings")
    assert "learning_rate" in settings and "0.001" in settings and "0.002" in settings
    assert "lanes.fast" not in settings  # the same in both
    assert part(page, "curves").count("<figure>") == 1
    assert ">one<" in page and ">two<" in page
    assert "comparison:" in capsys.readouterr().out


def test_a_comparison_needs_different_runs(run, tmp_path):
    with pytest.raises(ConfigError, match="two different run folders"):
        write_comparison([run, run], tmp_path / "x.html")
    with pytest.raises(StateError, match="must be the output folder"):
        write_comparison([run, tmp_path / "absent"], tmp_path / "x.html")


def test_runs_of_one_name_are_told_apart(tmp_path):
    first, second = make_run(tmp_path / "a" / "run", 1.0), make_run(tmp_path / "b" / "run", 1.0)
    assert run_names([read_run(first), read_run(second)]) == ["a/run", "b/run"]
    assert flat({"a": {"b": 1, "c": [2]}, "d": None}) == {"a.b": 1, "a.c": [2], "d": None}
