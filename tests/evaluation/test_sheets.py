"""Blind sheets: what they hide, what comes back, and how agreement is counted."""

import csv
import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.evaluation.agreement import cohen_kappa, fleiss_kappa, wilson_interval
from hf_glm_curriculum.evaluation.sheet_page import render_sheet
from hf_glm_curriculum.evaluation.sheets import (
    RATING_FORMAT,
    Ratings,
    make_sheet,
    read_key,
    read_ratings,
    sheet_csv,
    summarise,
)

PROMPTS = [f"question {n}" for n in range(40)]
ANSWERS = {name: [f"{name} says {n}" for n in range(40)] for name in ("base", "tuned")}


# -- agreement -----------------------------------------------------------------------------------


def test_cohens_kappa_of_a_worked_table():
    """20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: 0.7 observed, 0.5 by chance."""
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohen_kappa(*zip(*pairs, strict=True)) == pytest.approx(0.4)
    assert cohen_kappa("abab", "abab") == 1.0
    assert cohen_kappa("aaaa", "aaaa") is None and cohen_kappa([], []) is None
    with pytest.raises(DataError, match="as many items"):
        cohen_kappa("ab", "a")


def test_fleiss_kappa_of_a_worked_table():
    """Ten items, fourteen raters, five categories."""
    counts = [
        [0, 0, 0, 0, 14],
        [0, 2, 6, 4, 2],
        [0, 0, 3, 5, 6],
        [0, 3, 9, 2, 0],
        [2, 2, 8, 1, 1],
        [7, 7, 0, 0, 0],
        [3, 2, 6, 3, 0],
        [2, 5, 3, 2, 2],
        [6, 5, 2, 1, 0],
        [0, 2, 2, 3, 7],
    ]
    assert fleiss_kappa(counts) == pytest.approx(0.20993, abs=1e-5)
    assert fleiss_kappa([[3, 0], [0, 3]]) == 1.0 and fleiss_kappa([[3, 0], [3, 0]]) is None
    with pytest.raises(DataError, match="two ratings at least"):
        fleiss_kappa([[1, 0]])


def test_wilson_intervals():
    low, high = wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(0, 5)[0] == 0.0 and wilson_interval(5, 5)[1] == 1.0


# -- making --------------------------------------------------------------------------------------


def test_sides_are_drawn_and_only_the_key_tells_them():
    sheet = make_sheet(PROMPTS, ANSWERS, seed=1)
    sides = [sides["A"] for sides in sheet.key.values()]
    assert 8 < sides.count("base") < 32
    for item in sheet.items:
        assert item["answer_a"].startswith(sheet.key[item["item"]]["A"])
        assert item["answer_b"].startswith(sheet.key[item["item"]]["B"])
    assert [item["prompt"] for item in sheet.items] != PROMPTS
    assert sorted(item["prompt"] for item in sheet.items) == sorted(PROMPTS)
    again = make_sheet(PROMPTS, ANSWERS, seed=1)
    assert (again.sheet, again.items) == (sheet.sheet, sheet.items)
    assert make_sheet(PROMPTS, ANSWERS, seed=2).sheet != sheet.sheet
    shown = render_sheet(make_sheet(PROMPTS, {"m1": ["x"] * 40, "m2": ["y"] * 40}), "Which?")
    assert "m1" not in shown and "m2" not in shown


def test_three_models_are_compared_in_pairs_and_equal_answers_left_out():
    three = {**ANSWERS, "other": ["o"] * 40}
    sheet = make_sheet(PROMPTS, three, limit=30)
    pairs = [tuple(sorted(sides.values())) for sides in sheet.key.values()]
    assert len(sheet.items) == 30 and all(pairs.count(pair) == 10 for pair in set(pairs))
    same = make_sheet(["a", "b"], {"x": ["1", "2"], "y": ["1 ", "3"]})
    assert [item["prompt"] for item in same.items] == ["b"]
    for answers, words in (
        ({"x": ["1"]}, "answers of two models"),
        ({"x": ["1"], "y": ["1", "2"]}, "y has 2 answers to 1 prompts"),
        ({"x": ["1"], "y": ["1"]}, "the same to every prompt"),
    ):
        with pytest.raises(DataError, match=words):
            make_sheet(["p"], answers)


def test_the_page_and_the_form_hold_any_text_as_text():
    evil = '</script><script>window.bad=1</script><img src=x onerror="window.bad=1">'
    sheet = make_sheet([evil], {"x": ["=1+1"], "y": [evil]})
    page = render_sheet(sheet, evil)
    assert page.count("<script") == 2 and "<img" not in page
    assert not re.search(r'(src|href)="', page) and "default-src 'none'" in page
    (row,) = csv.DictReader(io.StringIO(sheet_csv(sheet)))
    assert "'=1+1" in (row["answer_a"], row["answer_b"]) and row["prompt"] == evil


# -- reading back --------------------------------------------------------------------------------


def rater(name, key, choose):
    return Ratings(name, {item: choose(item, sides) for item, sides in key.items()}, {})


def favours(model):
    return lambda item, sides: next(side for side, name in sides.items() if name == model)


