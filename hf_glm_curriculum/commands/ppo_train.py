"""Policy, arguments and trainer of a `ppo` run."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, cast

from hf_glm_curriculum.commands.ppo_config import PpoCommandConfig, batches_of
from hf_glm_curriculum.commands.ppo_reward import LoadedReward, reward_parts
from hf_glm_curriculum.commands.run_models import model_of
from hf_glm_curriculum.commands.run_state import is_main_process
from hf_glm_curriculum.errors import ConfigError, IncompatibleError

_SAVES = 10
_WINDOW, _LEAST_WINDOW = 20, 6


def left_out() -> str | None:
    """Why there is no PPO in this environment; None where there is."""
    from hf_glm_curriculum.errors import HfGlmCurriculumError

    try:
        import hf_glm_curriculum.ppo  # noqa: F401
    except HfGlmCurriculumError as error:
        return str(error)
    return None


def load_policy(config: PpoCommandConfig) -> tuple[Any, Any]:
    """The policy, with fresh adapters where LoRA is on, and its tokenizer.

    Raises:
        ModelError: The model cannot be loaded, or has no decoder layers.
        MissingDependencyError: LoRA without peft, 4 bits without bitsandbytes, or the embedded
            model without its wheel.
        IncompatibleError: 4 bits without CUDA.
    """
    from hf_glm_curriculum.commands.sft_train import load_for_training

    config = dataclasses.replace(config, model=model_of(config.model))
    # The settings of a policy bear the names of those of fine-tuning.
    return load_for_training(cast(Any, config))


def complete_policy(config: PpoCommandConfig, folder: Path) -> None:
    """`complete_saved` for a policy, which may be named by the run that it comes from.

    Raises:
        ModelError: The adapters that the run began with cannot be loaded again.
    """
    from hf_glm_curriculum.commands.sft_train import complete_saved

    complete_saved(cast(Any, dataclasses.replace(config, model=model_of(config.model))), folder)


def processes() -> int:
    """Processes that share a batch, from the launcher's environment."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1)


def ppo_arguments(config: PpoCommandConfig, structured: bool) -> Any:
    """The trainer's arguments of a config.

    Raises:
        ConfigError: A setting is refused, or the batch cannot be shared by the processes.
        MissingDependencyError: TRL has no PPO, or a tracker is not installed.
    """
    from hf_glm_curriculum.commands.sft_train import check_trackers
    from hf_glm_curriculum.ppo import StructuredPPOConfig

    check_trackers(config.report_to)
    batches = batches_of(config, processes())
    try:
        args = StructuredPPOConfig(
            per_device_train_batch_size=batches.per_device,
            gradient_accumulation_steps=batches.accumulation,
            num_mini_batches=batches.mini_batches,
            structured_defaults=structured,
            **_objective(config),
            **_running(config),
        )
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"TRL refuses the settings ({reason}); correct them, or install what it asks for"
        ) from error
    _check_together()
    return args


def _check_together() -> None:
    """Refuse processes that a launcher started and that would each train for itself.

    Raises:
        IncompatibleError: Naming the way out.
    """
    from accelerate import PartialState

    started, joined = processes(), PartialState().num_processes
    if started != joined:
        raise IncompatibleError(
            f"{started} processes were started and do not train together, for want of GPUs; add "
            "--cpu to train on CPUs, or start one process"
        )


def _objective(config: PpoCommandConfig) -> dict[str, Any]:
    """What is optimised, under TRL's names."""
    same = (
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
        "kl_coef",
        "kl_estimator",
        "max_update_kl",
        "cliprange",
        "cliprange_value",
        "vf_coef",
        "gamma",
        "lam",
        "whiten_rewards",
        "missing_eos_penalty",
        "temperature",
        "max_prompt_length",
        "long_prompts",
    )
    return {
        **{name: getattr(config, name) for name in same},
        "num_ppo_epochs": config.ppo_epochs,
        "total_updates": config.updates,
        "response_length": config.max_new_tokens,
        "advantage_mode": config.use.advantage_mode,
        "value_model_kind": config.value_model,
        "lr_scheduler_type": config.lr_scheduler,
        "warmup_steps": config.warmup,
    }


def _running(config: PpoCommandConfig) -> dict[str, Any]:
    """How and where it runs, under transformers' names."""
    return {
        "output_dir": str(Path(config.output_dir).expanduser()),
        "bf16": config.bf16,
        "fp16": config.fp16,
        "gradient_checkpointing": config.gradient_checkpointing,
        "use_cpu": config.cpu,
        "seed": config.seed,
        "logging_steps": config.logging_steps,
        "completion_rows": config.completion_rows,
        "save_strategy": "steps",
        "save_steps": config.save_steps or max(1, config.updates // _SAVES),
        "save_total_limit": config.save_total_limit,
        "report_to": config.report_to or "none",
        "num_sample_generations": 0,
        "debug_dir": config.debug_dir,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        # A bar in a file is noise; lines of our own take its place there.
        "disable_tqdm": not sys.stderr.isatty(),
    }


def build_ppo_trainer(
    config: PpoCommandConfig, args: Any, model: Any, tokenizer: Any, reward: LoadedReward, data: Any
) -> Any:
    """The trainer with its parts and the monitor.

    Args:
        config: settings.
        args: from `ppo_arguments`.
        model: from `load_policy`.
        tokenizer: the policy's.
        reward: from `load_reward`.
        data: the training prompts.

    Raises:
        HfGlmCurriculumError: Something of it does not go together.
    """
    from transformers import PrinterCallback

    from hf_glm_curriculum.commands.training_progress import UpdateLines
    from hf_glm_curriculum.ppo import StructuredPPOTrainer

    lines = [UpdateLines()] if args.disable_tqdm and is_main_process() else []
    trainer = StructuredPPOTrainer(
        args=args,
        processing_class=tokenizer,
        model=model,
        ref_model=None,
        reward_model=reward.model,
        reward_processing_class=reward.tokenizer,
        train_dataset=data,
        value_model=None,
        callbacks=[monitor_of(config), *lines],
        **reward_parts(config, reward),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def monitor_of(config: PpoCommandConfig) -> Any:
    """The reward-hacking monitor, looking back no further than a run of this length allows."""
    from hf_glm_curriculum.rewards.monitor import RewardHackingMonitor

    return RewardHackingMonitor(window=alarm_window(config), stop=config.stop_on_alarm)


def alarm_window(config: PpoCommandConfig) -> int:
    """Updates that alarms look back on."""
    return config.alarm_window or max(_LEAST_WINDOW, min(_WINDOW, config.updates // 3))


def sharded() -> bool:
    """Whether the launcher splits parameters, so that no rank has a whole model to answer with."""
    names = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
    return any(os.environ.get(name, "").lower() in ("1", "true", "yes") for name in names)
