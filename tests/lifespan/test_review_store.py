"""The store of decisions: saved at once, safe against tabs, processes and crashes."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.errors import DataError, StateError
from hf_glm_curriculum.lifespan import review
from hf_glm_curriculum.lifespan.corrections import import_annotations
from hf_glm_curriculum.lifespan.pool import ObservationPool, read_pool
from hf_glm_curriculum.lifespan.review import ReviewConflict, ReviewStore
from tests.conftest import REPOSITORY
from tests.lifespan.pools import pairs, pool_line, read_jsonl, write_jsonl, write_pool
from tests.processes import run_python, start_python


@pytest.fixture
def pool(tmp_path: Path) -> ObservationPool:
    lines = [pool_line(k, *pair) for k, pair in enumerate(pairs(8))]
    return read_pool(write_pool(tmp_path / "run", lines))


def verdicts(store: ReviewStore) -> dict[int, str | None]:
    return {d.row: d.decision for d in store.decisions().values()}


def ids(pool: ObservationPool) -> list[int]:
    return [row.id for row in pool.rows]


def test_a_decision_is_on_disk_when_decide_returns(pool):
    store = ReviewStore(pool)
    saved = store.decide(ids(pool)[0], "fix", "Right.", expected_version=0, reviewer="ann")
    assert (saved.version, saved.line, saved.row) == (1, 1, 0)
    line = json.loads((pool.path.parent / "review.jsonl").read_text("utf-8"))
    assert (line["decision"], line["response"], line["reviewer"]) == ("fix", "Right.", "ann")
    assert verdicts(ReviewStore(pool)) == {0: "fix"}


def test_the_last_decision_holds_and_can_be_taken_back(pool):
    store, first = ReviewStore(pool), ids(pool)[0]
    store.decide(first, "keep", expected_version=0)
    store.decide(first, "drop", expected_version=1)
    assert verdicts(store) == {0: "drop"}
    store.decide(first, None, expected_version=2)
    assert verdicts(store) == {} and store.version(first) == 3
    assert verdicts(ReviewStore(pool)) == {}
    assert len(read_jsonl(store.path)) == 3


def test_a_stale_tab_is_told_and_nothing_is_overwritten(pool):
    first, second = ReviewStore(pool), ReviewStore(pool)
    sample = ids(pool)[3]
    first.decide(sample, "drop", expected_version=0, reviewer="ann")
    with pytest.raises(ReviewConflict, match="ann decided drop") as caught:
        second.decide(sample, "keep", expected_version=0, reviewer="ben")
    assert caught.value.current.decision == "drop" and caught.value.current.version == 1
    assert verdicts(ReviewStore(pool)) == {3: "drop"}
    second.decide(sample, "keep", expected_version=1, reviewer="ben")  # having seen it
    first.refresh()
    assert verdicts(first) == {3: "keep"}


def test_two_tabs_see_each_other_after_a_refresh(pool):
    first, second = ReviewStore(pool), ReviewStore(pool)
    first.decide(ids(pool)[0], "keep", expected_version=0)
    second.decide(ids(pool)[1], "drop", expected_version=0)
    first.refresh()
    assert verdicts(first) == verdicts(second) == {0: "keep", 1: "drop"}


def test_wrong_decisions_never_reach_the_file(pool):
    store, first = ReviewStore(pool), ids(pool)[0]
    for sample, decision, response in [
        (12345, "keep", None),
        (first, "burn", None),
        (first, "fix", "  "),
        (first, "fix", "Answer number 0."),
    ]:
        with pytest.raises(DataError):
            store.decide(sample, decision, response, expected_version=0)
    assert not store.path.exists()


# -- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_torn_last_line_is_passed_over_and_then_removed(pool, cut):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "keep", expected_version=0)
    whole = store.path.read_bytes()
    store.decide(ids(pool)[1], "drop", expected_version=0)
    store.path.write_bytes(whole + store.path.read_bytes()[len(whole) :][:cut])
    again = ReviewStore(pool)
    assert verdicts(again) == {0: "keep"}
    again.decide(ids(pool)[2], "drop", expected_version=0)
    assert [line["row"] for line in read_jsonl(store.path)] == [0, 2]
    store.refresh()  # a reader that knew the longer file
    assert verdicts(store) == {0: "keep", 2: "drop"}


def test_a_whole_line_without_its_line_break_counts_again(pool):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "keep", expected_version=0)
    store.path.write_bytes(store.path.read_bytes().rstrip(b"\n"))
    again = ReviewStore(pool)
    again.decide(ids(pool)[1], "drop", expected_version=0)
    assert verdicts(again) == {0: "keep", 1: "drop"}


def test_damage_before_the_last_line_is_an_error_with_its_line(pool):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "keep", expected_version=0)
    good = store.path.read_text("utf-8")
    for bad in ("{}\n", "not json\n", '{"id": 1, "decision": "eat"}\n'):
        store.path.write_text(good + bad + good, "utf-8")
        with pytest.raises(StateError, match=r"review.jsonl, line 2: not a decision"):
            ReviewStore(pool)


def test_a_file_deleted_or_replaced_under_the_store_is_read_anew(pool):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "keep", expected_version=0)
    store.path.unlink()
    store.refresh()
    assert verdicts(store) == {}
    other = ReviewStore(pool)
    other.decide(ids(pool)[5], "drop", expected_version=0)
    store.refresh()
    assert verdicts(store) == {5: "drop"}


def test_a_full_disk_leaves_the_file_as_it_was(pool, monkeypatch):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "keep", expected_version=0)
    before = store.path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match="No space left"):
            store.decide(ids(pool)[1], "drop", expected_version=0)
    assert store.path.read_bytes() == before
    store.decide(ids(pool)[1], "drop", expected_version=0)
    assert verdicts(store) == {0: "keep", 1: "drop"}


def test_a_writer_killed_between_its_bytes_loses_only_what_was_not_acknowledged(pool):
    script = f"""
