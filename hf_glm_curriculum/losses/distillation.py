"""Learning from a teacher's distribution.

Shape letters: B rows, T positions, N tokens, V vocabulary size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_glm_curriculum.errors import ConfigError, IncompatibleError, ModelError
from hf_glm_curriculum.kernels.output_head import OutputHead
from hf_glm_curriculum.losses.context import NEXT, LossContext
from hf_glm_curriculum.models import backbone

DIRECTIONS = ("forward", "reverse")


def kl_divergence(
    student: Tensor, teacher: Tensor, temperature: float = 1.0, direction: str = "forward"
) -> Tensor:
    """KL divergence between softmax distributions, times temperature² (Hinton et al. 2015).

    Args:
        student: [N, V] logits.
        teacher: [N, V] logits.
        temperature: τ, divides both.
        direction: "forward" is KL(teacher ‖ student), which covers all the teacher does;
            "reverse" is KL(student ‖ teacher), which keeps to what the teacher does most (Gu et
            al., MiniLLM, 2024).

    Returns:
        [N] nats.
    """
    ours = torch.log_softmax(student / temperature, dim=-1)
    theirs = torch.log_softmax(teacher.to(student.dtype) / temperature, dim=-1)
    if direction == "reverse":
        ours, theirs = theirs, ours
    # Where p is 0 its logarithm may be −∞: such a token adds nothing.
    products = theirs.exp() * (theirs - ours)
    return torch.where(theirs == -torch.inf, 0.0, products).sum(-1) * temperature**2


class DistillationLoss:
    """KL divergence from a teacher at every position with a next label.

    The teacher is a causal LM, run without gradients on the same tokens, or logits that come with
    the batch. A teacher's logits are made chunk by chunk, as the student's are.

    Args:
        teacher: a causal LM over the same vocabulary; None reads logits from the batch.
        column: batch column [B, T, V] with the teacher's logits, read where there is no teacher.
        direction: "forward" or "reverse"; see :func:`kl_divergence`.
        temperature: τ of both distributions; the loss is multiplied with τ².
    """

    alignment = NEXT

    def __init__(
        self,
        teacher: nn.Module | None = None,
        *,
        column: str = "teacher_logits",
        direction: str = "forward",
        temperature: float = 1.0,
    ) -> None:
        """Check the settings; the teacher goes into evaluation mode.

        Raises:
            ConfigError: for an unknown direction or a temperature that is not positive.
            ModelError: if the teacher is no causal LM.
        """
        if direction not in DIRECTIONS:
            raise ConfigError(f"direction: must be one of {DIRECTIONS}, got {direction!r}.")
        if not temperature > 0:
            raise ConfigError(f"temperature: must be positive, got {temperature}.")
        self.direction = direction
        self.temperature = temperature
        self.columns = (column,) if teacher is None else ()
        self._column = column
        # In a tuple, so that no module that holds this term takes the teacher for its own part.
        self._teacher = None if teacher is None else (teacher.eval(),)
        if teacher is not None:
            OutputHead.of(teacher)  # refused here rather than at the first step

    @property
    def teacher(self) -> nn.Module | None:
        """The teacher, if it is a model."""
        return None if self._teacher is None else self._teacher[0]

    def __call__(self, context: LossContext) -> Tensor:
        """[B, T] nats."""
        teacher = self.teacher
        if teacher is None:
            theirs, head = context.column(self._column), None
            self._check_shape(theirs, context)
            width = theirs.shape[-1]
        else:
            # Looked up at each call: moving the teacher to a device makes new storage.
            found = OutputHead.of(teacher)
            bias = None if found.bias is None else found.bias.detach()
            head = OutputHead(found.weight.detach(), bias, found.transform)
            theirs = self._teacher_hidden(teacher, context).to(head.weight.device)
            width = head.weight.shape[0]
        _check_vocabulary(width, context)
        return context.map_tokens(self._divergence, theirs, heads=(head,))

    def _divergence(self, student: Tensor, teacher: Tensor) -> Tensor:
        return kl_divergence(student, teacher.to(student.device), self.temperature, self.direction)

    def _teacher_hidden(self, teacher: Any, context: LossContext) -> Tensor:
        device = next(teacher.parameters()).device
        given: dict[str, Tensor] = {"input_ids": context.input_ids}
        for name in ("attention_mask", "position_ids"):
            if context.has(name):
                given[name] = getattr(context, name)
        given = {name: value.to(device) for name, value in given.items()}
        with torch.no_grad():
            hidden = backbone(teacher)(**given, use_cache=False)
        return hidden[0] if isinstance(hidden, tuple) else hidden.last_hidden_state

    def _check_shape(self, logits: Tensor, context: LossContext) -> None:
        wanted = tuple(context.labels.shape)
        if logits.dim() != 3 or tuple(logits.shape[:2]) != wanted:
            raise IncompatibleError(
                f"term {context.term!r}: {self._column} must have shape {(*wanted, 'V')}, got "
                f"{tuple(logits.shape)}; pad it as the labels are padded."
            )


def _check_vocabulary(width: int, context: LossContext) -> None:
    ours = context.vocabulary
    if width != ours:
        raise ModelError(
            f"term {context.term!r}: the teacher's vocabulary must be the student's, got {width} "
            f"tokens against {ours}; use a teacher with the same tokenizer (and resize padded "
            "embeddings to the same size)."
        )
