"""Settings of `ppo`: aliases, batches, shipped configs, and what the launcher's configs say."""

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from hf_glm_curriculum.commands.ppo_aliases import ALIASES, canonical_keys
from hf_glm_curriculum.commands.ppo_config import Batches, PpoCommandConfig, batches_of
from hf_glm_curriculum.config import load_config
from hf_glm_curriculum.config_types import field_types
from hf_glm_curriculum.errors import ConfigError
from tests.conftest import REPOSITORY

ARTICLE = """
ppo_config:
  model_name: “./output/sft_model“
  reward_model_name: "./output/reward_model"
  learning_rate: 1.41e-5
  batch_size: 32
  mini_batch_size: 8
  ppo_epochs: 4
  kl_coef: 0.1
  steps: 10000
  log_with: tensorboard
save_steps: 500
"""


def written(folder, text):
    path = folder / "ppo.yaml"
    path.write_text(text, "utf-8")
    return path


def test_the_articles_yaml_is_understood_as_it_stands(tmp_path):
    config = load_config(PpoCommandConfig, written(tmp_path, ARTICLE))
    assert config.model == "./output/sft_model"
    assert config.reward == ["./output/reward_model"]
    assert config.learning_rate == 1.41e-5
    assert (config.batch_size, config.mini_batch_size, config.ppo_epochs) == (32, 8, 4)
    assert (config.updates, config.save_steps, config.kl_coef) == (10000, 500, 0.1)
    assert config.report_to == ["tensorboard"]


def test_every_alias_stands_for_a_setting_and_flags_win(tmp_path):
    assert set(ALIASES.values()) <= set(field_types(PpoCommandConfig))
    assert not set(ALIASES) & set(field_types(PpoCommandConfig))
    path = written(tmp_path, ARTICLE)
    assert load_config(PpoCommandConfig, path, {"updates": 3}).updates == 3


def test_two_names_of_one_setting():
    same = canonical_keys({"steps": 5, "ppo_config": {"updates": 5}})
    assert same == {"updates": 5}
    with pytest.raises(ConfigError, match=r"steps and ppo_config.updates are one setting.*5 and 6"):
        canonical_keys({"steps": 5, "ppo_config": {"updates": 6}})
    with pytest.raises(ConfigError, match="model_name and model are one setting"):
        canonical_keys({"model_name": "a", "model": "b"})


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("ppo_config: {lerning_rate: 1.0}", "did you mean learning_rate"),
        ("ppo_config: 3", "ppo_config: must hold settings, got 3"),
        ("steps: 1\nupdates: 2", "are one setting"),
        ("batch_size: 10\nmini_batch_size: 4", "not divisible by mini_batch_size 4.* of 2 would"),
        ("mini_batch_size: 8\nmicro_batch_size: 3", "8 is not divisible by micro_batch_size 3"),
        ("batch_size: 9\nmicro_batch_size: 2", "batch_size: 9 is not divisible"),
        ("load_in_4bit: true\nlora: false", "load_in_4bit"),
        ("bf16: true\nfp16: true", "bf16, fp16"),
        ("length_band: [1]", "length_band"),
        ("alarm_window: 2", "window: must be at least 6"),
        ("updates: 0", "updates: must be at least 1"),
        ("temperature: 0", "temperature: must be above 0"),
        ("gamma: 1.5", "gamma"),
        ("resume: true\noverwrite: true", "contradict"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, text, match):
    with pytest.raises(ConfigError, match=match):
        load_config(PpoCommandConfig, written(tmp_path, text))


@pytest.mark.parametrize(
    ("settings", "processes", "expected"),
    [
        ({"batch_size": 16}, 1, Batches(8, 2, 1)),
        ({"batch_size": 16}, 2, Batches(8, 1, 1)),
        ({"batch_size": 32, "mini_batch_size": 8}, 1, Batches(8, 4, 4)),
        ({"batch_size": 32, "mini_batch_size": 8, "micro_batch_size": 2}, 2, Batches(2, 8, 4)),
        ({"batch_size": 15}, 1, Batches(5, 3, 1)),
    ],
)
def test_batches_are_cut_so_that_the_product_is_the_batch(settings, processes, expected):
    config = PpoCommandConfig(**settings)
    found = batches_of(config, processes)
    assert found == expected
    assert found.per_device * found.accumulation * processes == config.batch_size


def test_batches_that_processes_cannot_share():
    with pytest.raises(ConfigError, match=r"batch_size: 15 prompts cannot be shared by 2.*16"):
        batches_of(PpoCommandConfig(batch_size=15), 2)
    config = PpoCommandConfig(batch_size=12, micro_batch_size=4)
    with pytest.raises(ConfigError, match=r"micro_batch_size: 4 does not divide the 6.* 3 would"):
        batches_of(config, 2)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "ppo").glob("*.yaml")))
def test_shipped_configs_load_and_say_their_command(path):
    config = load_config(PpoCommandConfig, path)
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith(f"# hf-glm-curriculum ppo --config configs/ppo/{path.name}")
    assert config.output_dir.startswith("runs/") and config.reward
    assert batches_of(config, 2).per_device >= 1, "also on two devices"


KINDS = {
    "cpu_ddp": "MULTI_GPU",
    "multi_gpu": "MULTI_GPU",
    "fsdp2": "FSDP",
    "zero2": "DEEPSPEED",
    "zero3": "DEEPSPEED",
}


@pytest.mark.parametrize("name", KINDS)
def test_accelerate_reads_its_configs(name):
    path = REPOSITORY / "configs" / "accelerate" / f"{name}.yaml"
    config = load_config_from_file(str(path))
    assert config.distributed_type == KINDS[name] and config.num_processes == 2
    if name.startswith("zero"):
        assert config.deepspeed_config["zero_stage"] == int(name[-1])
    if name == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
    first = path.read_text("utf-8").splitlines()[0]
    assert first.startswith(f"# accelerate launch --config_file configs/accelerate/{name}.yaml -m ")
    module, *words = first.split(" -m ")[1].split()
    assert (REPOSITORY / words[words.index("--config") + 1]).is_file()
    source = (REPOSITORY / f"{module.replace('.', '/')}.py").read_text("utf-8")
    assert '__name__ == "__main__"' in source, "starting the module starts something"