import os, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
store = ReviewStore(read_pool({str(pool.path)!r}))
rows = store.pool.rows
store.decide(rows[0].id, "keep", expected_version=0)
write = os.write
def dying(handle, data):
    write(handle, bytes(data)[:25])
    os.kill(os.getpid(), 9)
os.write = dying
store.decide(rows[1].id, "drop", expected_version=0)
"""
    assert run_python(pool.path.with_name("killed.log"), script) == -9
    assert not ReviewStore(pool).path.read_bytes().endswith(b"\n")
    store = ReviewStore(pool)
    assert verdicts(store) == {0: "keep"}
    store.decide(ids(pool)[1], "keep", expected_version=0)  # the dead process's lock is free
    assert verdicts(ReviewStore(pool)) == {0: "keep", 1: "keep"}


# -- writers at once -----------------------------------------------------------------------------


def test_threads_that_race_for_one_sample_make_one_decision(pool):
    sample, results = ids(pool)[0], []

    def decide(decision: str) -> None:
        store = ReviewStore(pool)
        start.wait()
        try:
            store.decide(sample, decision, expected_version=0)
            results.append("saved")
        except ReviewConflict:
            results.append("conflict")

    start = threading.Barrier(8)
    threads = [threading.Thread(target=decide, args=("keep",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["conflict"] * 7 + ["saved"]
    assert len(read_jsonl(pool.path.with_name("review.jsonl"))) == 1


def test_processes_that_write_at_once_lose_nothing(pool):
    script = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
mine = int(sys.argv[1])
store = ReviewStore(read_pool({str(pool.path)!r}))
for turn in range(20):
    for row in store.pool.rows[mine::2]:
        decision = ("keep", "drop")[turn % 2]
        store.decide(row.id, decision, expected_version=turn, reviewer=str(mine))
"""
    logs = [pool.path.with_name(f"writer{mine}.log") for mine in (0, 1)]
    writers = [start_python(log, script, mine) for mine, log in enumerate(logs)]
    for writer, log in zip(writers, logs, strict=True):
        writer.join(timeout=180)
        assert writer.exitcode == 0, log.read_text()
    store = ReviewStore(pool)
    assert [store.version(k) for k in ids(pool)] == [20] * 8
    assert set(verdicts(store).values()) == {"drop"}
    assert {d.reviewer for d in store.decisions().values()} == {"0", "1"}


def test_a_lock_that_stays_taken_is_reported(pool, monkeypatch):
    monkeypatch.setattr(review, "_LOCK_SECONDS", 0.1)
    store, holder = ReviewStore(pool), ReviewStore(pool)
    with holder._locked(), pytest.raises(StateError, match="another process has held its lock"):
        store.decide(ids(pool)[0], "keep", expected_version=0)
    store.decide(ids(pool)[0], "keep", expected_version=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 2), st.sampled_from([None, "keep", "drop"])),
        max_size=15,
    )
)
def test_any_order_of_two_tabs_reads_back_as_it_was_decided(steps):
    with tempfile.TemporaryDirectory() as name:
        lines = [pool_line(k, *pair) for k, pair in enumerate(pairs(3))]
        pool = read_pool(write_pool(Path(name), lines))
        tabs, model, versions = [ReviewStore(pool), ReviewStore(pool)], {}, [0, 0, 0]
        for tab, row, decision in steps:
            sample = pool.rows[row].id
            seen = tabs[tab].version(sample)
            try:
                tabs[tab].decide(sample, decision, expected_version=seen)
                assert seen == versions[row]
                versions[row] += 1
                model[row] = decision
            except ReviewConflict as conflict:
                assert seen < versions[row] == conflict.current.version
        expected = {row: decision for row, decision in model.items() if decision}
        assert verdicts(ReviewStore(pool)) == expected


def test_decisions_go_straight_into_the_data(pool, tmp_path):
    store = ReviewStore(pool)
    store.decide(ids(pool)[0], "fix", "Right.", expected_version=0)
    store.decide(ids(pool)[1], "keep", expected_version=0)
    store.decide(ids(pool)[1], "drop", expected_version=1)
    data = write_jsonl(tmp_path / "data.jsonl", [{"prompt": p, "response": r} for p, r in pairs(8)])
    import_annotations(pool, store.answers(), data, tmp_path / "corrected.jsonl")
    rows = read_jsonl(tmp_path / "corrected.jsonl")
    assert len(rows) == 7 and rows[0]["response"] == "Right."
