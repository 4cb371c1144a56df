"""Files of equal content under different paths."""

import hashlib
import os

import pytest

from hf_glm_curriculum import audit_files
from hf_glm_curriculum.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "train.jsonl").write_bytes(b"x" * 3_000_000)
    (tmp_path / "copy" / "a.jsonl").write_bytes(b"x" * 3_000_000)
    (tmp_path / "other.jsonl").write_bytes(b"x" * 2_999_999 + b"y")
    return tmp_path


def test_same_content_has_one_canonical_path_in_any_order(folder, caplog):
    paths = [folder / "copy" / "a.jsonl", folder / "other.jsonl", folder / "train.jsonl"]
    for order in (paths, paths[::-1]):
        caplog.clear()
        audit = audit_files(order)
        train = str(folder / "train.jsonl")
        assert audit.duplicates == [[train, str(folder / "copy" / "a.jsonl")]]
        assert audit.canonical[str(folder / "copy" / "a.jsonl")] == train
        assert audit.canonical[str(folder / "other.jsonl")] == str(folder / "other.jsonl")
        assert sorted(audit.unique_paths) == sorted([train, str(folder / "other.jsonl")])
        assert "same content as" in caplog.text and len(caplog.records) == 1
    digest = hashlib.sha256((folder / "train.jsonl").read_bytes()).hexdigest()
    assert audit.digests[train] == digest
    assert audit.summary()["distinct_contents"] == 2


def test_folders_are_searched_and_one_file_is_no_duplicate_of_itself(folder, caplog):
    os.symlink(folder / "other.jsonl", folder / "link.jsonl")
    other = folder / "other.jsonl"
    assert audit_files([other, other, folder / "copy" / ".." / "other.jsonl"]).duplicates == []
    assert not caplog.records
    audit = audit_files(folder)
    assert len(audit.digests) == 3 and len(audit.duplicates) == 1


def test_missing_and_unreadable_paths(folder, monkeypatch):
    with pytest.raises(DataError, match=r"absent.jsonl: no such file"):
        audit_files([folder / "absent.jsonl"])

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(DataError, match=r"train.jsonl: cannot be read \(Permission denied\)"):
        audit_files([folder / "train.jsonl"])
