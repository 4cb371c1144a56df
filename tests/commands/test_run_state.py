"""What becomes of an output folder, and what `run.json` says of a run's end."""

import json

import pytest

from hf_glm_curriculum.checkpoints import last_checkpoint
from hf_glm_curriculum.commands.run_state import (
    FolderPlan,
    cached,
    check_writable,
    clear_run,
    plan_folder,
    run_record,
)
from hf_glm_curriculum.errors import ConfigError, StateError


def checkpoint(folder, step, whole=True):
    path = folder / f"checkpoint-{step}"
    (path / "hf_glm_curriculum").mkdir(parents=True)
    (path / "trainer_state.json").write_text("{}")
    if whole:
        (path / "hf_glm_curriculum" / "lifespan.safetensors").write_text("")
    return path


def test_a_new_or_empty_folder_is_free(tmp_path):
    assert plan_folder(tmp_path / "new", False, False) == FolderPlan(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert plan_folder(tmp_path, False, False) == FolderPlan(tmp_path)


def test_a_folder_with_other_files_is_no_run(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    assert plan_folder(tmp_path, False, overwrite=True) == FolderPlan(tmp_path)


def test_resume_takes_the_newest_whole_checkpoint_by_number(tmp_path):
    (tmp_path / "run.json").write_text('{"status": "running"}')
    checkpoint(tmp_path, 9)
    newest = checkpoint(tmp_path, 10)
    checkpoint(tmp_path, 12, whole=False)
    (tmp_path / "checkpoint-best").mkdir()
    plan = plan_folder(tmp_path, resume=True, overwrite=False)
    assert plan.checkpoint == newest and plan.previous == {"status": "running"}


def test_resume_without_a_checkpoint_starts_anew(tmp_path):
    (tmp_path / "run.json").write_text('{"status": "running"}')
    assert plan_folder(tmp_path, resume=True, overwrite=False).checkpoint is None
    assert last_checkpoint(tmp_path, "lifespan") is None


@pytest.mark.parametrize(
    ("status", "words"), [("finished", "a finished"), ("failed", "an unfinished")]
)
def test_a_run_is_neither_continued_nor_replaced_unasked(tmp_path, status, words):
    (tmp_path / "run.json").write_text(json.dumps({"status": status}))
    with pytest.raises(StateError, match=f"holds {words} run; pass --resume"):
        plan_folder(tmp_path, False, False)
    assert plan_folder(tmp_path, False, overwrite=True).clear


def test_clearing_takes_what_a_run_left_and_nothing_else(tmp_path):
    checkpoint(tmp_path, 3)
    for name in ("lifespan", "evaluation", "model", "data", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    for name in ("run.json", "metrics.jsonl", "report.html", "notes.txt"):
        (tmp_path / name).write_text("x")
    clear_run(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mine", "notes.txt"]


def test_clearing_does_not_follow_links(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model").symlink_to(elsewhere)
    clear_run(folder)
    assert (elsewhere / "file").exists() and not (folder / "model").is_symlink()


def test_writability_is_checked_without_making_anything(tmp_path):
    check_writable(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="is no folder"):
        check_writable(tmp_path / "file" / "b")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StateError, match="is no folder"):
        check_writable(tmp_path / "broken")


def test_how_a_run_ended_is_kept(tmp_path):
    plan = FolderPlan(tmp_path / "run")
    read = lambda: json.loads((tmp_path / "run" / "run.json").read_text())  # noqa: E731
    with run_record(plan, {"title": "t"}) as record:
        assert read()["status"] == "running" and read()["title"] == "t"
        record.update(global_step=4)
    assert read()["status"] == "finished" and read()["global_step"] == 4
    with pytest.raises(ConfigError), run_record(plan, {}):
        raise ConfigError("x: wrong\nin two lines")
    assert read()["status"] == "failed" and read()["error"] == "x: wrong in two lines"
    with pytest.raises(KeyboardInterrupt), run_record(plan, {}):
        raise KeyboardInterrupt
    assert read()["status"] == "interrupted"


def test_time_adds_up_over_resumptions(tmp_path):
    previous = {"seconds": 100.0, "started": "2026-01-01T00:00:00+00:00", "status": "failed"}
    with run_record(FolderPlan(tmp_path, previous=previous), {}) as record:
        pass
    assert record.about["seconds"] >= 100 and record.about["started"] == previous["started"]
    assert len(record.about["resumed"]) == 1


def test_one_folder_serves_one_process(tmp_path):
    with (
        run_record(FolderPlan(tmp_path), {}),
        pytest.raises(StateError, match="another process"),
        run_record(FolderPlan(tmp_path), {}),
    ):
        raise AssertionError("two runs in one folder")


def test_cached_values_belong_to_a_key(tmp_path):
    path = tmp_path / "deep" / "value.json"
    made = []

    def make():
        made.append(1)
        return {"n": len(made)}

    assert cached(path, "a", make) == {"n": 1}
    assert cached(path, "a", make) == {"n": 1}
    assert cached(path, "b", make) == {"n": 2}
    path.write_text("{torn")
    assert cached(path, "b", make) == {"n": 3}
