"""A tiny model on disk, demo data in a file, and the command line called in this process."""

import json
import re
from pathlib import Path

import pytest
import torch

from hf_glm_curriculum.commands.main import main
from hf_glm_curriculum.data.demo import demo_instructions
from tests.commands.cases import lay_out
from tests.conftest import build_model, build_tokenizer


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory) -> Path:
    """A random 2-layer Llama and its tokenizer, saved."""
    folder = tmp_path_factory.mktemp("model")
    build_model("llama").save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def train_file(tmp_path_factory) -> Path:
    """Twenty-four short demo rows with planted faults, as JSONL."""
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    rows = demo_instructions(24, 0, ("en",), 0.25, max_words=24)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture(scope="session")
def materials(tmp_path_factory, tiny_folder, train_file) -> Path:
    """What the commands of `cases.CASES` read."""
    return lay_out(tmp_path_factory.mktemp("materials"), tiny_folder, train_file)


@pytest.fixture(scope="session")
def reward_folder(tiny_folder, tmp_path_factory) -> Path:
    """A structured reward model with random heads in three dimensions."""
    from hf_glm_curriculum import StructuredRewardModel

    torch.manual_seed(3)
    model = StructuredRewardModel.from_backbone(
        str(tiny_folder), head_hidden_size=8, confidence_hidden_size=4, max_tokens=128
    )
    folder = tmp_path_factory.mktemp("reward")
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def cli(capsys):
    """`cli("audit", path)` → (exit status, standard output, standard error)."""

    def call(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def refused(cli):
    """Call a command that must fail with one `error:` line; returns the line."""

    def call(*arguments) -> str:
        status, _, errors = cli(*arguments)
        assert status == 2, errors
        assert "Traceback" not in errors
        lines = [line for line in errors.splitlines() if not re.match(r"(warning|usage):?", line)]
        assert len(lines) == 1 and lines[0].startswith("error: "), errors
        return lines[0]

    return call