def test_win_rates_follow_the_key_and_not_the_side():
    key = make_sheet(PROMPTS, ANSWERS).key
    found = summarise(key, [rater("ann", key, favours("tuned"))])
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"], pair["wins"], pair["losses"]) == ("base", "tuned", 0, 40)
    assert pair["win_rate"] == 0.0 and pair["high"] < 0.1 and found["fleiss"] is None
    assert 0.2 < found["left"] < 0.8
    always_left = summarise(key, [rater("bob", key, lambda item, sides: "A")])
    assert always_left["left"] == 1.0 and 0.2 < always_left["pairs"][0]["win_rate"] < 0.8


def test_raters_vote_and_their_agreement_is_told():
    key = make_sheet(PROMPTS, ANSWERS).key
    people = [rater(name, key, favours("tuned")) for name in ("ann", "bob")]
    people.append(rater("cyd", key, favours("base")))
    found = summarise(key, people)
    assert found["pairs"][0]["losses"] == 40  # two of three
    assert found["cohen"]["ann / bob"] == 1.0 and found["cohen"]["ann / cyd"] < 0
    assert found["fleiss"] < 0.5
    ties = summarise(key, [people[0], people[2]])
    assert ties["pairs"][0]["ties"] == 40 and ties["pairs"][0]["win_rate"] == 0.5
    with pytest.raises(DataError, match="different names"):
        summarise(key, [people[0], people[0]])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["A", "B", "tie"]), min_size=40, max_size=40))
def test_any_choices_sum_up(choices):
    key = make_sheet(PROMPTS, ANSWERS).key
    found = summarise(key, [Ratings("x", dict(zip(key, choices, strict=True)), {})])
    (pair,) = found["pairs"]
    assert pair["wins"] + pair["losses"] + pair["ties"] == 40
    assert pair["low"] <= pair["win_rate"] <= pair["high"]


@pytest.fixture
def made(tmp_path):
    """A sheet in a folder: the folder, and the models' answer files."""
    files = []
    for name, answers in ANSWERS.items():
        path = tmp_path / f"{name}.jsonl"
        rows = zip(PROMPTS[:6], answers[:6], strict=True)
        text = "".join(json.dumps({"prompt": p, "response": a}) + "\n" for p, a in rows)
        path.write_text(text, "utf-8")
        files.append(f"{name}={path}")
    out = tmp_path / "sheets"
    assert main(["sheets", "make", *files, "--out", str(out)]) == 0
    return out


def ratings_file(path, key, **changes):
    sheet, items = read_key(key)
    tree = {"format": RATING_FORMAT, "sheet": sheet, "rater": path.stem, "comments": {"1": "hm"}}
    tree |= {"choices": dict.fromkeys(items, "A"), **changes}
    path.write_text(json.dumps(tree), "utf-8")
    return path


def test_a_round_trip_through_files(made, tmp_path, capsys):
    first = ratings_file(tmp_path / "ann.json", made / "key.json")
    form = list(csv.DictReader(io.StringIO((made / "sheet.csv").read_text("utf-8"))))
    second = tmp_path / "bob.csv"
    with second.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, form[0].keys())
        writer.writeheader()
        writer.writerows({**row, "choice": " b ", "comment": ""} for row in form)
    assert main(["sheets", "read", str(made / "key.json"), str(first), str(second)]) == 0
    found = json.loads((made / "summary.json").read_text("utf-8"))
    assert found["raters"] == ["ann", "bob"] and found["pairs"][0]["ties"] == 6
    assert found["comments"] == {"ann": {"1": "hm"}}
    assert "6 items, 2 raters" in capsys.readouterr().out


def test_foreign_and_unfinished_ratings_are_refused_by_name(made, tmp_path):
    sheet, key = read_key(made / "key.json")
    for changes, words in (
        ({"sheet": "other"}, "rates another sheet"),
        ({"format": "x"}, "no file of ratings"),
        ({"choices": dict.fromkeys(list(key)[:4], "A")}, r"not finished: 2 items have no choice"),
        ({"choices": {**dict.fromkeys(key, "A"), "99": "A"}}, "items that the sheet does not have"),
        ({"choices": dict.fromkeys(key, "C")}, "must be A, B or tie, got 'C'"),
    ):
        path = ratings_file(tmp_path / "ann.json", made / "key.json", **changes)
        with pytest.raises(StateError, match=words) as caught:
            read_ratings(path, sheet, key)
        assert str(path) in str(caught.value)
    with pytest.raises(StateError, match="no key of a sheet"):
        read_key(tmp_path / "ann.json")
    (tmp_path / "x.csv").write_text("a,b\n1,2\n", "utf-8")
    with pytest.raises(StateError, match="columns item and choice"):
        read_ratings(tmp_path / "x.csv", sheet, key)


def test_what_a_run_generated_makes_a_sheet(tmp_path, capsys):
    rows = [{"prompt": f"p{n}", "before": f"b{n}", "after": f"a{n}"} for n in range(3)]
    path = tmp_path / "generations.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert main(["sheets", "make", str(path), "--out", str(tmp_path / "o"), "--limit", "2"]) == 0
    assert "2 comparisons, 1 prompts left out" in capsys.readouterr().out
    for words, message in (
        (["x=1.jsonl", "x=2.jsonl"], "different names"),
        ([str(tmp_path / "absent.jsonl")], "absent.jsonl"),
        ([str(path), "--limit", "0"], "--limit must be at least 1"),
    ):
        assert main(["sheets", "make", *words, "--out", str(tmp_path / "o")]) == 2
        assert message in capsys.readouterr().err
