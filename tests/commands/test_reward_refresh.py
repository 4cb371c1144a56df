"""`reward --refresh` on tiny models: what it leaves, how it goes on, and what it refuses."""

import json

import pytest
import torch

from hf_glm_curriculum import StructuredRewardModel
from hf_glm_curriculum.commands import reward_refresh
from hf_glm_curriculum.commands.reward_config import RewardCommandConfig
from hf_glm_curriculum.commands.reward_history import history_of
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.evaluation.run_folder import read_json_lines
from tests.conftest import REPOSITORY, build_model, build_tokenizer
from tests.rewards.examples import DIMENSIONS, preference_rows, rating_rows

QUICK = (
    *("--epochs", 2, "--folds", 2, "--confidence-epochs", 2, "--head-hidden-size", 8),
    *("--confidence-hidden-size", 4, "--max-length", 64, "--cpu", "--no-shift-check"),
    *("--candidates", 3, "--max-new-tokens", 6, "--dimensions", *DIMENSIONS),
)
LOOSE = ("--least-score", 0, "--least-reward", 0, "--most-repetition", 1)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def run(cli, tiny_folder, tmp_path):
    """A finished run of `reward`, and its pairs."""
    pairs = write(tmp_path / "pairs.jsonl", preference_rows(16))
    status, _, errors = cli(
        *("reward", "--model", tiny_folder, "--output-dir", tmp_path / "run"),
        *("--cache-dir", tmp_path / "features", "--preferences", pairs, *QUICK),
    )
    assert status == 0, errors
    return tmp_path / "run"


@pytest.fixture
def policy(tmp_path):
    """Another model than the backbone, and some prompts that rules can rank answers to."""
    build_model(seed=7).save_pretrained(tmp_path / "policy")
    build_tokenizer().save_pretrained(tmp_path / "policy")
    # Random bytes hold a single letter or digit now and then.
    check = {"kind": "contains", "any_of": list("abcdefghijklmnopqrstuvwxyz0123456789")}
    rows = [{"prompt": f"ask {n}", "answer_check": check} for n in range(8)]
    rows = [{**row, "dimension": DIMENSIONS[n % 2]} for n, row in enumerate(rows)]
    write(tmp_path / "prompts.jsonl", rows)
    return tmp_path / "policy"


@pytest.fixture
def refresh(cli, run, policy, tmp_path):
    """`refresh(*flags)` → (status, output, errors) of a refresh into `tmp_path / "new"`."""

    def call(*flags, source=run, out="new"):
        return cli(
            *("reward", "--refresh", source, "--sampler", policy, "--tolerance", 1),
            *("--prompts", tmp_path / "prompts.jsonl", "--output-dir", tmp_path / out),
            *("--cache-dir", tmp_path / "features", *QUICK, *LOOSE),
            *flags,
        )

    return call


def read(path):
    return json.loads(path.read_text("utf-8"))


def test_a_refresh_retrains_compares_harvests_and_reports(refresh, run, tmp_path, monkeypatch):
    # What a random model says never ends like a sentence.
    monkeypatch.setattr("hf_glm_curriculum.rewards.flywheel.looks_truncated", lambda text: False)
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file()}
    target = tmp_path / "sft.jsonl"
    status, shown, errors = refresh("--harvest-into", target)
    assert status == 0, errors
    folder = tmp_path / "new"
    about, drift = read(folder / "run.json"), read(folder / "refresh" / "drift.json")
    assert about["status"] == "finished" and drift["accepted"] is about["accepted"] is True
    assert {one["pairs"] for one in drift["fixed"].values()} == {2}
    old, new = (StructuredRewardModel.from_pretrained(f / "model") for f in (run, folder))
    same = [torch.equal(a, b) for a, b in zip(old.parameters(), new.parameters(), strict=True)]
    assert any(same) and not all(same)
    sheet = read_json_lines(folder / "refresh" / "to_rate.jsonl")
    assert sheet and all(row[name] is None for row in sheet for name in DIMENSIONS)
    harvested = read(folder / "refresh" / "harvest.json")
    assert harvested["answers"] == 24 == harvested["kept"] + sum(harvested["rejected"].values())
    rows = read_json_lines(folder / "refresh" / "sft.jsonl")
    assert len(rows) == harvested["kept"] > 0 and harvested["rejected"]["answer_check"]
    assert rows == read_json_lines(target) and len(load_records(target, "sft")) == len(rows)
    meta = rows[0]["meta"]
    assert meta["origin"] == "policy" and meta["policy_fingerprint"] and meta["reward"]
    assert any("reward/refresh_shift_logic" in m for m in read_json_lines(folder / "metrics.jsonl"))
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("data:image/png") == 1 and "Flywheel" in page and "Drift" in page
    assert "Fixed pairs" in shown and str(folder / "model") in shown
    assert before == {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file()}


