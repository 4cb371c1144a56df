"""Which trainers and settings per-sample losses are known from; the rest is refused by name.

What only the model tells (encoder-decoders, prompt learning, unknown losses) is refused by
:class:`~hf_glm_curriculum.signals.probe.SampleProbe` itself; what only a batch tells (missing
labels, packed samples that see each other), at the first forward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hf_glm_curriculum.errors import IncompatibleError

if TYPE_CHECKING:
    from transformers import TrainingArguments

TRACKING = "track samples"
"""What a host is wanted for, as messages say it."""

_PAIRS = "a sample is a pair of answers, whose loss is not a mean over one answer's tokens"
_ROLLOUTS = "samples are drawn from the model as it trains, none has a life of its own"
_FORMS = {
    "DPO": _PAIRS,
    "Reward": _PAIRS,
    "CPO": _PAIRS,
    "ORPO": _PAIRS,
    "KTO": "an answer's loss depends on the other answers of its batch",
    "PRM": "a step's score is trained, not its tokens",
    "GRPO": _ROLLOUTS,
    "RLOO": _ROLLOUTS,
    "PPO": _ROLLOUTS,
    "OnlineDPO": _ROLLOUTS,
    "XPO": _ROLLOUTS,
    "NashMD": _ROLLOUTS,
}


def refuse_host(args: TrainingArguments, *, purpose: str = TRACKING, exact: bool = False) -> None:
    """Name what is known not to work, before the first step.

    Args:
        args: the trainer's arguments.
        purpose: what the host is wanted for, as an infinitive without "to".
        exact: whether norms over all trainable parameters are wanted too.

    Raises:
        IncompatibleError: naming the trainer or the setting, and the way out.
    """
    _refuse_trainer(args, purpose)
    _refuse_loss(args, purpose, exact)
    _refuse_parallelism(args)
    if not torch.is_grad_enabled():
        raise IncompatibleError("autograd: gradients are off; train with them on.")


def notes_on_host(args: TrainingArguments) -> list[str]:
    """What to say once about a host that works, but not as one might think."""
    packing = getattr(args, "packing", False) and getattr(args, "packing_strategy", None)
    if packing == "wrapped":
        return [
            "packing_strategy='wrapped' cuts texts anywhere: a sample is a chunk of "
            f"{getattr(args, 'max_length', None)} tokens; 'bfd' keeps samples whole"
        ]
    return []


def _refuse_trainer(args: TrainingArguments, purpose: str) -> None:
    """The trainer is told by its arguments: callbacks are not shown the trainer itself."""
    ours = next((c for c in type(args).__mro__ if c.__module__.split(".")[0] == "trl"), None)
    if ours is None or ours.__name__ == "SFTConfig":
        return
    form = ours.__name__.removesuffix("Config")
    reason = _FORMS.get(form, "its loss is not the cross-entropy of each sample's own tokens")
    raise IncompatibleError(f"{form}Trainer: {reason}; {purpose} with Trainer or SFTTrainer.")


def _refuse_loss(args: TrainingArguments, purpose: str, exact: bool) -> None:
    if getattr(args, "use_liger_kernel", False):
        raise IncompatibleError(
            "use_liger_kernel: Liger's fused loss shows no per-token losses; set "
            f"use_liger_kernel=False to {purpose}."
        )
    if getattr(args, "label_smoothing_factor", 0):
        raise IncompatibleError(
            f"label_smoothing_factor: the loss is computed outside the model, got "
            f"{args.label_smoothing_factor}; set it to 0 to {purpose}."
        )
    if getattr(args, "torch_compile", False) and exact:
        raise IncompatibleError(
            "torch_compile: grad_norm='exact' reads every layer's gradient in Python; set "
            "torch_compile=False or use grad_norm='hidden'."
        )
    if getattr(args, "loss_type", None) == "dft":
        raise IncompatibleError(
            "loss_type: 'dft' weights tokens by their own probability, so what trains is not the "
            f"samples' mean losses; set loss_type='nll' to {purpose}."
        )


def _refuse_parallelism(args: TrainingArguments) -> None:
    if args.n_gpu > 1:
        raise IncompatibleError(
            f"n_gpu: DataParallel over {args.n_gpu} GPUs replicates the model in threads; start "
            "with `accelerate launch` or torchrun (DistributedDataParallel), or show one GPU with "
            "CUDA_VISIBLE_DEVICES."
        )
    plan: Any = getattr(args, "parallelism_config", None)
    for name, size in (("context", "cp_size"), ("sequence", "sp_size")):
        if getattr(plan, size, 1) > 1:
            raise IncompatibleError(
                f"parallelism_config: {name} parallelism splits a sample over "
                f"{getattr(plan, size)} processes, so that none sees its loss; set {size}=1."
            )
