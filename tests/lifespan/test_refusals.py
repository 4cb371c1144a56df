"""Hosts that sample tracking does not know are refused by name before anything is trained."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl.trainer
from datasets import Dataset
from transformers import (
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import SFTConfig, SFTTrainer

from hf_glm_curriculum import LifespanConfig, SampleLifespanCallback
from hf_glm_curriculum.errors import IncompatibleError
from hf_glm_curriculum.lifespan.hosts import refuse_host
from tests.conftest import build_model, build_tokenizer
from tests.lifespan.hosts import host
from tests.lifespan.runs import Collator, arguments, random_rows

PREFERENCES = [
    {"prompt": f"ask {i}", "chosen": f" good {i}", "rejected": f" bad {i}"} for i in range(4)
]


def _begin(args: Any, config: LifespanConfig | None = None) -> None:
    SampleLifespanCallback(config).on_train_begin(
        args, TrainerState(), TrainerControl(), model=build_model()
    )


def _refused(trainer: Any, message: str) -> None:
    """The trainer stops with our message, and with its weights as they were."""
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(IncompatibleError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0
    for now, then in zip(trainer.model.parameters(), before, strict=True):
        assert torch.equal(now, then)


def _trl_trainer(form: str, data: list[dict], folder: Any, **extra: Any) -> Any:
    config, trainer = getattr(trl, f"{form}Config"), getattr(trl, f"{form}Trainer")
    settings = extra.pop("settings", {})
    return trainer(
        model=extra.pop("model", None) or build_model(),
        args=arguments(folder, config, **settings),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_list(data),
        callbacks=[SampleLifespanCallback()],
        **extra,
    )


def test_dpo_is_refused_by_name(tmp_path):
    _refused(
        _trl_trainer("DPO", PREFERENCES, tmp_path, ref_model=build_model()),
        r"^DPOTrainer: a sample is a pair of answers, .*; track samples with Trainer or SFTTrainer",
    )


def test_the_reward_trainer_is_refused_by_name(tmp_path):
    from transformers import LlamaForSequenceClassification

    config = build_model().config
    config.num_labels = 1
    _refused(
        _trl_trainer("Reward", PREFERENCES, tmp_path, model=LlamaForSequenceClassification(config)),
        "^RewardTrainer: a sample is a pair of answers",
    )


def test_kto_is_refused_by_name(tmp_path):
    data = [
        {"prompt": row["prompt"], "completion": row[kind], "label": kind == "chosen"}
        for row in PREFERENCES
        for kind in ("chosen", "rejected")
    ]
    trainer = _trl_trainer("KTO", data, tmp_path, ref_model=build_model())
    _refused(trainer, "^KTOTrainer: an answer's loss depends on")


def test_grpo_is_refused_by_name(tmp_path):
    def reward(completions: list, **kwargs: Any) -> list[float]:
        return [0.0] * len(completions)

    data = [{"prompt": row["prompt"]} for row in PREFERENCES]
    settings = {"num_generations": 2, "max_completion_length": 4}
    _refused(
        _trl_trainer("GRPO", data, tmp_path, reward_funcs=reward, settings=settings),
        "^GRPOTrainer: samples are drawn from the model as it trains",
    )


def _trl_configs() -> list[type]:
    found: dict[str, type] = {}
    for module in pkgutil.iter_modules(trl.trainer.__path__):
        if module.name.endswith("_config"):
            loaded = importlib.import_module(f"trl.trainer.{module.name}")
            found |= dict(inspect.getmembers(loaded, inspect.isclass))
    kinds = [c for c in found.values() if issubclass(c, TrainingArguments)]
    return [c for c in kinds if c.__module__.startswith("trl.") and c.__name__ != "_BaseConfig"]


def _bare(kind: type, **settings: Any) -> Any:
    """Arguments of a class without what its constructor asks for."""
    args = object.__new__(kind)
    for name, value in {"_n_gpu": 1, **settings}.items():
        object.__setattr__(args, name, value)
    return args


@pytest.mark.parametrize("kind", _trl_configs(), ids=lambda kind: kind.__name__)
def test_of_trls_own_trainers_only_sft_is_taken(kind):
    class Users(kind):
        """A user's subclass is told by what it is made from."""

    for cls in (kind, Users):
        if kind is SFTConfig:
            refuse_host(arguments("out", cls), LifespanConfig())
            continue
        with pytest.raises(IncompatibleError) as caught:
            refuse_host(_bare(cls), LifespanConfig())
        message = str(caught.value)
        assert message.startswith(kind.__name__.replace("Config", "Trainer: "))
        assert message.endswith("track samples with Trainer or SFTTrainer.")
        assert "\n" not in message


