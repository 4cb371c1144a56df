"""Prompts out of records of every kind."""

import json

import pytest

from hf_glm_curriculum.data.record_prompts import load_prompts
from hf_glm_curriculum.errors import DataError


def load(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return load_prompts(path).to_list()


def test_every_form_gives_a_prompt_and_keeps_its_columns(tmp_path):
    rows = load(
        tmp_path,
        {"prompt": "a", "response": "1", "difficulty": 3},
        {"instruction": "b", "input": "text", "output": "2"},
        {"query": "c"},
        {"question": "d", "answer": "4"},
        {"prompt": "e", "chosen": "5", "rejected": "6"},
        {"messages": [{"role": "user", "content": "f"}, {"role": "assistant", "content": "7"}]},
        {"prompt": [{"role": "user", "content": "g"}]},
        {"instruction": "h", "instances": [{"input": "", "output": "8"}, {"input": "i"}]},
    )
    prompts = ["a", "b\n\ntext", "c", "d", "e", "f", "g", "h", "h\n\ni"]
    assert [row["prompt"] for row in rows] == prompts
    assert [row["reference"] for row in rows] == ["1", "2", None, "4", "5", "7", None, "8", None]
    assert rows[0]["difficulty"] == 3 and rows[4]["rejected"] == "6"
    assert not any(row.get("messages") for row in rows)


def test_conversations_keep_their_turns_up_to_the_last_answer(tmp_path):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two?"},
    ]
    answer = {"role": "assistant", "content": "2"}
    rows = load(tmp_path, {"messages": [*turns, answer]}, {"messages": turns})
    assert rows[0]["messages"] == rows[1]["messages"] == turns
    assert [row["reference"] for row in rows] == ["2", None]
    assert "user: Two?" in rows[0]["prompt"]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"text": "a"}, r"line 1: prompts need prompt, query.*got \['text'\]"),
        ({"prompt": "  "}, "line 1, field 'prompt': must hold text"),
        ({"prompt": 3}, "line 1, field 'prompt': must be text, got 3"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "a turn of the user's"),
        ({"instruction": "a", "instances": ["b"]}, r"instances\[0\]"),
    ],
)
def test_records_without_a_prompt_are_named(tmp_path, row, match):
    with pytest.raises(DataError, match=match):
        load(tmp_path, row)


def test_an_empty_file_says_what_is_needed(tmp_path):
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match="prompts need"):
        load_prompts(tmp_path / "rows.jsonl")
