"""Annotators' answers brought back into data of every format."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_glm_curriculum.data.records import load_records
from hf_glm_curriculum.errors import DataError
from hf_glm_curriculum.lifespan.corrections import import_annotations
from tests.lifespan.pools import pairs, pool_line, read_jsonl, write_jsonl, write_pool

ANSWERS = [
    {"row": 0, "decision": "keep"},
    {"row": 1, "decision": "fix", "corrected_response": "Right."},
    {"row": 2, "decision": "drop"},
]
PLAIN = [{"prompt": p, "response": r, "meta": {"k": k}} for k, (p, r) in enumerate(pairs())]


def state(row: dict[str, Any]) -> tuple[str, str | None]:
    return row["sample_review"], row["sample_review_id"] or None


def without(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith("sample_review")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    lines = [pool_line(k, *pair) for k, pair in enumerate(pairs()[:4])]
    return write_pool(tmp_path / "run", lines)


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "answers.jsonl", ANSWERS)


def correct(run: Path, answers: Path, rows: list[Any], tmp_path: Path) -> list[Any]:
    """What an import makes of JSONL records."""
    out = tmp_path / "corrected.jsonl"
    import_annotations(run, answers, write_jsonl(tmp_path / "data.jsonl", rows), out)
    return read_jsonl(out)


def test_dropped_rows_are_out_fixed_replaced_and_the_rest_as_it_was(run, answers, tmp_path):
    data = write_jsonl(tmp_path / "data.jsonl", PLAIN)
    before = data.read_bytes()
    result = import_annotations(run, answers, data, tmp_path / "out" / "corrected.jsonl")
    rows = read_jsonl(tmp_path / "out" / "corrected.jsonl")
    assert (result.kept, result.fixed, result.dropped, result.unreviewed) == (1, 1, 1, 3)
    assert [without(r) for r in rows] == [PLAIN[0], {**PLAIN[1], "response": "Right."}, *PLAIN[3:]]
    assert state(rows[0]) == ("kept", "0x7a00000000000000")
    assert [state(r) for r in rows[1:]] == [("fixed", None), *[("unreviewed", None)] * 3]
    assert data.read_bytes() == before
    assert len(load_records(tmp_path / "out" / "corrected.jsonl")) == 5


def test_rows_are_found_by_their_text_wherever_a_split_has_put_them(run, answers, tmp_path):
    rows = correct(run, answers, list(reversed(PLAIN)), tmp_path)
    assert [r["meta"]["k"] for r in rows] == [5, 4, 3, 1, 0]
    assert rows[3]["response"] == "Right."


def test_an_answer_holds_for_every_copy_of_its_content(run, answers, tmp_path):
    rows = correct(run, answers, [*PLAIN, *PLAIN[:3]], tmp_path)
    assert [r["response"] for r in rows].count("Right.") == 2
    assert all(r["prompt"] != PLAIN[2]["prompt"] for r in rows)


FORMATS = {
    "instruction": lambda p, r: {"instruction": p, "output": r, "tag": 1},
    "completion": lambda p, r: {"prompt": p, "completion": r},
    "messages": lambda p, r: {
        "messages": [{"role": "user", "content": p}, {"role": "assistant", "content": r}]
    },
    "messages beside text": lambda p, r: {
        "prompt": p,
        "response": r,
        "messages": [{"role": "user", "content": p}, {"role": "assistant", "content": r}],
    },
    "turns": lambda p, r: {
        "prompt": [{"role": "user", "content": p}],
        "completion": [{"role": "assistant", "content": r}],
    },
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_keeps_its_own_fields(run, answers, tmp_path, name):
    make = FORMATS[name]
    data = [make(*pair) for pair in pairs()]
    rows = correct(run, answers, data, tmp_path)
    fixed = make(pairs()[1][0], "Right.")
    assert [without(r) for r in rows] == [data[0], fixed, *data[3:]]


def test_instruction_with_input_and_self_instruct_instances(tmp_path):
    alpaca = {"instruction": "Add.", "input": "1 2", "output": "4"}
    several = {
        "instruction": "Name one.",
        "instances": [{"input": "a fish", "output": "dog"}, {"input": "a pet", "output": "cat"}],
    }
    gone = {"instruction": "Say.", "instances": [{"input": "hi", "output": "no"}]}
    lines = [
        pool_line(0, "Add.\n\n1 2", "4"),
        pool_line(1, "Name one.\n\na fish", "dog"),
        pool_line(2, "Name one.\n\na pet", "cat"),
        pool_line(3, "Say.\n\nhi", "no"),
    ]
    answers = write_jsonl(
        tmp_path / "a.jsonl",
        [
            {"row": 0, "decision": "fix", "corrected_response": "3"},
            {"row": 1, "decision": "fix", "corrected_response": "cod"},
            {"row": 2, "decision": "drop"},
            {"row": 3, "decision": "drop"},
        ],
    )
    rows = correct(write_pool(tmp_path / "r", lines), answers, [alpaca, several, gone], tmp_path)
    assert len(rows) == 2 and without(rows[0]) == {**alpaca, "output": "3"}
    assert [without(i) for i in rows[1]["instances"]] == [{"input": "a fish", "output": "cod"}]
    assert rows[1]["instances"][0]["sample_review"] == "fixed"


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_other_formats_out(run, answers, tmp_path, suffix):
    data = write_jsonl(tmp_path / "data.jsonl", PLAIN)
    out = tmp_path / f"corrected{suffix}"
    import_annotations(run, answers, data, out)
    rows = datasets.load_from_disk(out).to_list() if not suffix else load_records(out).to_list()
    assert [r["response"] for r in rows] == [
        "Answer number 0.",
        "Right.",
        *(r for _, r in pairs()[3:]),
    ]
    assert state(rows[0]) == ("kept", "0x7a00000000000000")


def test_a_dataset_comes_back_as_one_with_its_features(run, answers):
    data = load_records_of(PLAIN)
    result = import_annotations(run, answers, data)
    assert result.path is None and result.dataset is not None
    assert result.dataset.features["meta"] == data.features["meta"]
    assert result.dataset.column_names == [*data.column_names, "sample_review", "sample_review_id"]
    assert [r["meta"]["k"] for r in result.dataset] == [0, 1, 3, 4, 5]
    assert result.dataset[1]["response"] == "Right."


def load_records_of(rows: list[dict]) -> datasets.Dataset:
    return datasets.Dataset.from_list(rows)


def test_a_tokenized_dataset_takes_no_correction_but_drops(run, answers, tmp_path):
    data = load_records_of([{**row, "input_ids": [1, 2]} for row in PLAIN])
    with pytest.raises(DataError, match=r"answers.jsonl, line 2: .* tokenised already"):
        import_annotations(run, answers, data)
    drop = write_jsonl(tmp_path / "drop.jsonl", [ANSWERS[2]])
    assert len(import_annotations(run, drop, data).dataset) == 5


def test_a_second_review_keeps_what_the_first_said(run, answers, tmp_path):
    first = correct(run, answers, PLAIN, tmp_path)
    lines = [pool_line(3, *pairs()[3])]
    again = write_jsonl(tmp_path / "again.jsonl", [{"row": 3, "decision": "keep"}])
    rows = correct(write_pool(tmp_path / "second", lines), again, first, tmp_path)
    states = [state(r)[0] for r in rows]
    assert states == ["kept", "fixed", "kept", "unreviewed", "unreviewed"]


# -- pools whose text was decoded from tokens ----------------------------------------------------


def template(prompt: str) -> str:
    return f"system\nBe kind.\nuser\n{prompt}\nassistant"


def test_text_in_a_template_and_cut_is_found(tmp_path):
    lines = [pool_line(k, template(p), r[:10], decoded=True) for k, (p, r) in enumerate(pairs())]
    answers = write_jsonl(tmp_path / "a.jsonl", ANSWERS)
    rows = correct(write_pool(tmp_path / "r", lines), answers, PLAIN, tmp_path)
    assert [r["meta"]["k"] for r in rows] == [0, 1, 3, 4, 5] and rows[1]["response"] == "Right."


def test_decoded_text_is_found_wherever_a_split_or_packing_has_put_it(tmp_path):
    lines = [
        pool_line(0, template(p), r[:10], decoded=True, id=k) for k, (p, r) in enumerate(pairs())
    ]
    said = [{**answer, "id": answer["row"]} for answer in ANSWERS]
    for answer in said:
        del answer["row"]
    answers = write_jsonl(tmp_path / "a.jsonl", said)
    run = write_pool(tmp_path / "r", lines)
    rows = correct(run, answers, list(reversed(PLAIN)), tmp_path)
    assert [r["meta"]["k"] for r in rows] == [5, 4, 3, 1, 0] and rows[3]["response"] == "Right."
    by_row = write_jsonl(tmp_path / "b.jsonl", ANSWERS[:1])
    with pytest.raises(DataError, match=r"line 1, field 'row': row 0 holds several samples"):
        correct(run, by_row, PLAIN, tmp_path)


def test_the_prompt_that_covers_most_of_a_decoded_one_is_meant(tmp_path):
    line = pool_line(0, template("Is it so? Say why."), "Yes", decoded=True)
    rows = [{"prompt": p, "response": "Yes"} for p in ("Is it so?", "Is it so? Say why.", "why")]
    drop = write_jsonl(tmp_path / "a.jsonl", [{"row": 0, "decision": "drop"}])
    left = correct(write_pool(tmp_path / "r", [line]), drop, rows, tmp_path)
    assert [row["prompt"] for row in left] == ["Is it so?", "why"]


def test_where_a_cut_leaves_two_records_alike_the_row_decides_or_nobody(tmp_path):
    rows = [{"prompt": "Count.", "response": f"one two {end}"} for end in ("three", "four")]
    drop = write_jsonl(tmp_path / "a.jsonl", [{"row": 1, "decision": "drop"}])
    line = pool_line(1, template("Count."), "one two", decoded=True)
    left = correct(write_pool(tmp_path / "r", [line]), drop, rows, tmp_path)
    assert [row["response"] for row in left] == ["one two three"]
    line = pool_line(7, template("Count."), "one two", decoded=True)
    drop = write_jsonl(tmp_path / "a.jsonl", [{"row": 7, "decision": "drop"}])
    with pytest.raises(DataError, match=r"line 1: 2 records fit what the run saw of row 7"):
        correct(write_pool(tmp_path / "s", [line]), drop, rows, tmp_path)


def test_a_response_changed_since_it_was_decoded_is_refused(tmp_path):
    line = pool_line(0, template(pairs()[0][0]), "Answer number 9", decoded=True)
    answers = write_jsonl(tmp_path / "a.jsonl", ANSWERS[:1])
    with pytest.raises(DataError, match="line 1: no row of"):
        correct(write_pool(tmp_path / "r", [line]), answers, PLAIN, tmp_path)


def test_a_conversation_in_a_template_is_found_by_its_turns(tmp_path):
    turns = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Sum?"},
        {"role": "assistant", "content": "5"},
    ]
    line = pool_line(0, "<u>Hello<a>Hi.<u>Sum?<a>", "5", decoded=True)
    answers = write_jsonl(
        tmp_path / "a.jsonl", [{"row": 0, "decision": "fix", "corrected_response": "4"}]
    )
    rows = correct(write_pool(tmp_path / "r", [line]), answers, [{"messages": turns}], tmp_path)
    assert rows[0]["messages"] == [*turns[:3], {"role": "assistant", "content": "4"}]


def test_where_prompt_and_answer_were_trained_alike_a_fix_is_refused(tmp_path):
    seen = [f"<u>{p}<a>{r}" for p, r in pairs()]
    lines = [pool_line(k, "", text, decoded=True) for k, text in enumerate(seen)]
    run = write_pool(tmp_path / "r", lines)
    with pytest.raises(DataError, match=r"line 2: .* cannot be told apart"):
        correct(run, write_jsonl(tmp_path / "a.jsonl", ANSWERS), PLAIN, tmp_path)
    drop = write_jsonl(tmp_path / "d.jsonl", [ANSWERS[2]])
    assert len(correct(run, drop, PLAIN, tmp_path)) == 5


@pytest.mark.parametrize("host", ["trainer", "trainer with text columns", "sft"])
def test_the_pool_of_a_real_run_finds_its_way_back(tiny_tokenizer, tmp_path, host):
    from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
    from hf_glm_curriculum.data.tokenization import tokenize_sft
    from hf_glm_curriculum.lifespan.pool import read_pool
    from tests.lifespan.runs import Collator, arguments, build_model

    data = write_jsonl(tmp_path / "data.jsonl", PLAIN)
    dataset = tokenize_sft(load_records(data), tiny_tokenizer, max_length=34)  # cuts the answers
    folder = tmp_path / "run"
    everything = LifespanConfig(life_threshold=1e9, warmup_visits=2)  # all go to the pool
    common = {
        "model": build_model(),
        "train_dataset": dataset,
        "processing_class": tiny_tokenizer,
        "data_collator": Collator(),
        "callbacks": [SampleLifespanCallback(everything, judge=lambda c: ["RELABEL"] * len(c))],
    }
    if host == "sft":
        from trl import SFTConfig, SFTTrainer

        settings = {"max_length": None, "dataset_kwargs": {"skip_prepare_dataset": True}}
        args = arguments(folder, SFTConfig, num_train_epochs=3, max_steps=-1, **settings)
        trainer = SFTTrainer(args=args, **common)
    else:
        from transformers import Trainer

        keep = host != "trainer"
        args = arguments(folder, num_train_epochs=3, max_steps=-1, remove_unused_columns=not keep)
        trainer = Trainer(args=args, **common)
    trainer.train()
    pool = read_pool(folder)
    assert {0, 1, 2} <= set(pool.by_row)
    cut = pool.by_row[0].response != PLAIN[0]["response"]
    assert cut == pool.by_row[0].decoded == (host != "trainer with text columns")
    rows = correct(folder, write_jsonl(tmp_path / "a.jsonl", ANSWERS), PLAIN, tmp_path)
    assert [r["meta"]["k"] for r in rows] == [0, 1, 3, 4, 5] and rows[1]["response"] == "Right."


# -- refusals leave nothing behind ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda rows: rows[1].update(response="Edited."), r"answers.jsonl, line 2: no row of"),
        (lambda rows: rows[1].update(response="Answer number 1. More."), r"line 2: no row of"),
        (lambda rows: rows.pop(2), r"answers.jsonl, line 3: no row of"),
        (lambda rows: rows[5].update(sample_review="5 stars"), r"line 6, field 'sample_review'"),
        (lambda rows: rows[5].pop("response"), r"data.jsonl, line 6: sft records need"),
    ],
)
def test_changed_data_are_refused_and_nothing_is_written(run, answers, tmp_path, changed, message):
    rows = [dict(row) for row in PLAIN]
    changed(rows)
    out = tmp_path / "corrected.jsonl"
    out.write_text("older\n", "utf-8")
    with pytest.raises(DataError, match=message):
        correct(run, answers, rows, tmp_path)
    assert out.read_text("utf-8") == "older\n"
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_data_are_never_written_over(run, answers, tmp_path):
    (tmp_path / "data").mkdir()
    data = write_jsonl(tmp_path / "data" / "a.jsonl", PLAIN)
    for source, out in ((data, data), (tmp_path / "data", tmp_path / "data" / "new.jsonl")):
        with pytest.raises(DataError, match="part of the data itself"):
            import_annotations(run, answers, source, out)


def test_a_packed_sample_cannot_be_found(tmp_path):
    run = write_pool(tmp_path / "r", [pool_line(0, None, None)])
    answers = write_jsonl(tmp_path / "a.jsonl", ANSWERS[:1])
    with pytest.raises(DataError, match=r"line 1: .*could not read the text"):
        correct(run, answers, PLAIN, tmp_path)


def test_two_samples_of_one_text_must_agree(tmp_path):
    run = write_pool(tmp_path / "r", [pool_line(0, *pairs()[0]), pool_line(1, *pairs()[0])])
    both = [{"row": 0, "decision": "keep"}, {"row": 1, "decision": "keep"}]
    assert len(correct(run, write_jsonl(tmp_path / "a.jsonl", both), PLAIN, tmp_path)) == 6
    both[1]["decision"] = "drop"
    with pytest.raises(DataError, match=r"line 2: contradicts"):
        correct(run, write_jsonl(tmp_path / "a.jsonl", both), PLAIN, tmp_path)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6, unique=True),
    st.lists(st.sampled_from([None, "keep", "drop", "fix"]), min_size=6, max_size=6),
    st.sampled_from([".jsonl", ".csv"]),
)
def test_any_text_survives_the_import(texts, decisions, suffix):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = [{"prompt": p, "response": r, "k": str(k)} for k, (p, r) in enumerate(texts)]
        lines = [pool_line(k, p, r) for k, (p, r) in enumerate(texts)]
        said = [
            {"row": k, "decision": d, "corrected_response": f"new {r}" if d == "fix" else None}
            for k, ((_, r), d) in enumerate(zip(texts, decisions, strict=False))
        ]
        out = folder / f"out{suffix}"
        data = write_jsonl(folder / "data.jsonl", rows)
        run = write_pool(folder / "run", lines)
        import_annotations(run, write_jsonl(folder / "a.jsonl", said), data, out)
        expected = []
        for row, answer in zip(rows, said, strict=True):
            if answer["decision"] != "drop":
                expected.append(
                    {**row, "response": answer["corrected_response"] or row["response"]}
                )
        if suffix == ".jsonl":
            got = read_jsonl(out)
        else:
            with out.open(encoding="utf-8", newline="") as file:
                got = list(csv.DictReader(file))
        assert [without(row) for row in got] == expected
