"""The audit on real data with planted faults: they are found, and little else is."""

import json
import random

import datasets
import pytest

from hf_glm_curriculum import audit_records
from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import ConfigError, DataError, StateError

SETS = ("instruct_self_instruct", "instruct_zh_supplement")


def real(shared_data, name):
    if not (shared_data / name).is_dir():
        pytest.skip(f"needs {name}")
    return load_records(shared_data / name).select_columns(["prompt", "response"]).to_list()


def rows_of(audit, kind):
    return {issue.row for issue in audit.issues if issue.kind == kind}


def cut(answer, share=0.6):
    keep = answer[: int(len(answer) * share)]
    return keep.rsplit(" ", 1)[0] if answer[0].isascii() and " " in keep else keep


@pytest.mark.parametrize("name", SETS)
def test_few_alarms_on_real_data(shared_data, name):
    rows = real(shared_data, name)
    audit = audit_records(rows)
    doubtful = len(audit.flagged("truncated_answer", "contradictory_answers", "mojibake"))
    assert doubtful <= 0.0075 * len(rows)
    assert not audit.flagged("prompt_copied", "language_mismatch")
    pairs = {(row["prompt"].strip(), row["response"].strip()) for row in rows}
    assert len(rows_of(audit, "exact_duplicate")) == len(rows) - len(pairs)


@pytest.mark.parametrize("name", SETS)
def test_planted_faults_are_found(shared_data, name):
    rows = real(shared_data, name)
    rng = random.Random(0)
    clean = set(range(len(rows))) - set(audit_records(rows).flagged())
    prose = [i for i in sorted(clean) if len(rows[i]["response"]) >= 60
             and rows[i]["response"][-1] in ".。!" and "\n" not in rows[i]["response"]]  # fmt: skip
    chosen = rng.sample(prose, 50)
    planted = {k: chosen[10 * n : 10 * n + 10] for n, k in enumerate(
        ("prompt_copied", "mojibake", "empty_answer", "truncated_answer", "near"))}  # fmt: skip
    for i in planted["prompt_copied"]:
        rows[i]["response"] = rows[i]["prompt"]
    for i in planted["mojibake"]:
        rows[i]["response"] += " cafÃ© â€œoddâ€\x9d"
    for i in planted["empty_answer"]:
        rows[i]["response"] = " \n"
    for i in planted["truncated_answer"]:
        rows[i]["response"] = cut(rows[i]["response"])
    copies = {"exact_duplicate": [], "near_duplicate": []}
    for i in planted["near"]:
        copies["exact_duplicate"].append((len(rows), i))
        rows.append({"prompt": f"  {rows[i]['prompt'].upper()}", "response": rows[i]["response"]})
        copies["near_duplicate"].append((len(rows), i))
        rows.append({"prompt": rows[i]["prompt"] + "!", "response": f"{rows[i]['response']} Ok."})
    audit = audit_records(rows)
    for kind in ("prompt_copied", "mojibake", "empty_answer"):
        assert set(planted[kind]) <= rows_of(audit, kind), kind
    assert len(set(planted["truncated_answer"]) & rows_of(audit, "truncated_answer")) >= 7
    for kind, pairs in copies.items():
        others = {issue.row: issue.other_row for issue in audit.issues if issue.kind == kind}
        assert [others.get(row) for row, _ in pairs] == [other for _, other in pairs], kind
    expected = {row for group in planted.values() for row in group}
    expected |= {row for pairs in copies.values() for row, _ in pairs}
    unexpected = set(audit.flagged()) & clean - expected
    assert len(unexpected) <= 0.005 * len(rows)


def rows(count=60):
    return [
        {"prompt": f"Say something about the number {i}.", "response": f"It is number {i}, I know."}
        for i in range(count)
    ]


def test_contradictions_name_both_rows():
    data = [*rows(), {"prompt": "Is snow white?", "response": "Yes."}]
    data += [{"prompt": "is snow white", "response": "No."}]
    data += [{"prompt": "Is snow white?", "response": "Yes, when it is fresh and clean."}]
    audit = audit_records(data)
    found = [i for i in audit.issues if i.kind == "contradictory_answers"]
    assert [(issue.row, issue.other_row) for issue in found] == [(60, 61), (61, 60), (62, 61)]
    assert "yes" in found[0].detail


def test_language_mismatch_needs_peers_that_agree():
    odd = {"prompt": "Name three fruits.", "response": "苹果、香蕉和橙子。"}
    assert rows_of(audit_records([*rows(), odd]), "language_mismatch") == {60}
    assert not rows_of(audit_records([*rows(20), odd]), "language_mismatch")
    asked = {"prompt": "Translate into Chinese: apple", "response": "苹果苹果。"}
    assert not rows_of(audit_records([*rows(), asked]), "language_mismatch")


