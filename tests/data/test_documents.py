"""Documents out of text files, folders and records, and the rows they are cut into."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset

from hf_glm_curriculum.data.chunks import chunk_documents
from hf_glm_curriculum.data.documents import load_documents
from hf_glm_curriculum.errors import ConfigError, DataError


def test_files_folders_and_records(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffone", "utf-8")
    (tmp_path / "texts" / "deep").mkdir(parents=True)
    (tmp_path / "texts" / "deep" / "c.md").write_text("three", "utf-8")
    (tmp_path / "texts" / "b.RST").write_text("two", "utf-8")
    (tmp_path / "texts" / "empty.txt").write_text(" \n", "utf-8")
    (tmp_path / "texts" / "code.py").write_text("no document", "utf-8")
    records = [{"text": "four", "x": 1}, {"content": "five"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records), "utf-8")
    found = load_documents([tmp_path / "a.txt", tmp_path / "texts", tmp_path / "r.jsonl"])
    assert found["text"][:] == ["one", "two", "three", "four", "five"]
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "r.jsonl").write_text('{"document": "six"}\n', "utf-8")
    assert load_documents(tmp_path / "only")["text"][:] == ["six"]


def test_what_is_no_document_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.txt: no such file"):
        load_documents(tmp_path / "gone.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"latin\.txt: not UTF-8"):
        load_documents(tmp_path / "latin.txt")
    (tmp_path / "r.jsonl").write_text('{"text": "x"}\n{"title": "y"}\n', "utf-8")
    with pytest.raises(DataError, match=r"r\.jsonl, line 2: a document needs a text field"):
        load_documents(tmp_path / "r.jsonl")
    (tmp_path / "blank.txt").write_text("  ", "utf-8")
    with pytest.raises(DataError, match=r"blank\.txt: holds no text"):
        load_documents(tmp_path / "blank.txt")


def test_joined_documents_fill_their_rows(tiny_tokenizer):
    texts = ["first " * 11, "second", "third " * 9]
    rows = chunk_documents(Dataset.from_dict({"text": texts}), tiny_tokenizer, 16)
    whole = [t for text in texts for t in [*tiny_tokenizer(text)["input_ids"], 1]]
    full, rest = divmod(len(whole), 16)
    assert rest == 1, "a last row of one token predicts nothing"
    assert [t for row in rows["input_ids"] for t in row] == whole[:-1]
    assert [len(row) for row in rows["input_ids"]] == [16] * full
    assert rows["labels"][:] == rows["input_ids"][:]
    longer = chunk_documents(Dataset.from_dict({"text": [*texts, "x"]}), tiny_tokenizer, 16)
    assert [len(row) for row in longer["input_ids"]] == [*[16] * full, 3]


def test_documents_may_each_start_a_row(tiny_tokenizer):
    texts = ["x" * 15, "y" * 16, "z" * 20]
    rows = chunk_documents(Dataset.from_dict({"text": texts}), tiny_tokenizer, 16, join=False)
    # The 16 and the EOS of the second leave a row of one token, which predicts nothing.
    assert [len(row) for row in rows["input_ids"]] == [16, 16, 16, 5]
    assert tiny_tokenizer.decode(rows[0]["input_ids"]) == "x" * 15 + "<eos>"


def test_what_cannot_be_cut_is_refused(tiny_tokenizer):
    one = Dataset.from_dict({"text": ["x"]})
    with pytest.raises(DataError, match="'body': not among the columns"):
        chunk_documents(one, tiny_tokenizer, 16, column="body")
    with pytest.raises(ConfigError, match="at least 2 tokens, got 1"):
        chunk_documents(one, tiny_tokenizer, 1)
    with pytest.raises(DataError, match="row 1, column 'text': must be text, got NoneType"):
        chunk_documents(Dataset.from_dict({"text": ["x", None]}), tiny_tokenizer, 16)
    with pytest.raises(DataError, match="holds no text of 2 tokens"):
        chunk_documents(Dataset.from_dict({"text": [" "]}), tiny_tokenizer, 16)
    tiny_tokenizer.eos_token = None
    with pytest.raises(DataError, match="has no EOS token"):
        chunk_documents(one, tiny_tokenizer, 16)