def test_a_killed_refresh_goes_on(refresh, tmp_path, monkeypatch):
    def die(*args, **kwargs):
        raise KeyboardInterrupt

    harvested = reward_refresh._harvested
    monkeypatch.setattr(reward_refresh, "_harvested", die)
    status, _, errors = refresh()
    assert status == 130 and "interrupted" in errors
    log = tmp_path / "new" / "refresh" / "preferences.candidates.jsonl"
    answers = log.read_text("utf-8")
    monkeypatch.setattr(reward_refresh, "_harvested", harvested)
    status, _, errors = refresh()
    assert status == 2 and "--resume" in errors
    status, _, errors = refresh("--resume", "--candidates", 4)
    assert status == 2 and "other settings" in errors
    status, _, errors = refresh("--resume")
    assert status == 0, errors
    assert log.read_text("utf-8") == answers
    straight = refresh(out="straight")
    assert straight[0] == 0
    one, other = (read(tmp_path / f / "refresh" / "drift.json") for f in ("new", "straight"))
    assert one == other
    status, shown, _ = refresh("--resume")
    assert status == 0 and "finished run" in shown


def test_a_refreshed_run_is_refreshed_again(refresh, run, tmp_path, cli):
    assert refresh()[0] == 0
    first = history_of(run)
    second = history_of(tmp_path / "new")
    assert second.fixed == first.fixed and len(first.fixed) == 4
    own = read_json_lines(tmp_path / "new" / "refresh" / "preferences.jsonl")
    assert len(second.pairs) == len(first.pairs) + len(own)
    assert not {row["prompt"] for row in second.pairs} & {row["prompt"] for row in second.fixed}
    status, _, errors = refresh(source=tmp_path / "new", out="newer")
    assert status == 0, errors
    (tmp_path / "newer" / "report.html").unlink()
    status, _, errors = cli("report", tmp_path / "newer")
    assert status == 0, errors
    assert "Drift" in (tmp_path / "newer" / "report.html").read_text("utf-8")


def test_rows_given_beside_are_trained_on(refresh, run, tmp_path):
    rated = write(tmp_path / "rated.jsonl", rating_rows(6))
    more = write(tmp_path / "more.jsonl", preference_rows(2, seed=9))
    status, _, errors = refresh("--ratings", rated, "--preferences", more)
    assert status == 0, errors
    data, before = read(tmp_path / "new" / "run.json")["data"], history_of(run)
    assert data["replayed_ratings"] == 6 == len(history_of(tmp_path / "new").ratings)
    assert data["replayed_pairs"] == len(before.pairs) + 4


def test_heads_that_lost_something_are_not_taken(refresh, run, tmp_path, monkeypatch):
    from hf_glm_curriculum.rewards.drift import DriftReport

    monkeypatch.setattr(DriftReport, "losses", lambda self, tolerance: ["logic"])
    status, shown, errors = refresh()
    assert status == 0, errors
    assert "the old heads stay" in shown
    old, new = (StructuredRewardModel.from_pretrained(f / "model") for f in (run, tmp_path / "new"))
    assert all(map(torch.equal, old.parameters(), new.parameters()))


def test_data_that_changed_is_noticed(refresh, run, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    fixed = write(tmp_path / "fixed.jsonl", preference_rows(4, seed=5))
    write(pairs, preference_rows(12))
    status, _, errors = refresh()
    assert status == 2 and "--fixed" in errors and not (tmp_path / "new").exists()
    status, _, errors = refresh("--fixed", fixed)
    assert status == 0, errors
    drift = read(tmp_path / "new" / "refresh" / "drift.json")
    assert {one["pairs"] for one in drift["fixed"].values()} == {4}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--judge", "somewhere"), "preference_dimension"),
        (("--demo", 8), "demo"),
        (("--backbone", "lora"), "frozen"),
        (("--dimensions", "logic", "style"), "factual, logic"),
        (("--tolerance", 2), "tolerance"),
    ],
)
def test_bad_settings(refresh, tmp_path, flags, words):
    status, _, errors = refresh(*flags)
    assert status == 2 and words in errors and "Traceback" not in errors
    assert not (tmp_path / "new").exists()


def test_without_a_run_to_refresh(refused, tiny_folder, tmp_path):
    words = ("reward", "--model", tiny_folder, "--output-dir", tmp_path / "new")
    assert "--refresh" in refused(*words, "--harvest-into", tmp_path / "x.jsonl")
    line = refused(*words, "--refresh", tmp_path, "--sampler", tiny_folder, "--prompts", "x")
    assert "no run of `reward`" in line


def test_the_shipped_config_is_one():
    path = REPOSITORY / "configs" / "reward" / "refresh.yaml"
    first = path.read_text("utf-8").splitlines()[0]
    assert "--refresh" in first
    load_config(
        RewardCommandConfig, path, ["refresh=runs/reward", "sampler=runs/sft", "prompts=[p.jsonl]"]
    )