def test_answers_without_the_closing_mark_of_all_others_are_cut():
    data = [
        {"prompt": f"Add {i} and 1", "response": f"It is\n{i} + 1\n#### {i + 1}"} for i in range(60)
    ]
    short = {"prompt": "Add 9 and 9", "response": "It is\n9 + 9 = 18 as one"}
    audit = audit_records([*data, short])
    assert rows_of(audit, "truncated_answer") == {60}
    assert audit.issues[-1].detail == "no last line with '####', as 98 % of answers have"
    assert not rows_of(audit_records([*data[:30], short]), "truncated_answer")
    plain = [{"prompt": f"Name {i}", "response": f"Well,\nIt {i} is."} for i in range(60)]
    assert not rows_of(audit_records([*plain, short]), "truncated_answer")


def test_a_sign_of_a_cut_counts_where_most_answers_are_finished():
    cut = {"prompt": "Where is it?", "response": "You may find the old key on the shelf that is"}
    whole = [
        {"prompt": f"Where is item {i}?", "response": f"It lies in the drawer with the number {i}."}
        for i in range(30)
    ]
    some = [{**row, "response": row["response"].rstrip(".")} for row in whole[:9]]
    assert rows_of(audit_records([*some, *whole[9:], cut]), "truncated_answer") == {30}
    loose = [{**row, "response": row["response"].rstrip(".")} for row in whole]
    assert not rows_of(audit_records([*loose, cut]), "truncated_answer")


def test_length_outlier_is_a_note_and_no_fault():
    long = {"prompt": "Tell me all.", "response": "Word after word. " * 2000}
    audit = audit_records([*rows(), long])
    assert rows_of(audit, "length_outlier") == {60}
    assert audit.flagged() == [] and audit.flagged("length_outlier") == [60]


def test_every_kind_of_input(tmp_path):
    data = [{"instruction": "Say it", "output": ""}, {"instruction": "Say", "output": "It is so."}]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    for records in (data, str(path), path, datasets.Dataset.from_list(data), load_records(path)):
        audit = audit_records(records)
        assert audit.summary() == {"rows": 2, "flagged_rows": 1, "issues": {"empty_answer": 1}}


def test_result_is_the_same_each_time_and_for_any_batch(monkeypatch):
    data = rows(40) + [{"prompt": f"Q{i % 7}?", "response": f"A{i % 5}"} for i in range(40)]
    first = audit_records(data)
    monkeypatch.setattr("hf_glm_curriculum.data.audit.ROWS_PER_BATCH", 3)
    second = audit_records(datasets.Dataset.from_list(data[::-1]).select(range(79, -1, -1)))
    assert first.issues == second.issues and first.diversity == second.diversity
    assert [i.detail for i in first.issues] == [i.detail for i in second.issues]


def test_diversity_counts():
    data = [{"prompt": "Write a poem", "response": "Ah.", "category": "verse"}] * 3
    data += [{"prompt": "什么是诗歌？", "response": "诗歌是一种文学体裁。", "category": None}]
    found = audit_records(data, language=lambda text: "en" if text.isascii() else "zh").diversity
    assert found["languages"] == {"en": 3, "zh": 1}
    assert found["prompt_openings"] == {"write a": 3, "什么是诗": 1}
    assert found["distinct_prompt_share"] == 0.5
    assert found["labels"] == {"category": {"verse": 3}}


def test_reports_are_self_contained_and_escape_the_data(tmp_path):
    evil = '<script>alert(1)</script>{{ 7 * 7 }}"><img src=x onerror=alert(2)>'
    data = [*rows(), {"prompt": evil, "response": evil}, {"prompt": "p", "response": " "}]
    audit = audit_records(data)
    audit.to_html(tmp_path / "audit.html", title="<b>My & data</b>")
    audit.to_json(tmp_path / "audit.json")
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "<script" not in page and "<img" not in page and "<b>My" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;{{ 7 * 7 }}" in page
    assert "http" not in page and "prompt_copied" in page
    stored = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    assert stored["summary"]["issues"] == {"empty_answer": 1, "prompt_copied": 1}
    assert stored["issues"][0] == {
        "row": 60,
        "kind": "prompt_copied",
        "detail": "the answer is the prompt",
        "other_row": None,
    }
    with pytest.raises(StateError):
        audit.to_html(tmp_path / "audit.json" / "x.html")


def test_page_of_clean_data(tmp_path):
    audit_records(rows()).to_html(tmp_path / "audit.html")
    assert "Nothing was found." in (tmp_path / "audit.html").read_text(encoding="utf-8")


def test_bad_input_is_named():
    with pytest.raises(DataError, match="0 rows"):
        audit_records([])
    with pytest.raises(DataError, match="row 1"):
        audit_records([{"prompt": "a", "response": "b"}, {"prompt": "a", "response": 3}])
    with pytest.raises(DataError, match="row 0"):
        audit_records(datasets.Dataset.from_dict({"prompt": ["a"], "response": [None]}))
    with pytest.raises(ConfigError, match="near_threshold"):
        audit_records(rows(), near_threshold=0)
    with pytest.raises(ConfigError, match="num_perm"):
        audit_records(rows(), num_perm=4)