def test_a_trainer_built_on_sft_is_refused_where_its_loss_is_another():
    class GKDConfig(SFTConfig):
        pass

    GKDConfig.__module__ = "trl.experimental.gkd.gkd_config"
    with pytest.raises(IncompatibleError, match=r"^GKDTrainer: its loss is not the cross-entropy"):
        refuse_host(_bare(GKDConfig), LifespanConfig())


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({"label_smoothing_factor": 0.1}, {}, r"label_smoothing_factor: .*got 0\.1; set it to 0"),
        ({"use_liger_kernel": True}, {}, "use_liger_kernel=False"),
        ({"_n_gpu": 2}, {}, "n_gpu: DataParallel over 2 GPUs .*`accelerate launch`"),
        ({"loss_type": "dft"}, {}, "loss_type: 'dft' .*set loss_type='nll'"),
        ({"torch_compile": True}, {"grad_norm": "exact"}, "torch_compile: grad_norm='exact'"),
        ({"parallelism_config": SimpleNamespace(cp_size=2)}, {}, "context parallelism .*cp_size=1"),
        ({"parallelism_config": SimpleNamespace(sp_size=2)}, {}, "sequence parallelism"),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_settings_that_hide_token_losses_are_refused(settings, config, message, tmp_path):
    args = arguments(tmp_path)
    for name, value in settings.items():
        object.__setattr__(args, name, value)
    with pytest.raises(IncompatibleError, match=message):
        _begin(args, LifespanConfig(**config))


def test_training_without_gradients_is_refused(tmp_path):
    with torch.no_grad(), pytest.raises(IncompatibleError, match="autograd"):
        _begin(arguments(tmp_path))


@pytest.mark.filterwarnings("ignore:`compute_loss_func` is deprecated:FutureWarning")
def test_real_label_smoothing_and_losses_of_ones_own_are_refused(tmp_path):
    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return outputs.logits.float().mean()

    smooth = host(tmp_path, [SampleLifespanCallback()], label_smoothing_factor=0.1)
    _refused(smooth.trainer, "label_smoothing_factor")
    settings = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    for trainer, args in (
        (Trainer, arguments(tmp_path)),
        (SFTTrainer, arguments(tmp_path, SFTConfig, loss_type="nll", **settings)),
    ):
        own = trainer(
            model=build_model(),
            args=args,
            data_collator=Collator(),
            train_dataset=Dataset.from_list(random_rows()),
            processing_class=build_tokenizer(),
            compute_loss_func=loss,
            callbacks=[SampleLifespanCallback()],
        )
        _refused(own, "no labels.*compute_loss_func")


def test_batches_without_labels_are_refused(tmp_path):
    def inputs_only(rows: list) -> dict[str, torch.Tensor]:
        batch = Collator()(rows)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    found = host(tmp_path, [SampleLifespanCallback()], collator=inputs_only)
    _refused(found.trainer, "shows it no labels. Either the batches have none")


def test_dft_is_refused(tmp_path):
    found = host(tmp_path, [SampleLifespanCallback()], sft=True, loss_type="dft")
    _refused(found.trainer, "loss_type: 'dft'")


def test_encoder_decoders_are_refused(tmp_path):
    t5 = T5ForConditionalGeneration(
        T5Config(
            vocab_size=260, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
            decoder_start_token_id=0,
        )
    )  # fmt: skip
    found = host(tmp_path, [SampleLifespanCallback()], model=t5)
    _refused(found.trainer, "T5ForConditionalGeneration is an encoder-decoder")


@pytest.mark.parametrize("kind", ["trainer", "sft"])
def test_prompt_learning_is_refused(kind, tmp_path):
    from peft import PromptTuningConfig, get_peft_model

    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = get_peft_model(build_model(), config)
    if kind == "trainer":
        _refused(
            host(tmp_path, [SampleLifespanCallback()], model=model).trainer,
            "peft: .*PROMPT_TUNING adds virtual tokens",
        )
        return
    trainer = SFTTrainer(
        model=model,
        args=arguments(tmp_path, SFTConfig, dataset_kwargs={"skip_prepare_dataset": True}),
        processing_class=build_tokenizer(),
        train_dataset=Dataset.from_list(random_rows()),
        callbacks=[SampleLifespanCallback()],
    )
    _refused(trainer, "peft: .*PROMPT_TUNING adds virtual tokens")
