"""What a trainer must be like for its steps to hold one lane, and how its places become steps."""

from __future__ import annotations

import logging
from typing import Any

from torch.utils.data import SequentialSampler

from hf_glm_curriculum.curriculum.lane_data import LaneDataset, LanePlan
from hf_glm_curriculum.curriculum.lane_layout import Steps
from hf_glm_curriculum.errors import IncompatibleError

logger = logging.getLogger(__name__)


def steps_of(args: Any) -> Steps:
    """How a trainer with these arguments turns places into optimizer steps.

    Raises:
        IncompatibleError: if the batch size may change under way, or one rank reads for all.
    """
    if getattr(args, "auto_find_batch_size", False):
        raise IncompatibleError(
            "auto_find_batch_size: the rows of a step would change under way, and with them the "
            "lanes' windows; set it to False and give a batch size that fits."
        )
    accelerator = getattr(args, "accelerator_config", None)
    if getattr(accelerator, "dispatch_batches", None):
        raise IncompatibleError(
            "dispatch_batches: rank 0 would cut doubled batches at other places than the lanes' "
            'windows; set accelerator_config={"dispatch_batches": False}.'
        )
    ranks = int(getattr(args, "world_size", 1) or 1)
    split = bool(getattr(accelerator, "split_batches", False))
    evened = bool(getattr(accelerator, "even_batches", True)) and not args.dataloader_drop_last
    return Steps(
        batch=int(args.train_batch_size) * (1 if split else ranks),
        accumulation=int(args.gradient_accumulation_steps),
        evened=evened and ranks > 1,
    )


def check_host(args: Any, plan: LanePlan, dataloader: Any) -> LaneDataset:
    """Check, before the first step, that the trainer reads the lanes in their order.

    Args:
        args: the trainer's arguments.
        plan: of the callback's data set.
        dataloader: the trainer's.

    Returns:
        The wrapper that the trainer reads.

    Raises:
        IncompatibleError: naming the setting and the way out.
    """
    dataset: Any = getattr(dataloader, "dataset", None)
    if getattr(dataset, "plan", None) is not plan:
        raise IncompatibleError(
            f"train_dataset: the trainer reads a {type(dataset).__name__} and not what "
            "build_lanes made; pass that itself, built after select or shuffle."
        )
    if plan.config.observe_only:
        return dataset
    if plan.steps != steps_of(args):
        raise IncompatibleError(
            f"batch_size: the lanes are laid out for {plan.steps}, the trainer's steps are "
            f"{steps_of(args)}; hand LaneCallback over when the trainer is made, or correct "
            "batch_size and gradient_accumulation of build_lanes."
        )
    if args.dataloader_num_workers and args.dataloader_persistent_workers:
        raise IncompatibleError(
            "dataloader_persistent_workers: persistent workers keep the first epoch's copy of the "
            "data set, and so its order; set it to False."
        )
    if not isinstance(_sampler(dataloader), SequentialSampler):
        strategy = getattr(args, "train_sampling_strategy", None)
        raise IncompatibleError(
            f"train_sampling_strategy: {strategy!r} would mix the lanes of a step; set "
            "train_sampling_strategy='sequential' (the lanes draw their own order)."
        )
    return dataset


def refuse_rates(args: Any, plan: LanePlan) -> None:
    """Refuse hosts in which the optimizer has stepped before its learning rate can be changed.

    Raises:
        IncompatibleError: under DeepSpeed.
    """
    if getattr(args, "deepspeed", None) and plan.acts and plan.config.fast_lr_factor != 1.0:
        raise IncompatibleError(
            "fast_lr_factor: DeepSpeed steps inside the backward pass, before the rate could be "
            "multiplied; set fast_lr_factor=1, or train with DDP or FSDP2."
        )


def _sampler(dataloader: Any) -> Any:
    """The sampler below accelerate's and torch's wrappers of a data loader."""
    sampler: Any = getattr(dataloader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", None)
