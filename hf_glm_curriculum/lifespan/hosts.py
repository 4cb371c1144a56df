"""Which trainers and settings sample tracking knows; see :mod:`hf_glm_curriculum.signals.hosts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_glm_curriculum.lifespan.config import LifespanConfig
from hf_glm_curriculum.signals import hosts
from hf_glm_curriculum.signals.hosts import notes_on_host as notes_on_host

if TYPE_CHECKING:
    from transformers import TrainingArguments


def refuse_host(args: TrainingArguments, config: LifespanConfig) -> None:
    """Name what is known not to work, before the first step.

    Raises:
        IncompatibleError: naming the trainer or the setting, and the way out.
    """
    hosts.refuse_host(args, exact=config.grad_norm == "exact")
