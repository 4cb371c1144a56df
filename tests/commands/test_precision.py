"""Half precision and 4-bit weights: what is refused without a GPU, and every config that ships."""

from importlib import import_module

import pytest
import torch

from hf_glm_curriculum.config import load_config
from tests.conftest import REPOSITORY

CLASSES = {
    "sft": "sft_config.SftCommandConfig",
    "migrate": "migrate_config.MigrateCommandConfig",
    "reward": "reward_config.RewardCommandConfig",
    "ppo": "ppo_config.PpoCommandConfig",
    "search": "search_config.SearchConfig",
}
CONFIGS = [path for name in CLASSES for path in sorted((REPOSITORY / "configs" / name).glob("*"))]
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_config_that_ships_is_one_of_its_command(path):
    command = path.parent.name
    module, name = CLASSES[command].split(".")
    load_config(getattr(import_module(f"hf_glm_curriculum.commands.{module}"), name), path)
    first = path.read_text("utf-8").splitlines()[0]
    shown = f"configs/{command}/{path.name}"
    assert shown in first and command in first.split(shown)[0]


@no_gpu
@pytest.mark.parametrize("flag", ["--fp16", "--load-in-4bit"])
def test_what_needs_a_gpu_is_refused_before_anything_loads(refused, tmp_path, train_file, flag):
    words = [
        "sft",
        "--data",
        train_file,
        "--model",
        "nowhere/at-all",
        "--output-dir",
        tmp_path / "x",
    ]
    said = refused(*words, flag)
    assert "needs a CUDA GPU" in said and flag.strip("-").replace("-", "_") in said
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fp16", "--bf16"], "exclude each other"),
        (["--load-in-4bit", "--no-lora"], "cannot be trained"),
    ],
)
def test_contradictions_are_named(refused, tmp_path, train_file, flags, words):
    said = refused("sft", "--data", train_file, "--output-dir", tmp_path / "x", *flags)
    assert words in said
