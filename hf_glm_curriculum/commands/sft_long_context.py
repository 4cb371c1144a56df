"""What `sft` adds for long contexts: position-graph attention and a dense teacher."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.run_state import is_main_process
from hf_glm_curriculum.config import dump_config, load_config
from hf_glm_curriculum.models import causal_lm, load_model

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from hf_glm_curriculum.attention.config import PositionGraphConfig
    from hf_glm_curriculum.commands.sft_config import SftCommandConfig


def long_context_callbacks(
    config: SftCommandConfig, model: Any, tokenizer: Any
) -> list[TrainerCallback]:
    """The callbacks that a config asks for; none without ``position_graph`` and ``teacher``.

    The student is switched to the graph when training begins, after the teacher was taken, so
    that ``teacher: self`` learns to see with fewer keys what it saw with all of them.

    Raises:
        ConfigError: The settings of the graph cannot be read.
        ModelError: The teacher cannot be loaded.
    """
    callbacks: list[TrainerCallback] = []
    if config.teacher is not None:
        callbacks.append(_distillation(config, model))
    if config.position_graph is not None:
        from hf_glm_curriculum.attention.callback import PositionGraphCallback

        callbacks.append(PositionGraphCallback(_settings(config), tokenizer, keep=True))
    return callbacks


def save_graph_settings(config: SftCommandConfig, folder: Path) -> None:
    """Write the graph's settings beside the model: adapters have no config to carry them.

    Raises:
        StateError: The file cannot be written.
    """
    if config.position_graph is not None and is_main_process():
        dump_config(_settings(config), folder / "position_graph.yaml")


def _settings(config: SftCommandConfig) -> PositionGraphConfig:
    from hf_glm_curriculum.attention.config import PositionGraphConfig

    path = None if config.position_graph == "default" else config.position_graph
    return load_config(PositionGraphConfig, path)


def _distillation(config: SftCommandConfig, model: Any) -> TrainerCallback:
    from hf_glm_curriculum.losses.callback import CompositeLossCallback
    from hf_glm_curriculum.losses.composite import CompositeLoss
    from hf_glm_curriculum.losses.distillation import DistillationLoss
    from hf_glm_curriculum.losses.terms import CausalLMLoss

    if config.teacher == "self":
        teacher = copy.deepcopy(causal_lm(model)).requires_grad_(False)
    else:
        teacher = load_model(str(config.teacher), config.dtype)[0].requires_grad_(False)
    terms: dict[str, Any] = {
        "teacher": DistillationLoss(teacher, temperature=config.teacher_temperature)
    }
    weights = {"teacher": config.teacher_weight}
    if config.teacher_weight < 1.0:
        terms["lm"], weights["lm"] = CausalLMLoss(), 1.0 - config.teacher_weight
    return CompositeLossCallback(CompositeLoss(terms, weights))
