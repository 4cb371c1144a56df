"""What the review page does, without the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_glm_curriculum.commands.review_html import (
    escape,
    header_html,
    message_html,
    sample_html,
    side_html,
)
from hf_glm_curriculum.commands.review_session import (
    Filters,
    Message,
    Neighbours,
    Population,
    Progress,
    ReviewSession,
    View,
    make_token,
    read_token,
)
from hf_glm_curriculum.lifespan.pool import read_pool
from hf_glm_curriculum.lifespan.review import ReviewStore
from tests.lifespan.pools import pairs, pool_line, write_pool

EVERYTHING = Filters(decision="all")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pool(tmp_path, [pool_line(k, *pair) for k, pair in enumerate(pairs(5))])


def tab(folder: Path, reviewer: str = "ann") -> ReviewSession:
    return ReviewSession(ReviewStore(read_pool(folder)), reviewer=reviewer)


def press(session: ReviewSession, action: str, view: View, edited=None, filters=None) -> View:
    return session.act(
        action, view.token, view.editor if edited is None else edited, filters or Filters()
    )


def test_pages_by_suspicion_and_counts(tmp_path):
    lines = [
        pool_line(0, "a", "A", suspicion=1.0),
        pool_line(1, "b", "B", suspicion=None),
        pool_line(2, "c", "C", suspicion=9.0),
    ]
    session = tab(write_pool(tmp_path, lines))
    seen = [view := session.first()]
    for action in ("keep", "drop"):
        seen.append(view := press(session, action, view))
    assert [v.row.row for v in seen] == [2, 0, 1]
    assert [(v.place, v.listed) for v in seen] == [(1, 3), (1, 2), (1, 1)]
    assert seen[2].progress == Progress(3, 1, 0, 1) and seen[1].message.text == "Kept row 2."
    last = press(session, "keep", view)
    assert last.row is None and last.progress.decided == 3
    assert "Everything is decided" in sample_html(last)


def test_a_fix_saves_the_edit_and_shows_it_again(folder):
    session = tab(folder)
    view = press(session, "fix", session.first(), edited="Right.\n")
    assert view.message.text == "Fixed row 0."
    back = press(session, "back", view)
    assert back.row.row == 0 and back.editor == "Right.\n" and back.decision.decision == "fix"
    undone = press(session, "undo", back)
    assert undone.row.row == 0 and undone.decision is None
    assert undone.editor == "Answer number 0." and undone.progress.decided == 0


@pytest.mark.parametrize(
    ("action", "edited", "words"),
    [
        ("fix", None, "Nothing was changed"),
        ("fix", "Answer number 0.\r\n".strip(), "Nothing was changed"),
        ("fix", " \n", "correction is empty"),
        ("keep", "Something else", "answer was edited"),
        ("undo", None, "no decision to take back"),
    ],
)
def test_presses_that_make_no_sense_are_explained_and_change_nothing(folder, action, edited, words):
    session = tab(folder)
    first = session.first()
    view = press(session, action, first, edited=edited)
    assert words in view.message.text and view.row.row == 0 and view.token == first.token
    assert view.editor == (first.editor if edited is None else edited)
    assert not session.store.path.exists()


def test_dropping_needs_no_tidy_editor(folder):
    session = tab(folder)
    assert press(session, "drop", session.first(), edited="half a cor").progress.dropped == 1


def test_a_press_about_a_sample_decided_elsewhere_is_a_conflict(folder):
    ann, ben = tab(folder, "ann"), tab(folder, "ben")
    seen = ben.first()
    press(ann, "drop", ann.first())
    view = press(ben, "fix", seen, edited="My correction")
    assert view.message.kind == "conflict" and "ann dropped it" in view.message.text
    assert view.row.row == 0 and view.editor == "My correction" and view.decision.decision == "drop"
    again = press(ben, "fix", view, edited="My correction")
    assert again.message.kind == "done"
    assert ben.store.last(seen.row.id).response == "My correction"


def test_two_quick_presses_on_one_view_decide_one_sample(folder):
    session = tab(folder)
    view = session.first()
    press(session, "keep", view)
    second = press(session, "drop", view)
    assert second.message.kind == "conflict" and second.progress == Progress(5, 1, 0, 0)


def test_skipping_goes_round_and_says_so(folder):
    session = tab(folder)
    view = session.first()
    rows = []
    for _ in range(5):
        view = press(session, "skip", view)
        rows.append(view.row.row)
    assert rows == [1, 2, 3, 4, 0] and "from the top again" in view.message.text
    assert press(session, "back", view).row.row == 0  # nothing stands before the first


def test_filters_choose_by_verdict_and_decision(folder):
    session = tab(folder)
    view = press(session, "keep", session.first())
    relabel = Filters("RELABEL", "all")
    view = press(session, "stay", view, filters=relabel)
    assert view.row.row == 4 and view.listed == 2
    assert press(session, "stay", view, filters=Filters("all", "keep")).row.row == 0
    assert press(session, "stay", view, filters=Filters("all", "decided")).listed == 1
    nothing = press(session, "stay", view, filters=Filters("all", "drop"))
    assert nothing.row is None and "No sample passes these filters" in sample_html(nothing)
    assert press(session, "stay", nothing, filters=EVERYTHING).row.row == 0


def test_samples_without_text_are_shown_and_not_decided(tmp_path):
    session = tab(write_pool(tmp_path, [pool_line(0, None, None)]))
    view = session.first()
    assert "could not read this sample" in sample_html(view)
    assert "nothing can be decided" in press(session, "keep", view).message.text
    assert not session.store.path.exists()


def test_an_exchange_that_was_trained_on_whole_cannot_be_fixed(tmp_path):
    session = tab(write_pool(tmp_path, [pool_line(0, "", "<u>Hi<a>Ho", decoded=True)]))
    view = session.first()
    assert "prompt and answer alike" in sample_html(view)
    assert "a fix has no place" in press(session, "fix", view, edited="Hey").message.text
    assert press(session, "drop", view).progress.dropped == 1


def test_forged_or_stale_tokens_start_from_the_top(folder):
    session = tab(folder)
    for token in ("", "null", "{}", '{"id": "0x99", "version": 0}', '{"id": 1, "version": "x"}'):
        assert session.act("drop", token, "", Filters()).row.row == 0
    assert not session.store.path.exists()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_tokens_round_trip(sample_id, version):
    assert read_token(make_token(sample_id, version)) == (sample_id, version)


def test_a_disk_that_refuses_is_told_and_the_edit_stays(folder, monkeypatch):
    session = tab(folder)
    view = session.first()
    session.store.path.mkdir()
    with pytest.raises(Exception, match=r"review.jsonl"):
        session.first()
    session.store.path.rmdir()

    def full(*_, **__):
        from hf_glm_curriculum.errors import StateError

        raise StateError("cannot write review.jsonl: No space left on device")

    monkeypatch.setattr(session.store, "decide", full)
    after = press(session, "fix", view, edited="New")
    assert "Not saved: cannot write" in after.message.text and after.editor == "New"


def test_shares_count_the_samples_below():
    population = Population({"loss": [1.0, 2.0, 2.0, 3.0], "none": []})
    assert population.share("loss", 2.0) == 0.5 and population.share("loss", 9.0) == 1.0
    assert population.share("loss", 0.0) == 0.0 and population.share("none", 1.0) is None


def test_neighbours_come_from_the_pool_and_the_data(tmp_path):
    lines = [pool_line(0, "capital of France", "Rome"), pool_line(1, "boil an egg", "no")]
    pool = read_pool(write_pool(tmp_path, lines))
    data = [("capital of France please", "Paris"), ("capital of France", "Rome")]
    found = Neighbours(pool, data).of(pool.rows[0])
    assert [(n.response, n.verdict) for n in found] == [("Paris", "")]
    assert Neighbours(pool).of(pool.rows[0]) == []


# -- HTML ----------------------------------------------------------------------------------------

EVIL = "<script>bad()</script> ${bad()} {{bad}} `bad` \"'&amp;"


@given(st.text())
def test_escaped_text_is_only_text(text):
    import html

    shown = escape(text)
    assert not set(shown) & set("<>\"'{}$`")
    assert html.unescape(shown).replace("\r", "\n") == html.unescape(html.escape(text)).replace(
        "\r", "\n"
    )


def test_no_text_of_a_sample_reaches_the_page_unescaped(tmp_path):
    lines = [pool_line(0, f"word {EVIL}", EVIL), pool_line(1, f"word {EVIL} more", EVIL)]
    session = ReviewSession(ReviewStore(read_pool(write_pool(tmp_path, lines))), reviewer=EVIL)
    view = press(session, "fix", session.first(), edited=f"{EVIL}!")
    view = press(session, "back", view)
    assert view.neighbours
    page = header_html(EVIL, view.progress) + message_html(Message("hint", EVIL))
    page += sample_html(view) + side_html(view, EVIL)
    assert "bad()" in page
    for unsafe in ("<script", "${", "{{", "`"):
        assert unsafe not in page


def test_very_long_answers_are_cut_on_the_page_only(tmp_path):
    session = tab(write_pool(tmp_path, [pool_line(0, "p", "x" * 50_000)]))
    view = session.first()
    assert len(sample_html(view)) < 25_000 and "30,000 more characters" in sample_html(view)
    assert len(view.editor) == 50_000


def test_signals_are_shown_with_value_and_percentile(folder):
    html = side_html(tab(folder).first(), "percentile of 5 samples")
    assert "Loss, last visit" in html and "90%" in html and "percentile of 5 samples" in html
    assert "Suspicion" in html and "5.00" in html
