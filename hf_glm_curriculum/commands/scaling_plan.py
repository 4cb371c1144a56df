"""`scaling plan`: what a budget buys, by fitted laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hf_glm_curriculum.commands.console import say
from hf_glm_curriculum.commands.scaling_config import ScalingPlanConfig
from hf_glm_curriculum.commands.scaling_tables import (
    show_more,
    show_parts,
    show_plan,
    show_sizes,
)
from hf_glm_curriculum.config import to_dict
from hf_glm_curriculum.storage import atomic_write_json

if TYPE_CHECKING:
    from hf_glm_curriculum.scaling.post_law import PostTrainingLaw


def run(config: ScalingPlanConfig, argv: Sequence[str]) -> int:
    """Plan as configured.

    Raises:
        HfGlmCurriculumError: There is no fitted law for what is asked, or a setting is wrong.
    """
    from hf_glm_curriculum.scaling.post_law import PostTrainingLaw

    post_law = PostTrainingLaw.load(config.post_law) if config.post_law else None
    found: dict[str, Any] = {"command": list(argv), "settings": to_dict(config)}
    if config.at and post_law is not None:
        show_more(post_law, config.at, config.change)
    if config.flops is not None:
        found |= _planned(config, config.flops, post_law)
    if config.output is not None:
        atomic_write_json(config.output, found)
        say(f"plan: {config.output}")
    return 0


def _planned(
    config: ScalingPlanConfig, flops: float, post_law: PostTrainingLaw | None
) -> dict[str, Any]:
    """Show the plan, and the comparison if sizes are given."""
    from hf_glm_curriculum.scaling.law import ScalingLaw
    from hf_glm_curriculum.scaling.money import load_device
    from hf_glm_curriculum.scaling.plan import compare_sizes, plan

    law = ScalingLaw.load(config.law) if config.law else None
    device = load_device(config.device, config.hardware) if config.device else None
    shared: dict[str, Any] = {"post_law": post_law, "costs": config.costs, "limits": config.limits}
    made = plan(flops, config.stages, law=law, fixed=config.fixed, device=device, **shared)
    show_plan(made, device)
    if len(made.stages) > 1 or made.stages[0].stage != "pretrain":
        show_parts(made)
    if law is not None:
        say(f"conventions: {law.conventions.line()}")
    if device is not None:
        say(
            f"hours and money: {device.name}, {device.training:.0%} of its peak in training and "
            f"{device.generation:.0%} in generation; edit a copy of the table for your own figures"
        )
    found: dict[str, Any] = {"plan": asdict(made)}
    if config.compare:
        fixed = {name: value for name, value in config.fixed.items() if name != "parameters"}
        choices = compare_sizes(flops, config.compare, config.stages, fixed=fixed, **shared)
        show_sizes(choices, made.metric)
        found["sizes"] = [asdict(one) for one in choices]
    return found
